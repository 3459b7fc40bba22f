"""How far a Normal is from the best one, what least squares could do, and the oracle's choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Best:
    """The best Normal, where the evidence lower bound is stationary, and the reference.

    Attributes
    ----------
    mean, scale_tril : arrays (D,), (D, D)
        Of the best Normal.
    reference_mean, reference_covariance : arrays (D,), (D, D)
        Moments of the reference draws.
    """

    mean: Floats
    scale_tril: Floats
    reference_mean: Floats
    reference_covariance: Floats

    def divergence(self, mean: Floats, scale_tril: Floats) -> Floats:
        """KL(fit, best) of fits (..., D) and (..., D, D); infinite where one is not finite."""
        return normal_divergence(mean, scale_tril, self.mean, self.scale_tril)

    def judge(self, mean: Floats, scale_tril: Floats) -> dict[str, Floats]:
        """Errors of means, in deviations, and of deviations, as logarithms, each the worst (...,).

        Against the moments of the reference.
        """
        deviations = np.sqrt(np.diag(self.reference_covariance))
        found = np.sqrt(np.square(scale_tril).sum(-1)) / deviations
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.abs(np.log(found))
        return {
            "mean error": np.abs((mean - self.reference_mean) / deviations).max(-1),
            "sd error": logs.max(-1),
            "mean variance ratio": np.square(found).mean(-1),
        }


def normal_divergence(
    mean: Floats, scale_tril: Floats, other_mean: Floats, other_scale_tril: Floats
) -> Floats:
    """KL(N(mean, L L^T), other) of Normals (..., D) and (..., D, D) to another, (...,)."""
    inverse = np.linalg.inv(other_scale_tril)
    with np.errstate(all="ignore"):
        root = inverse @ scale_tril
        apart = (inverse @ (mean - other_mean)[..., None])[..., 0]
        logs = np.log(np.diagonal(root, axis1=-2, axis2=-1)).sum(-1)
        square = np.square(root).sum((-2, -1)) + np.square(apart).sum(-1)
        found = 0.5 * (square - mean.shape[-1]) - logs
    # A divergence of rounding errors may come out below zero.
    return np.where(np.isfinite(found), np.maximum(found, 0.0), np.inf)


@dataclass(frozen=True)
class LeastSquares:
    """What least squares would leave of KL(fit, best), times the number of pairs of scores.

    From scores at the best Normal. See the page on noisy scores.

    Attributes
    ----------
    plain : float
        Entries of the slope estimated one by one, with their mean across the diagonal taken after.
    symmetric : float
        The two estimates of an entry weighted by their certainty.
    """

    plain: float
    symmetric: float

    @classmethod
    def of(cls, standard: Floats, score: Floats) -> LeastSquares:
        """From standard pairs z (M, D) and whitened scores (M, 2, D) at the points of z and -z."""
        half = 0.5 * (score[:, 0] - score[:, 1])
        centre = 0.5 * (score[:, 0] + score[:, 1])
        noise = half + standard
        variances, basis = np.linalg.eigh(noise.T @ noise / len(noise))
        noise, turned = noise @ basis, standard @ basis
        entries = noise[:, :, None] * turned[:, None, :]
        of_mean = 0.5 * centre.var(0).sum()
        plain = 0.5 * (entries + entries.mT)
        # Without noise all are alike.
        certainty = 1.0 / (np.maximum(variances, 0.0) + 1e-6 * variances[-1] + 1e-300)
        weight = certainty[:, None] / (certainty[:, None] + certainty)
        weighted = weight * entries + (weight * entries).mT
        return cls(
            float(0.25 * np.square(plain).mean(0).sum() + of_mean),
            float(0.25 * np.square(weighted).mean(0).sum() + of_mean),
        )


def middle(divergences: Sequence[float] | Floats) -> float:
    """Median of divergences, where those of broken runs are infinite."""
    found = np.sort(np.asarray(divergences, np.float64))
    # Two infinite values have no mean that NumPy would give.
    low, high = found[(len(found) - 1) // 2], found[len(found) // 2]
    return float(low if low == high else 0.5 * (low + high))


def oracle(final: Floats) -> int:
    """The rate whose runs end best: the index of the least median of divergences (rates, seeds).

    Among rates with equal medians that of the least mean.
    """
    return min(range(len(final)), key=lambda rate: (middle(final[rate]), float(final[rate].mean())))


def failures(final: Floats, start: Floats) -> int:
    """Runs (seeds,) that broke, or ended no nearer than they started."""
    return int((~(final < start)).sum())
