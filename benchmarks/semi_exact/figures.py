"""How far particles are from exact draws or a reference: moments, marginals and slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.trust.judge import kolmogorov_distances

Floats = NDArray[np.float64]

#: Directions of the sliced Wasserstein distance.
SLICES = 50

FIGURES = ("covariance error", "mean error", "Kolmogorov", "sliced Wasserstein")


@dataclass(frozen=True)
class Truth:
    """What particles are held against.

    Attributes
    ----------
    mean, covariance : arrays (D,), (D, D)
    ordered : array (D, S)
        Reference draws of each coordinate in order.
    further : dict
        Reference draws in order, each (S,), of further scalars that are judged by their marginals.
    slices : array (SLICES, S)
        Projections of the standardised reference in order.
    """

    mean: Floats
    covariance: Floats
    ordered: Floats
    further: Mapping[str, Floats]
    slices: Floats

    @classmethod
    def of(
        cls,
        draws: Floats,
        moments: tuple[Floats, Floats] | None = None,
        further: Mapping[str, Floats] | None = None,
    ) -> Truth:
        """From draws (S, D), and exact moments where there are any."""
        mean, covariance = moments or (draws.mean(axis=0), np.cov(draws.T, bias=True))
        standard = (draws - mean) / np.sqrt(np.diag(covariance))
        return cls(
            mean,
            covariance,
            np.sort(draws.T),
            {name: np.sort(values) for name, values in (further or {}).items()},
            np.sort(_directions(len(mean)) @ standard.T),
        )

    def judge(
        self, particles: Floats, further: Mapping[str, Floats] | None = None
    ) -> dict[str, float | str]:
        """Figures of particles (P, D).

        The relative error of the covariance is in the Frobenius norm, both matrices in units of
        the true deviations; the error of the mean is the worst, in deviations; the Kolmogorov
        distance is the worst of all coordinates, and apart from it of what is judged beside them;
        the sliced Wasserstein distance is the mean of
        first Wasserstein distances over directions of standardised coordinates.
        """
        deviations = np.sqrt(np.diag(self.covariance))
        standard = (particles - self.mean) / deviations
        true = self.covariance / np.outer(deviations, deviations)
        found = np.cov(standard.T, bias=True).reshape(true.shape)
        distances = kolmogorov_distances(particles, self.ordered.T)
        worst = int(distances.argmax())
        others = {
            name: float(kolmogorov_distances((further or {})[name][:, None], ordered[:, None])[0])
            for name, ordered in self.further.items()
        }
        ours = np.sort(_directions(len(self.mean)) @ standard.T)
        number = self.slices.shape[1]
        # Each particle stands for an equal share of the reference in order.
        owner = (np.arange(number) * len(particles)) // number
        figures: dict[str, float | str] = {
            "covariance error": float(np.linalg.norm(found - true) / np.linalg.norm(true)),
            "mean error": float(np.abs(standard.mean(axis=0)).max()),
            "Kolmogorov": float(distances[worst]),
            "Kolmogorov of": str(worst),
            "sliced Wasserstein": float(np.abs(ours[:, owner] - self.slices).mean()),
            "least variance ratio": float(np.diag(found).min()),
            "greatest variance ratio": float(np.diag(found).max()),
        }
        if others:
            figures["further Kolmogorov"] = max(others.values())
            figures["further Kolmogorov of"] = max(others, key=lambda name: others[name])
        return figures


def _directions(dim: int) -> Floats:
    directions = np.random.default_rng(0).normal(size=(SLICES, dim))
    return directions / np.linalg.norm(directions, axis=1, keepdims=True)
