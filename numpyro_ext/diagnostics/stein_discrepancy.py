"""Kernelised Stein discrepancy between a fit and its target, see
:mod:`ppl_ext.diagnostics.stein_discrepancy`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.diagnostics.fit import (
    at_draws,
    fitted_guide,
    state_of_engine,
    target_of_engine,
    target_of_model,
)
from numpyro_ext.guides.flat_density import FlatDensity, Parameters
from ppl_ext.density import tempered
from ppl_ext.diagnostics.fit import PASS_ALL_ROWS, check_temperature, chunk_sizes
from ppl_ext.diagnostics.stein_discrepancy import (
    BLOCK,
    KSD_SAMPLES,
    SteinDiscrepancy,
    check_no_target,
    check_num_samples,
    check_options,
    check_positions,
    check_source_of_positions,
    stein_discrepancy,
)
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count

Metric = str | Array | np.ndarray | None


def ksd(
    fit: Any,
    state: Any = None,
    *,
    target: LogDensity | None = None,
    model: Callable[..., Any] | None = None,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    num_samples: int | None = None,
    statistic: str | None = None,
    metric: Metric = "whitened",
    scale: float = 1.0,
    likelihood_temperature: float | None = None,
    draw_chunk: int | None = None,
    block: int = BLOCK,
    rng_key: Array | None = None,
) -> SteinDiscrepancy:
    """Kernelised Stein discrepancy between a fit and its target.

    It needs draws and the target's scores at them, on the full data, but no normalising constant
    and no density of the fit, so it takes particles and guides alike. Zero means that the two
    agree.

    Parameters
    ----------
    fit
        An engine with particles, which are taken as they are; an engine that fits a guide; an
        autoguide fitted by NumPyro's ``SVI``, with ``model`` and ``args``; or flat unconstrained
        positions (P, D), with ``target`` or ``model``, and ``args``.
    state
        State of the engine, or the result of its run; or the parameters of the autoguide as
        ``SVI.get_params`` gives them, or the result of ``SVI.run``. Not with positions.
    target : LogDensity, optional
        Target of positions that are given.
    model : callable, optional
        Model of an autoguide or of positions; not with an engine.
    args : tuple, optional
    kwargs : mapping, optional
        The model's arguments, with all rows of the data. Default with an engine: the arguments
        that it saw last, which must hold all rows.
    num_samples : int, optional
        Draws of a guide. Default: 1000. Particles and positions are not drawn.
    statistic : {"U", "V"}, optional
        "V" is the discrepancy of the P points themselves, with every pair of them; "U" leaves
        out the pairs of a point with itself and estimates the squared discrepancy of the
        distribution that independent draws come from without bias. Default: "U" for a guide,
        "V" for particles and positions.
    metric : "whitened", array (D,) or None
        Scales of the coordinates: positions are divided by them and scores multiplied, as if the
        model were written in these units. "whitened" takes the standard deviations of the
        draws, an array gives the scales, and None leaves the coordinates as they are. See the
        notes.
    scale : float
        Length c of the kernel, in units of the scaled coordinates.
    likelihood_temperature : float, optional
        The log likelihood is divided by this. Default: the temperature of the target.
    draw_chunk : int, optional
        Scores of at most this many draws are evaluated at once. Default: 100, fewer in very high
        dimension.
    block : int
        Pairs are evaluated in blocks of this many rows and columns.
    rng_key : array, optional
        Key of the draws of a guide. Default: one derived from the engine's state, so that every
        call gives the same draws; ``jax.random.key(0)`` for an autoguide.

    Returns
    -------
    SteinDiscrepancy
        ``value``, ``squared``, ``statistic`` and ``num_samples``.

    Raises
    ------
    ArgumentError
        An option is out of range, the arguments hold only some rows of a plate, a score is not
        finite, or a coordinate does not vary and ``metric="whitened"``.

    Notes
    -----
    Without a metric the value has units of length^(-3/2). A kernel of length 1 then sees little
    of draws that spread over 0.03: in a Normal of that scale, with 1000 draws, the noise of the
    mean score hides a standard deviation that is off by a quarter, which in units of the draws
    is plain. So the default is "whitened", which has no units and does not change when a
    coordinate is rescaled. But then each fit has a kernel of its own, and a shift counts in
    units of the fit's spread, so that a fit that is far too narrow hides some of it. *To compare
    several fits of one target, give all of them the same* ``metric``: an array of posterior
    standard deviations, from the fit that is trusted most, or None.

    The V-statistic of P independent draws of the target itself is not zero but about
    (|s|^2/c + D/c^3) / P on average, squared. As that grows with the scores, which are small for
    draws that are too narrow, it can fall when draws shrink, as long as P is small beside D. The
    U-statistic has no such term. Compare V-statistics at equal P.

    A discrepancy of scores is nearly blind to the weights of modes that lie far apart.

    References
    ----------
    Gorham and Mackey (2017), Measuring sample quality with kernels, Proposition 2 and Theorem 8,
    `arXiv:1703.01717 <https://arxiv.org/abs/1703.01717>`_. Liu, Lee and Jordan (2016), A kernelized
    Stein discrepancy for goodness-of-fit tests (U- and V-statistic),
    `arXiv:1602.03253 <https://arxiv.org/abs/1602.03253>`_.
    """
    discrepancy = partial(stein_discrepancy, metric=metric, scale=scale, block=block)
    if isinstance(fit, (Array, np.ndarray)) or hasattr(fit, "particles"):
        positions, target, data = _given_positions(
            fit, state, target, model, args, kwargs, num_samples
        )
        statistic = "V" if statistic is None else statistic
        # Before the scores, which may take long.
        check_options(statistic, metric, scale, block, len(positions), target.dim)
        temperature = check_temperature(target.likelihood_temperature, likelihood_temperature)
        scores = _scores(target, data, positions, temperature, draw_chunk)
        return discrepancy(positions, scores, statistic=statistic)
    check_no_target(target, fit)
    fitted = fitted_guide(fit, state, model, args, kwargs, rng_key)
    statistic = "U" if statistic is None else statistic
    number = KSD_SAMPLES if num_samples is None else num_samples
    check_count("num_samples", number)
    check_options(statistic, metric, scale, block, number, fitted.target.dim)
    own = fitted.target.likelihood_temperature
    temperature = check_temperature(own, likelihood_temperature)
    evaluate = _drawn_with_score if temperature == own else _drawn_with_parts
    drawn, *parts = at_draws(fitted, number, draw_chunk, evaluate)
    return discrepancy(drawn, _tempered(parts, temperature), statistic=statistic)


def _drawn_with_score(
    density: FlatDensity, parameters: Parameters, target: LogDensity, data: Data, theta: Array
) -> tuple[Array, ...]:
    return theta, target.full_score(theta, data).score


def _drawn_with_parts(
    density: FlatDensity, parameters: Parameters, target: LogDensity, data: Data, theta: Array
) -> tuple[Array, ...]:
    parts = target.full_score_parts(theta, data)
    return theta, parts.prior, parts.likelihood


def _tempered(parts: list[np.ndarray], temperature: float) -> np.ndarray:
    """The score, of itself or of its parts for prior and likelihood."""
    prior, *likelihood = parts
    return tempered(prior, likelihood[0], temperature) if likelihood else prior


def _scores(
    target: LogDensity, data: Data, positions: Array, temperature: float, draw_chunk: int | None
) -> np.ndarray:
    """Scores at given positions, in chunks of one size: the last is filled up with its last."""
    sizes = chunk_sizes(len(positions), target.dim, draw_chunk)
    given: Any = np.asarray(positions)
    found = []
    for chunk in range(len(sizes)):
        places = np.minimum(np.arange(chunk * sizes[0], (chunk + 1) * sizes[0]), len(given) - 1)
        if temperature == target.likelihood_temperature:
            parts = [target.full_score(given[places], data).score]
        else:
            split = target.full_score_parts(given[places], data)
            parts = [split.prior, split.likelihood]
        found.append(_tempered([np.asarray(part) for part in parts], temperature))
    return np.concatenate(found)[: len(given)]


def _given_positions(
    fit: Any,
    state: Any,
    target: LogDensity | None,
    model: Callable[..., Any] | None,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    num_samples: int | None,
) -> tuple[Array, LogDensity, Data]:
    """Particles of an engine, or positions as they are, with their target and data."""
    if not isinstance(fit, (Array, np.ndarray)):
        check_no_target(target, fit)
        target, data = target_of_engine(fit, model, args, kwargs)
        positions = fit.particles(state_of_engine(fit, state))
        check_num_samples(num_samples, len(positions))
        return positions, target, data
    check_num_samples(num_samples, len(fit))
    if state is not None:
        raise ArgumentError(
            f"Expected no state with positions, found {type(state).__name__}. Pass target=... "
            "or model=..., and args=(...)."
        )
    check_source_of_positions(target, model)
    if target is None:
        assert model is not None
        target, data = target_of_model(model, args, kwargs)
    else:
        data = target.bind(*(args or ()), **dict(kwargs or {}))
        target.require_all_rows(data, PASS_ALL_ROWS)
    positions = jnp.asarray(fit, target.dtype)
    check_positions(positions.shape, target.dim)
    return positions, target, data
