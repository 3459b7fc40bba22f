"""Importance ratios p/q of a fitted guide: the ELBO, and Pareto k-hat.

Both draw theta from the guide q and need log p(theta) - log q(theta), on the flat unconstrained
space (so that log p includes the Jacobians), with log p over all rows of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ppl_ext.density import tempered
from ppl_ext.diagnostics.fit import check_temperature, chunk_sizes
from ppl_ext.diagnostics.importance import (
    ELBO,
    ELBO_SAMPLES,
    KHAT_SAMPLES,
    LEAST_KHAT_SAMPLES,
    LogRatios,
    ParetoKHat,
    evidence_lower_bound,
    log_ratios,
    pareto_khat,
)
from ppl_ext.options import check_count
from pyro_ext.diagnostics.fit import diagnostic_generator, draw, fitted_guide


def elbo(
    fit: Any,
    *,
    model: Callable[..., Any] | None = None,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    num_samples: int = ELBO_SAMPLES,
    likelihood_temperature: float | None = 1.0,
    draw_chunk: int | None = None,
    seed: int | None = None,
) -> ELBO:
    """Evidence lower bound E_q[log p(data, theta) - log q(theta)] of a fitted guide.

    A Monte Carlo estimate over draws of the guide q, on the full data also when the model draws
    minibatches. It is at most the log evidence, which it equals when q is the posterior, up to
    its standard error.

    Parameters
    ----------
    fit
        An engine that fits a guide (``elbo(engine)``), or an autoguide that Pyro's own ``SVI``
        has fitted (``elbo(guide, model=model, args=(x, y))``).
    model : callable, optional
        Model of an autoguide; not with an engine. Parameters without a prior are held at their
        present values.
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
    seed : int, optional
        Seed of the draws, which come from a generator of their own. Default: 0.

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
        fit, model, args, kwargs, num_samples, likelihood_temperature, draw_chunk, seed
    )
    return evidence_lower_bound(ratios)


def psis_khat(
    fit: Any,
    *,
    model: Callable[..., Any] | None = None,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    num_samples: int = KHAT_SAMPLES,
    likelihood_temperature: float | None = None,
    draw_chunk: int | None = None,
    seed: int | None = None,
) -> ParetoKHat:
    """Pareto k-hat of the importance ratios p/q of a fitted guide.

    A generalised Pareto distribution is fitted to the largest ratios over draws of
    the guide q; its shape k-hat tells how far q is from the posterior p where q has mass. Below
    ``threshold`` (0.7 with 2155 draws or more) q is good enough to be corrected by importance
    weights.

    Parameters
    ----------
    fit, model, args, kwargs, draw_chunk, seed
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
    check_count("num_samples", num_samples, least=LEAST_KHAT_SAMPLES)
    ratios = _log_ratios(
        fit, model, args, kwargs, num_samples, likelihood_temperature, draw_chunk, seed
    )
    return pareto_khat(ratios)


def _log_ratios(
    fit: Any,
    model: Callable[..., Any] | None,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    num_samples: int,
    likelihood_temperature: float | None,
    draw_chunk: int | None,
    seed: int | None,
) -> LogRatios:
    """log p - log q at draws of q."""
    fitted = fitted_guide(fit, model, args, kwargs)
    density, parameters, target, data = fitted
    temperature = check_temperature(target.likelihood_temperature, likelihood_temperature)
    sizes = chunk_sizes(num_samples, target.dim, draw_chunk)
    generator = diagnostic_generator(seed)
    log_p, log_q = [], []
    with torch.no_grad():
        for size in sizes:
            theta = draw(fitted, generator, size)
            log_q.append(density.log_prob(parameters, theta).double().cpu().numpy())
            prior, likelihood = target.full_log_prior_and_likelihood(theta, data)
            joint = tempered(prior.double(), likelihood.double(), temperature)
            log_p.append(joint.cpu().numpy())
    eps = torch.finfo(target.dtype).eps
    return log_ratios(np.concatenate(log_p), np.concatenate(log_q), eps)
