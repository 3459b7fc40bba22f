"""Importance ratios p/q of a fitted guide: the ELBO, and Pareto k-hat, from log densities.

References
----------
Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling, Journal of
Machine Learning Research 25(72), `arXiv:1507.02646 <https://arxiv.org/abs/1507.02646>`_. Zhang and
Stephens (2009), A new and efficient estimation method for the generalized Pareto distribution,
`doi:10.1198/tech.2009.08017 <https://doi.org/10.1198/tech.2009.08017>`_.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ppl_ext.diagnostics.fit import FittedGuide, check_temperature
from ppl_ext.errors import ArgumentError
from ppl_ext.statistics.pareto import pareto_fit, pareto_shape, tail_length
from ppl_ext.target.scores import tempered

#: Draws with which the two diagnostics are estimated unless told otherwise.
ELBO_SAMPLES = 1000
KHAT_SAMPLES = 4000
#: With fewer draws the tail has fewer than the five ratios that a fit needs.
LEAST_KHAT_SAMPLES = 25
#: Nats of rounding in log densities up to which equal log ratios count as equal.
COARSE = 0.1
#: Nats that the largest of all log ratios may be above the smallest for their weights to count as
#: nearly equal: none is then more than e times another.
NARROW = 1.0


ELBO_DOCUMENTATION = """
    A Monte Carlo estimate over draws of the guide q, on the full data also when the model draws
    minibatches. It is at most the log evidence, which it equals when q is the posterior, up to
    its standard error.

    Parameters
    ----------
    fit
        An engine that fits a guide (``$engine_call``), or an autoguide that $host's own ``SVI``
        has fitted (``$guide_call``).
    $state
    model : callable, optional
        Model of an autoguide; not with an engine. Parameters without a prior are held at
        $held.
    args : tuple, optional
    kwargs : mapping, optional
        The model's arguments, with all rows of the data. Default with an engine: the arguments
        that it saw last, which must hold all rows.
    batches : iterable, optional
        All rows in place of ``args``, as batches of a loader that is passed over again and again.
    num_samples : int
        Draws of the guide.
    likelihood_temperature : float or None
        The log likelihood is divided by this. Default: 1, the model as it is, whatever the
        engine was fitted to, because only that is a bound on the log evidence. None takes the
        temperature of the engine.
    draw_chunk : int, optional
        At most this many draws are evaluated at once, which bounds memory; each chunk is drawn
        when its turn comes, so that another chunk gives other draws. Default: 100, fewer in
        very high dimension.
    $randomness

    Returns
    -------
    ELBO
        ``value``, ``standard_error`` and ``num_samples``.

    Raises
    ------
    ArgumentError
        ``fit`` has no guide with a flat log density, the arguments hold only some rows of a
        plate, or log p - log q is not a number at some draw.

    Notes
    -----
    Normalising constants are all included. A draw at which log p is -inf makes the value -inf.
"""

KHAT_DOCUMENTATION = """
    A generalised Pareto distribution is fitted to the largest ratios over draws of
    the guide q; its shape k-hat tells how far q is from the posterior p where q has mass. Below
    ``threshold`` (0.7 with 2155 draws or more) q is good enough to be corrected by importance
    weights.

    Parameters
    ----------
    $as_in_elbo
        As in :func:`elbo`.
    num_samples : int
        Draws of the guide, at least 25.
    likelihood_temperature : float or None
        The log likelihood is divided by this. Default: the temperature that the engine was
        fitted with, because the question is how well the guide fits its target; 1 for an
        autoguide.

    Returns
    -------
    ParetoKHat
        ``khat`` and ``num_samples``, with the properties ``threshold``, ``reliable`` and
        ``message``.

    Raises
    ------
    ArgumentError
        As in :func:`elbo`, or every draw has log p = -inf.

    Notes
    -----
    k-hat sees what the draws see: a mode that q never visits leaves no trace in it. In high
    dimension it exceeds 0.7 also for guides whose means and standard deviations are close.

    References
    ----------
    Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling, Journal
    of Machine Learning Research 25(72), `arXiv:1507.02646 <https://arxiv.org/abs/1507.02646>`_.
    Yao, Vehtari, Simpson and Gelman (2018), Yes, but did it work? Evaluating variational
    inference, Algorithm 1, `arXiv:1802.02538 <https://arxiv.org/abs/1802.02538>`_.
"""


class ELBO(NamedTuple):
    """Evidence lower bound, in nats.

    Parameters
    ----------
    value : float
        Mean of log p - log q over draws of q.
    standard_error : float
        Monte Carlo standard error of ``value``; 0 to rounding when q is the posterior.
    num_samples : int
    """

    value: float
    standard_error: float
    num_samples: int


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


def ratios_at_draws(
    fitted: FittedGuide,
    num_samples: int,
    likelihood_temperature: float | None,
    draw_chunk: int | None,
) -> LogRatios:
    """log p - log q at draws of a guide q, with log p over all rows and tempered in float64.

    Raises
    ------
    ArgumentError
        One is not a number, or +inf.
    """
    temperature = check_temperature(fitted.target.likelihood_temperature, likelihood_temperature)
    log_q, prior, likelihood = (
        each.astype(np.float64) for each in fitted.at_draws(num_samples, draw_chunk, _log_densities)
    )
    return log_ratios(tempered(prior, likelihood, temperature), log_q, fitted.target.epsilon)


def _log_densities(
    density: Any, parameters: Any, target: Any, data: Any, theta: Any
) -> tuple[Any, ...]:
    parts = target.full_log_prior_and_likelihood(theta, data)
    return density.log_prob(parameters, theta), *parts


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
    broken = int(np.isnan(ratios).sum() + np.isposinf(ratios).sum())
    if broken:
        raise ArgumentError(
            f"Expected finite log p - log q, found {broken} of {len(ratios)} draws where it is "
            "not. Look for NaN in the guide's parameters and in the data."
        )
    finite = [np.abs(part[np.isfinite(part)]) for part in (log_p, log_q)]
    largest = max(1.0, *(float(part.max(initial=0.0)) for part in finite))
    return LogRatios(ratios, 4.0 * eps * largest)


def evidence_lower_bound(ratios: LogRatios) -> ELBO:
    """The mean of log ratios; -inf where one of them is."""
    number = len(ratios.values)
    if np.isneginf(ratios.values).any():
        return ELBO(-math.inf, math.nan, number)
    error = ratios.values.std(ddof=1) / math.sqrt(number)
    return ELBO(float(ratios.values.mean()), float(error), number)


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
