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
