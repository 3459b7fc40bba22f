"""Importance ratios of draws whose own density is known, and what they make of moments.

Weights of a few hundred draws tell little of a posterior that is more skewed than the draws: the
large weights lie in the tail that few draws reach. The logarithms of the ratios tell it with a
small error, since a density that is skewed by k times a Normal's third Hermite polynomial He_3(u)
has the logarithm k He_3(u) / 6 (the Gram-Charlier series, H. Cramer, "Mathematical methods of
statistics" (1946), 17.6): k is six times their slope against He_3.

A. Vehtari, D. Simpson, A. Gelman, Y. Yao and J. Gabry, "Pareto smoothed importance sampling"
(2024). Where Pareto k-hat is low, reweighted moments are the posterior's, and raw ones that differ
from them are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from ppl_ext.statistics.effective import weighted_number
from ppl_ext.statistics.khat import (
    LEAST_KHAT_SAMPLES,
    ParetoKHat,
    khat_in_words,
    log_ratios,
    pareto_khat,
    smoothed_weights,
)

#: Probability of calling right moments wrong, over all coordinates.
LEVEL = 2e-3
#: Errors that nobody minds: of a mean in standard deviations, of the logarithm of one.
MEAN, DEVIATION = 0.1, 0.1
#: Effective share of the draws below which corrected moments tell nothing.
LEAST_NUMBER = 100.0
#: Error of a distribution function that nobody minds, and the skewness with which it is off by that
#: where it is most, at the mean (the first term of Edgeworth's series there, k / 6 sqrt(2 pi)).
DISTANCE = 0.05
SKEWNESS = DISTANCE * 6.0 * math.sqrt(2.0 * math.pi)


@dataclass(frozen=True)
class Ratios:
    """Figures of importance ratios.

    Attributes
    ----------
    khat : ParetoKHat
    share : float
        Effective share of the draws.
    mean : array (D,)
        Corrected means minus raw ones, in corrected standard deviations.
    deviation : array (D,)
        Logarithms of raw over corrected standard deviations.
    skewness : array (D,)
        The posterior's skewness minus the draws', to first order.
    mean_error, deviation_error, skewness_error : array (D,)
        Standard errors.
    distance : array (D,)
        Kolmogorov distances of the raw draws' distribution functions from the corrected ones.
    distance_error : float
        Standard deviation of a corrected distribution function over its whole range: the distance
        is that of a Brownian bridge times this where the draws are right.
    names : sequence of str
    tolerances : tuple of float
        Errors that nobody minds, of a mean and of the logarithm of a standard deviation.
    level : float
        Probability of calling right draws wrong, over all coordinates.
    """

    khat: ParetoKHat
    share: float
    mean: Float[np.ndarray, " D"]
    mean_error: Float[np.ndarray, " D"]
    deviation: Float[np.ndarray, " D"]
    deviation_error: Float[np.ndarray, " D"]
    skewness: Float[np.ndarray, " D"]
    skewness_error: Float[np.ndarray, " D"]
    distance: Float[np.ndarray, " D"]
    distance_error: float
    names: Sequence[str]
    tolerances: tuple[float, float] = (MEAN, DEVIATION)
    level: float = LEVEL

    @property
    def can_correct(self) -> bool:
        """Whether reweighted moments are to be believed."""
        return self.khat.reliable and self.share * self.khat.num_samples > LEAST_NUMBER

    @property
    def _quantile(self) -> float:
        """Standard errors that chance allows one of four figures of each coordinate."""
        return -float(ndtri(self.level / 8.0 / len(self.mean)))

    def _shares(self) -> Float[np.ndarray, "2 D"]:
        errors = np.stack([self.mean_error, self.deviation_error])
        allowed = np.hypot(np.transpose([self.tolerances]), self._quantile * errors)
        return np.abs([self.mean, self.deviation]) / allowed

    @property
    def moves(self) -> bool:
        """Whether raw moments differ from corrected ones."""
        return bool((self._shares() > 1.0).any())

    @property
    def is_off(self) -> bool:
        """Whether raw moments differ from corrected ones that are to be believed."""
        return self.can_correct and self.moves

    @property
    def is_skewed(self) -> bool:
        """Whether the posterior's skewness differs from the draws' by more than is tolerated."""
        return bool((self._skews() > 1.0).any())

    def _skews(self) -> Float[np.ndarray, " D"]:
        allowed = np.hypot(SKEWNESS, self._quantile * self.skewness_error)
        return np.abs(self.skewness) / allowed

    @property
    def is_misplaced(self) -> bool:
        """Whether the distribution functions of the draws and of the posterior differ."""
        return bool((self._distances() > 1.0).any())

    def _distances(self) -> Float[np.ndarray, " D"]:
        # A bridge leaves [-x, x] with a probability of 2 exp(-2 x^2) at most.
        quantile = math.sqrt(0.5 * math.log(8.0 * len(self.mean) / self.level))
        return self.distance / math.hypot(DISTANCE, quantile * self.distance_error)

    @property
    def told_of_distance(self) -> str:
        """The largest distance in words."""
        worst = int(self._distances().argmax())
        return (
            "By importance ratios the draws' probability that "
            f"'{self.names[worst]}' lies below a value is off by up to {self.distance[worst]:.2f} "
            f"({DISTANCE:.2f} is let pass)."
        )

    @property
    def told_of_skewness(self) -> str:
        """The largest skewness in words."""
        worst = int(self._skews().argmax())
        long, short = ("right", "left") if self.skewness[worst] > 0.0 else ("left", "right")
        return (
            f"The posterior of '{self.names[worst]}' has a longer tail on the {long} and a shorter "
            f"one on the {short} than the draws: by the importance ratios its "
            f"skewness exceeds that of the draws by {self.skewness[worst]:+.2f} ± "
            f"{self.skewness_error[worst]:.2f}. A guide that can be skewed, or `fit`, helps."
        )

    @property
    def told(self) -> str:
        """The figures in words."""
        text = (
            f"Importance ratios: Pareto k-hat {khat_in_words(self.khat.khat)}, worth "
            f"{self.share:.0%} of the draws"
        )
        if not self.can_correct:
            return f"{text}: too uneven to say how far the draws are off."
        first, second = self._shares().argmax(1)
        return (
            f"{text}; they move the mean of '{self.names[first]}' by {self.mean[first]:+.2f} ± "
            f"{self.mean_error[first]:.2f} sd, and say that the sd of '{self.names[second]}' is "
            f"{math.exp(self.deviation[second]):.2f} times the posterior's."
        )


@np.errstate(all="ignore")
def importance_ratios(
    positions: Float[np.ndarray, "S D"],
    log_p: Float[np.ndarray, " S"],
    log_q: Float[np.ndarray, " S"],
    epsilon: float,
    names: Sequence[str],
) -> Ratios | None:
    """Figures of log densities at draws (S, D) of q; None where there is nothing to go by."""
    if len(positions) < LEAST_KHAT_SAMPLES or not np.isfinite(log_p).any():
        return None
    ratios = log_ratios(np.where(np.isnan(log_p), -np.inf, log_p), log_q, epsilon)
    weights = smoothed_weights(ratios)
    share = weighted_number(weights) / len(weights)
    raw_mean, raw_deviation = positions.mean(0), positions.std(0)
    mean = weights @ positions
    deviation = np.sqrt(weights @ np.square(positions - mean))
    # Both are of the same draws: the error is that of their difference.
    excess = weights - 1.0 / len(weights)
    white = (positions - mean) / deviation
    of_mean = excess @ white
    squares = np.square(white)
    skewness, skewness_error = _skewness(positions, ratios.values)
    return Ratios(
        pareto_khat(ratios),
        share,
        (mean - raw_mean) / deviation,
        np.sqrt(np.square(excess) @ np.square(white - of_mean)),
        np.log(raw_deviation / deviation),
        # By the delta method: a logarithm of a standard deviation changes by half of the relative
        # change of the variance.
        0.5 * np.sqrt(np.square(excess) @ np.square(squares - 1.0)),
        skewness,
        skewness_error,
        # Weights less equal ones, added up in the order of each coordinate: the difference of both
        # distribution functions at every draw, (S, D).
        np.abs(np.cumsum(excess[np.argsort(positions, axis=0)], axis=0)).max(0),
        float(np.sqrt(np.square(excess).sum())),
        names,
    )


def _skewness(
    positions: Float[np.ndarray, "S D"], ratios: Float[np.ndarray, " S"]
) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " D"]]:
    """Six times the slopes of log ratios against He_3 of standardised draws, and their errors."""
    finite = np.isfinite(ratios)
    positions, logs = positions[finite], ratios[finite][:, None]
    # What is left of the cube, and of the ratios, beside a constant, a line and a square: errors of
    # means and standard deviations are no skewness.
    line = positions - positions.mean(0)
    line = line / np.sqrt(np.square(line).mean(0))
    square = np.square(line) - 1.0
    # Gram-Schmidt over the draws: line and square become orthogonal there, as Hermite polynomials
    # are under a Normal.
    square = square - (square * line).mean(0) * line
    square = square / np.sqrt(np.square(square).mean(0))

    def left(values: Float[np.ndarray, "S D"]) -> Float[np.ndarray, "S D"]:
        values = values - values.mean(0)
        values = values - (values * line).mean(0) * line
        return values - (values * square).mean(0) * square

    cube, logs = left(line**3), left(np.broadcast_to(logs, line.shape))
    norm = np.square(cube).sum(0)
    slope = (cube * logs).sum(0) / norm
    # White's error, as residuals of log ratios are larger far out.
    error = np.sqrt(np.square(cube * (logs - slope * cube)).sum(0)) / norm
    return 6.0 * slope, 6.0 * error
