"""Importance ratios p/q of a fitted guide, and the ELBO that they give.

Pareto k-hat of the same ratios is that of :mod:`ppl_ext.statistics.khat`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ppl_ext.diagnostics.fit import FittedGuide, check_temperature
from ppl_ext.statistics.khat import LogRatios, log_ratios
from ppl_ext.target.scores import tempered

#: Draws with which the two diagnostics are estimated unless told otherwise.
ELBO_SAMPLES = 1000
KHAT_SAMPLES = 4000


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


def evidence_lower_bound(ratios: LogRatios) -> ELBO:
    """The mean of log ratios; -inf where one of them is."""
    number = len(ratios.values)
    if np.isneginf(ratios.values).any():
        return ELBO(-math.inf, math.nan, number)
    error = ratios.values.std(ddof=1) / math.sqrt(number)
    return ELBO(float(ratios.values.mean()), float(error), number)
