"""Importance ratios p/q of a fitted guide: the ELBO, and Pareto k-hat.

Both draw theta from the guide q and need log p(theta) - log q(theta), on the flat unconstrained
space (so that log p includes the Jacobians), with log p over all rows of the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from numpyro_ext.diagnostics.fit import (
    check_temperature,
    chunk_sizes,
    draws,
    fitted_guide,
)
from ppl_ext.density import tempered
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count

Array = NDArray[np.float64]

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
        found = f"k-hat is {self.khat:.2f} with {self.num_samples} draws"
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


class _LogRatios(NamedTuple):
    values: Array
    # Differences between ratios that rounding alone can make.
    rounding: float


def elbo(
    fit: Any,
    state: Any,
    *,
    model: Callable[..., Any] | None = None,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    num_samples: int = ELBO_SAMPLES,
    likelihood_temperature: float | None = 1.0,
    draw_chunk: int | None = None,
    rng_key: jax.Array | None = None,
) -> ELBO:
    """Evidence lower bound E_q[log p(data, theta) - log q(theta)] of a fitted guide.

    A Monte Carlo estimate over draws of the guide q, on the full data also when the model draws
    minibatches. It is at most the log evidence, which it equals when q is the posterior, up to
    its standard error.

    Parameters
    ----------
    fit
        An engine that fits a guide (``elbo(engine, state)``), or an autoguide that NumPyro's own
        ``SVI`` has fitted (``elbo(guide, params, model=model, args=(x, y))``).
    state
        State of the engine, or the result of its run; or the parameters of the autoguide as
        ``SVI.get_params`` gives them, or the result of ``SVI.run``.
    model : callable, optional
        Model of an autoguide; not with an engine. Parameters without a prior are held at the
        values that they have in ``state``.
    args : tuple, optional
    kwargs : mapping, optional
        The model's arguments, with all rows of the data. Default with an engine: the arguments
        that it saw last, which must hold all rows.
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
    rng_key : array, optional
        Key of the draws. Default: one derived from the engine's state, so that every call gives
        the same draws; ``jax.random.key(0)`` for an autoguide.

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
    check_count("num_samples", num_samples, least=2)
    ratios = _log_ratios(
        fit, state, model, args, kwargs, num_samples, likelihood_temperature, draw_chunk, rng_key
    ).values
    if np.isneginf(ratios).any():
        return ELBO(-math.inf, math.nan, num_samples)
    error = ratios.std(ddof=1) / math.sqrt(num_samples)
    return ELBO(float(ratios.mean()), float(error), num_samples)


def psis_khat(
    fit: Any,
    state: Any,
    *,
    model: Callable[..., Any] | None = None,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    num_samples: int = KHAT_SAMPLES,
    likelihood_temperature: float | None = None,
    draw_chunk: int | None = None,
    rng_key: jax.Array | None = None,
) -> ParetoKHat:
    """Pareto k-hat of the importance ratios p/q of a fitted guide.

    A generalised Pareto distribution is fitted (by ArviZ) to the largest ratios over draws of
    the guide q; its shape k-hat tells how far q is from the posterior p where q has mass. Below
    ``threshold`` (0.7 with 2155 draws or more) q is good enough to be corrected by importance
    weights.

    Parameters
    ----------
    fit, state, model, args, kwargs, draw_chunk, rng_key
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
    ImportError
        ArviZ is not installed.

    Notes
    -----
    k-hat sees what the draws see: a mode that q never visits leaves no trace in it. In high
    dimension it exceeds 0.7 also for guides whose means and standard deviations are close.

    References
    ----------
    Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling, Journal
    of Machine Learning Research 25(72). Yao, Vehtari, Simpson and Gelman (2018), Yes, but did it
    work? Evaluating variational inference, Algorithm 1.
    """
    check_count("num_samples", num_samples, least=LEAST_KHAT_SAMPLES)
    ratios = _log_ratios(
        fit, state, model, args, kwargs, num_samples, likelihood_temperature, draw_chunk, rng_key
    )
    return ParetoKHat(_pareto_shape(*ratios), num_samples)


def _log_ratios(
    fit: Any,
    state: Any,
    model: Callable[..., Any] | None,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    num_samples: int,
    likelihood_temperature: float | None,
    draw_chunk: int | None,
    rng_key: jax.Array | None,
) -> _LogRatios:
    """log p - log q at draws of q."""
    fitted = fitted_guide(fit, state, model, args, kwargs, rng_key)
    target, data = fitted.target, fitted.data
    temperature = check_temperature(target, likelihood_temperature)
    log_p, log_q = [], []
    for theta, log_density in draws(fitted, chunk_sizes(num_samples, target.dim, draw_chunk)):
        log_q.append(np.asarray(log_density, np.float64))
        parts = target.full_log_prior_and_likelihood(theta, data)
        prior, likelihood = (np.asarray(part, np.float64) for part in parts)
        log_p.append(tempered(prior, likelihood, temperature))
    values, against = np.concatenate(log_p), np.concatenate(log_q)
    ratios = values - against
    broken = int(np.isnan(ratios).sum() + np.isposinf(ratios).sum())
    if broken:
        raise ArgumentError(
            f"Expected finite log p - log q, found {broken} of {num_samples} draws where it is "
            "not. Look for NaN in the guide's parameters and in the data."
        )
    finite = [np.abs(part[np.isfinite(part)]) for part in (values, against)]
    largest = max(1.0, *(float(part.max(initial=0.0)) for part in finite))
    return _LogRatios(ratios, 4.0 * float(jnp.finfo(target.dtype).eps) * largest)


def _pareto_shape(ratios: Array, rounding: float) -> float:
    """k-hat of log ratios by the installed ArviZ."""
    import arviz

    if np.isneginf(ratios).all():
        raise ArgumentError(
            "Expected draws of the guide where the model has a density, found log p = -inf at all "
            f"{len(ratios)}. Look at the supports and at the data."
        )
    # The ratios that the fit would see: with no difference between them there is no tail.
    tail = math.ceil(min(len(ratios) / 5, 3 * math.sqrt(len(ratios)))) + 1
    largest = np.sort(ratios)[-tail:]
    if largest[-1] - largest[0] <= rounding:
        # Rounding hides the tail. That is no news where it is small; where log densities are so
        # large that it is not, nothing is known of the weights.
        return -math.inf if rounding < COARSE else math.inf
    if ratios.max() - ratios.min() <= NARROW:
        # A bounded density of ratios that ends steeply is fitted by shapes of 2 or 3, which say
        # nothing: no weight counts for more than a few others.
        return -math.inf
    # Ratios that underflow, and a fit that fails, announce themselves by warnings of NumPy.
    with np.errstate(all="ignore"):
        if hasattr(arviz, "psislw"):
            _, khat = arviz.psislw(ratios)
        else:
            # It is made for leave-one-out and takes log likelihoods: log weights negated.
            _, khat = import_module("arviz_stats.base").array_stats.psislw(-ratios)
    # ArviZ 1 has NaN where ArviZ 0.23 has infinity: when too few ratios are not negligible.
    return math.inf if math.isnan(khat) else float(khat)
