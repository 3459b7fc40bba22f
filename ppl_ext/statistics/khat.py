"""Pareto k-hat of importance ratios, and weights that are smoothed by the same fit.

Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling, Journal of
Machine Learning Research 25(72), `arXiv:1507.02646 <https://arxiv.org/abs/1507.02646>`_. Zhang and
Stephens (2009), A new and efficient estimation method for the generalized Pareto distribution,
`doi:10.1198/tech.2009.08017 <https://doi.org/10.1198/tech.2009.08017>`_.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ppl_ext.errors import ArgumentError
from ppl_ext.statistics.pareto import pareto_fit, pareto_shape, tail_length

#: With fewer draws the tail has fewer than the five ratios that a fit needs.
LEAST_KHAT_SAMPLES = 25
#: Nats of rounding in log densities up to which equal log ratios count as equal.
COARSE = 0.1
#: Nats that the largest of all log ratios may be above the smallest for their weights to count as
#: nearly equal: none is then more than e times another.
NARROW = 1.0


def khat_in_words(khat: float) -> str:
    """A Pareto k-hat: ratios that are all alike have no tail, and theirs is minus infinity."""
    return "below 0 (the ratios are all alike)" if khat == -math.inf else f"{khat:.2f}"


class ParetoKHat(NamedTuple):
    """Shape of the upper tail of the importance ratios p/q.

    Parameters
    ----------
    khat : float
        Near or below 0 for light tails, and -inf when all ratios are within a factor e of each
        other, or the largest all equal, as they are when q is the posterior; inf when the tail is
        so heavy, or the draws so few beside it, that no shape can be fitted, and when log densities
        are so large that rounding hides the tail.
    num_samples : int
    """

    khat: float
    num_samples: int

    @property
    def threshold(self) -> float:
        """The largest khat to trust with so many draws: min(1 - 1/log10(S), 0.7)."""
        return min(1.0 - 1.0 / math.log10(self.num_samples), 0.7)

    @property
    def reliable(self) -> bool:
        """Whether khat is below the threshold."""
        return self.khat < self.threshold

    @property
    def message(self) -> str:
        """What khat says of the fit."""
        found = f"k-hat is {khat_in_words(self.khat)} with {self.num_samples} draws"
        if self.reliable:
            return (
                f"{found}, below {self.threshold:.2f}: the draws can be reweighted to the "
                "posterior, and moments of q are close to it or can be corrected."
            )
        if self.khat < 0.7:
            return (
                f"{found}, not below {self.threshold:.2f}: too few draws for ratios of such a "
                "tail. Take more."
            )
        if self.khat < 1.0:
            return (
                f"{found}, at least 0.7: reweighting the draws is unreliable. q is too far from "
                "the posterior, often too narrow, or the dimension too high; take a richer guide "
                "or fit longer."
            )
        return (
            f"{found}, at least 1: the ratios seem to have no finite mean. q misses much of the "
            "posterior; take a richer guide or fit longer."
        )


class LogRatios(NamedTuple):
    """log p - log q at S draws of q, and the differences between them that rounding can make."""

    values: Float[np.ndarray, " S"]
    rounding: float


def log_ratios(
    log_p: Float[np.ndarray, " S"], log_q: Float[np.ndarray, " S"], eps: float
) -> LogRatios:
    """log p - log q of log densities that were computed with this machine epsilon.

    Raises
    ------
    ArgumentError
        One is not a number, or +inf.
    """
    ratios = log_p - log_q
    if broken := int(np.isnan(ratios).sum() + np.isposinf(ratios).sum()):
        raise ArgumentError(
            f"Expected finite log p - log q, found {broken} of {len(ratios)} draws where it is "
            "not. Look for NaN in the guide's parameters and in the data."
        )
    finite = [np.abs(part[np.isfinite(part)]) for part in (log_p, log_q)]
    largest = max(1.0, *(float(part.max(initial=0.0)) for part in finite))
    return LogRatios(ratios, 4.0 * eps * largest)


def pareto_khat(ratios: LogRatios) -> ParetoKHat:
    """k-hat of log ratios.

    Raises
    ------
    ArgumentError
        All of them are -inf.
    """
    values, rounding = ratios
    number = len(values)
    if np.isneginf(values).all():
        raise ArgumentError(
            "Expected draws of the guide where the model has a density, found log p = -inf at all "
            f"{number}. Look at the supports and at the data."
        )
    # The ratios that the fit would see: with no difference between them there is no tail.
    tail = tail_length(number) + 1
    largest = np.sort(values)[-tail:] - values.max()
    if -largest[0] <= rounding:
        # Rounding hides the tail. That is no news where it is small; where log densities are so
        # large that it is not, nothing is known of the weights.
        return ParetoKHat(-math.inf if rounding < COARSE else math.inf, number)
    if values.max() - values.min() <= NARROW:
        # A bounded density of ratios that ends steeply is fitted by shapes of 2 or 3, which say
        # nothing: no weight counts for more than a few others.
        return ParetoKHat(-math.inf, number)
    # Ratios that underflow beside the largest cannot be told from 0.
    cutoff = max(largest[0], math.log(np.finfo(float).tiny))
    excesses = np.exp(largest[largest > cutoff]) - math.exp(cutoff)
    return ParetoKHat(pareto_shape(excesses) if len(excesses) > 4 else math.inf, number)


def smoothed_weights(ratios: LogRatios) -> Float[np.ndarray, " S"]:
    """Weights of sum 1, the largest of them replaced by quantiles of a Pareto distribution.

    Raises
    ------
    ArgumentError
        All ratios are 0.
    """
    values = ratios.values
    largest = values.max()
    if np.isneginf(largest):
        raise ArgumentError("Expected draws where the model has a density, found none.")
    weights = np.exp(values - largest)
    number = len(values)
    tail = tail_length(number)
    order = np.argsort(weights)
    cutoff = weights[order[-tail - 1]]
    excesses = weights[order[-tail:]] - cutoff
    if math.isfinite(pareto_khat(ratios).khat) and (excesses > 0.0).sum() > 4:
        shape, scale = pareto_fit(excesses[excesses > 0.0])
        if math.isfinite(shape):
            points = (np.arange(tail) + 0.5) / tail
            exponent = shape if abs(shape) > 1e-6 else 1e-6
            quantiles = scale / exponent * np.expm1(-exponent * np.log1p(-points))
            weights[order[-tail:]] = np.minimum(cutoff + quantiles, 1.0)
    return weights / weights.sum()
