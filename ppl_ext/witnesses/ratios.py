"""Importance ratios of draws whose own density is known, and what they make of moments.

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

from ppl_ext.diagnostics.importance import (
    LEAST_KHAT_SAMPLES,
    ParetoKHat,
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
    mean_error, deviation_error : array (D,)
        Standard errors.
    names : sequence of str
    tolerances : tuple of float
        Errors that nobody minds, of a mean and of the logarithm of a standard deviation.
    """

    khat: ParetoKHat
    share: float
    mean: Float[np.ndarray, " D"]
    mean_error: Float[np.ndarray, " D"]
    deviation: Float[np.ndarray, " D"]
    deviation_error: Float[np.ndarray, " D"]
    names: Sequence[str]
    tolerances: tuple[float, float] = (MEAN, DEVIATION)

    @property
    def can_correct(self) -> bool:
        """Whether reweighted moments are to be believed."""
        return self.khat.reliable and self.share * self.khat.num_samples > LEAST_NUMBER

    def _shares(self) -> Float[np.ndarray, "2 D"]:
        quantile = -float(ndtri(0.25 * LEVEL / len(self.mean)))
        allowed = (
            np.hypot(self.tolerances[0], quantile * self.mean_error),
            np.hypot(self.tolerances[1], quantile * self.deviation_error),
        )
        return np.stack([np.abs(self.mean) / allowed[0], np.abs(self.deviation) / allowed[1]])

    @property
    def moves(self) -> bool:
        """Whether raw moments differ from corrected ones."""
        return bool((self._shares() > 1.0).any())

    @property
    def is_off(self) -> bool:
        """Whether raw moments differ from corrected ones that are to be believed."""
        return self.can_correct and self.moves

    @property
    def told(self) -> str:
        """The figures in words."""
        text = (
            f"Importance ratios: Pareto k-hat {self.khat.khat:.2f}, worth {self.share:.0%} of the "
            "draws"
        )
        if not self.can_correct:
            return f"{text}: too uneven to tell."
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
    share = float(1.0 / np.square(weights).sum() / len(weights))
    raw_mean, raw_deviation = positions.mean(0), positions.std(0)
    mean = weights @ positions
    deviation = np.sqrt(weights @ np.square(positions - mean))
    # Both are of the same draws: the error is that of their difference.
    excess = weights - 1.0 / len(weights)
    white = (positions - mean) / deviation
    of_mean = excess @ white
    squares = np.square(white)
    return Ratios(
        pareto_khat(ratios),
        share,
        (mean - raw_mean) / deviation,
        np.sqrt(np.square(excess) @ np.square(white - of_mean)),
        np.log(raw_deviation / deviation),
        0.5 * np.sqrt(np.square(excess) @ np.square(squares - 1.0)),
        names,
    )
