r"""Kernelised Stein discrepancy between draws and a target that is known by its scores.

With the inverse multiquadric k(x, y) = (c^2 + |x - y|^2)^(-1/2) as base kernel and scores s, the
Stein kernel (Gorham and Mackey 2017, Proposition 2, summed over coordinates) is

    k0(x, y) = k s_x.s_y + s_x.grad_y k + s_y.grad_x k + trace(grad_x grad_y k),

which for b = c^2 + |x - y|^2 is

    k0(x, y) = b^(-1/2) s_x.s_y + b^(-3/2) [(s_x - s_y).(x - y) + D] - 3 b^(-5/2) |x - y|^2.

Its mean over independent x, y from the target is zero, and over pairs from any other
distribution it is the squared discrepancy. All terms come from inner products of positions and
scores, so no array is larger than (P, D) or one block of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.diagnostics.fit import (
    PASS_ALL_ROWS,
    check_temperature,
    chunk_sizes,
    draws,
    fitted_guide,
    state_of_engine,
    target_of_engine,
    target_of_model,
)
from numpyro_ext.kernels.distances import centre
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count

#: Draws of a guide unless told otherwise.
KSD_SAMPLES = 1000
#: Rows and columns of a block of pairs unless told otherwise.
BLOCK = 1024

STATISTICS = ("U", "V")

Metric = str | Array | np.ndarray | None


class SteinDiscrepancy(NamedTuple):
    """Kernelised Stein discrepancy (KSD).

    Parameters
    ----------
    value : float
        Root of ``squared``, with its sign: the U-statistic may fall below zero.
    squared : float
        Mean of the Stein kernel over pairs of draws: over all P^2 for "V", over the P (P - 1)
        pairs of different draws for "U".
    statistic : {"U", "V"}
    num_samples : int
        Number P of draws or particles.
    """

    value: float
    squared: float
    statistic: str
    num_samples: int


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
    Gorham and Mackey (2017), Measuring sample quality with kernels, Proposition 2 and Theorem 8.
    Liu, Lee and Jordan (2016), A kernelized Stein discrepancy for goodness-of-fit tests (U- and
    V-statistic).
    """
    positions, target, data, natural = _points(
        fit, state, target, model, args, kwargs, num_samples, draw_chunk, rng_key
    )
    statistic = natural if statistic is None else statistic
    # Before the scores, which may take long.
    _check_options(statistic, metric, scale, block, len(positions), target.dim)
    temperature = check_temperature(target, likelihood_temperature)
    ends = np.cumsum(chunk_sizes(len(positions), target.dim, draw_chunk)).tolist()
    parts = [positions[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    scores = jnp.concatenate([_score(target, data, part, temperature) for part in parts])
    return stein_discrepancy(
        positions, scores, statistic=statistic, metric=metric, scale=scale, block=block
    )


def stein_discrepancy(
    positions: Array | np.ndarray,
    scores: Array | np.ndarray,
    *,
    statistic: str = "V",
    metric: Metric = "whitened",
    scale: float = 1.0,
    block: int = BLOCK,
) -> SteinDiscrepancy:
    """Kernelised Stein discrepancy from positions and the target's scores at them.

    Parameters
    ----------
    positions, scores : arrays (P, D)
    statistic, metric, scale, block
        As in :func:`ksd`.

    Raises
    ------
    ArgumentError
        The shapes differ, an option is out of range, a position or score is not finite, or a
        coordinate does not vary and ``metric="whitened"``.
    """
    positions, scores = jnp.asarray(positions), jnp.asarray(scores)
    if positions.ndim != 2 or positions.shape != scores.shape:
        raise ArgumentError(
            f"Expected positions and scores of one shape (P, D), found {positions.shape} and "
            f"{scores.shape}."
        )
    num, dim = positions.shape
    _check_options(statistic, metric, scale, block, num, dim)
    scales = None if metric is None or isinstance(metric, str) else metric
    prepared = _prepare(positions, scores, scales, metric is not None and scales is None)
    for name, count in (("positions", prepared.bad_positions), ("scores", prepared.bad_scores)):
        if int(count):
            raise ArgumentError(
                f"Expected finite {name}, found {int(count)} of {num} points where they are not. "
                "Look for NaN in the fit and in the data."
            )
    if int(prepared.still):
        raise ArgumentError(
            "Expected draws that vary in every coordinate for metric='whitened', found "
            f"{int(prepared.still)} of {dim} coordinates that do not. Pass metric=None, or the "
            "scales of the coordinates."
        )
    total = 0.0
    for row in range(0, num, block):
        for column in range(row, num, block):
            sums = _block_sums(
                prepared.points,
                row,
                column,
                scale,
                (min(block, num - row), min(block, num - column)),
                row == column and statistic == "U",
            )
            # The kernel is symmetric: blocks below the diagonal are not evaluated.
            total += float(np.asarray(sums, np.float64).sum()) * (1 if row == column else 2)
    squared = total / (num * (num - 1 if statistic == "U" else num))
    if statistic == "V":
        # Not negative but for rounding.
        squared = max(squared, 0.0)
    value = math.copysign(math.sqrt(abs(squared)), squared)
    return SteinDiscrepancy(value, squared, statistic, num)


class _Points(NamedTuple):
    """Points (P, D) in the units of the metric, with what their pairs need."""

    positions: Array
    scores: Array
    norms: Array  # |x|^2
    products: Array  # x.s


class _Prepared(NamedTuple):
    points: _Points
    bad_positions: Array
    bad_scores: Array
    still: Array


@partial(jax.jit, static_argnums=3)
def _prepare(positions: Array, scores: Array, scales: Any, whiten: bool) -> _Prepared:
    """Points in the units of the metric, and counts of what is wrong with them."""
    bad_positions, bad_scores = (
        (~jnp.isfinite(values).all(1)).sum() for values in (positions, scores)
    )
    positions = centre(positions)
    still = jnp.zeros((), int)
    if whiten:
        scales = positions.std(0, ddof=1)
        still = (scales == 0).sum()
    if scales is not None:
        scales = jnp.asarray(scales, positions.dtype)
        positions, scores = positions / scales, scores * scales
    points = _Points(positions, scores, (positions**2).sum(1), (positions * scores).sum(1))
    return _Prepared(points, bad_positions, bad_scores, still)


@partial(jax.jit, static_argnums=(4, 5))
def _block_sums(
    points: _Points,
    row: int,
    column: int,
    scale: float,
    sizes: tuple[int, int],
    without_diagonal: bool,
) -> Array:
    """Sums over columns of one block of the Stein kernel."""
    rows, columns = (
        _Points(*(lax.dynamic_slice_in_dim(array, start, size) for array in points))
        for start, size in zip((row, column), sizes, strict=True)
    )
    kernel = _stein_kernel(rows, columns, scale)
    if without_diagonal:
        kernel = jnp.fill_diagonal(kernel, 0.0, inplace=False)
    return kernel.sum(1)


def _stein_kernel(rows: _Points, columns: _Points, scale: float) -> Array:
    """k0 at every pair of a row and a column."""
    (x, s, x_norms, x_products), (y, t, y_norms, y_products) = rows, columns
    # Accelerators multiply in reduced precision unless told otherwise, which the
    # cancellation does not forgive.
    inner = partial(jnp.matmul, precision="highest")
    totals = x_norms[:, None] + y_norms
    squared = totals - 2.0 * inner(x, y.T)
    rounding = 8.0 * jnp.finfo(squared.dtype).eps
    squared = jnp.where(squared <= rounding * totals, 0.0, squared)
    base = scale**2 + squared
    kernel = base**-0.5
    slope = kernel / base
    # (s_x - s_y).(x - y)
    differences = x_products[:, None] + y_products - inner(s, y.T) - inner(x, t.T)
    dim = x.shape[1]
    return kernel * inner(s, t.T) + slope * (differences + dim) - 3.0 * slope / base * squared


def _score(target: LogDensity, data: Data, positions: Array, temperature: float) -> Array:
    if temperature == target.likelihood_temperature:
        return target.full_score(positions, data).score
    return target.full_score_parts(positions, data).score(temperature).score


def _points(
    fit: Any,
    state: Any,
    target: LogDensity | None,
    model: Callable[..., Any] | None,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    num_samples: int | None,
    draw_chunk: int | None,
    rng_key: Array | None,
) -> tuple[Array, LogDensity, Data, str]:
    """Flat points, their target and data, and the statistic that suits them."""
    if isinstance(fit, (Array, np.ndarray)):
        _refuse_num_samples(num_samples, len(fit))
        if state is not None:
            raise ArgumentError(
                f"Expected no state with positions, found {type(state).__name__}. Pass target=... "
                "or model=..., and args=(...)."
            )
        if (target is None) == (model is None):
            raise ArgumentError(
                "Expected positions with either target=LogDensity(...) or model=..., found "
                f"{'neither' if target is None else 'both'}."
            )
        if target is None:
            assert model is not None
            target, data = target_of_model(model, args, kwargs)
        else:
            data = target.bind(*(args or ()), **dict(kwargs or {}))
            target.require_all_rows(data, PASS_ALL_ROWS)
        positions = jnp.asarray(fit, target.dtype)
        if positions.ndim != 2 or positions.shape[1] != target.dim:
            raise ArgumentError(
                f"Expected flat positions of shape (P, {target.dim}), found "
                f"{positions.shape}. LogDensity.unconstrain makes them from sites."
            )
        return positions, target, data, "V"
    if target is not None:
        raise ArgumentError(
            f"Expected target with positions only, found it with {type(fit).__name__}. Leave it "
            "out with an engine, and give an autoguide model=... instead."
        )
    if hasattr(fit, "target") and hasattr(fit, "particles"):
        target, data = target_of_engine(fit, model, args, kwargs)
        positions = fit.particles(state_of_engine(fit, state))
        _refuse_num_samples(num_samples, len(positions))
        return positions, target, data, "V"
    fitted = fitted_guide(fit, state, model, args, kwargs, rng_key)
    num_samples = KSD_SAMPLES if num_samples is None else num_samples
    check_count("num_samples", num_samples)
    sizes = chunk_sizes(num_samples, fitted.target.dim, draw_chunk)
    positions = jnp.concatenate([theta for theta, _ in draws(fitted, sizes)])
    return positions, fitted.target, fitted.data, "U"


def _refuse_num_samples(num_samples: int | None, num: int) -> None:
    if num_samples not in (None, num):
        raise ArgumentError(
            f"Expected num_samples to be None or the number of points, {num}, found "
            f"{num_samples}: particles and positions are taken as they are."
        )


def _check_options(
    statistic: str, metric: Metric, scale: float, block: int, num: int, dim: int
) -> None:
    if statistic not in STATISTICS:
        raise ArgumentError(f"Expected statistic to be one of {STATISTICS}, found {statistic!r}.")
    if num < 2 and statistic == "U":
        raise ArgumentError(
            f"Expected at least 2 points for the U-statistic, found {num}. Use statistic='V'."
        )
    if num < 2 and isinstance(metric, str):
        raise ArgumentError(
            f"Expected at least 2 points for metric='whitened', found {num}. Pass metric=None, or "
            "the scales of the coordinates."
        )
    if not (isinstance(scale, (int, float)) and math.isfinite(scale) and scale > 0):
        raise ArgumentError(f"Expected a positive finite scale, found {scale!r}.")
    check_count("block", block)
    if metric is None or (isinstance(metric, str) and metric == "whitened"):
        return
    if not isinstance(metric, (Array, np.ndarray)):
        raise ArgumentError(
            "Expected metric to be 'whitened', None or an array of the coordinates' scales, found "
            f"{metric!r}."
        )
    scales = np.asarray(metric)
    if scales.shape != (dim,) or not (np.isfinite(scales) & (scales > 0)).all():
        raise ArgumentError(
            f"Expected {dim} positive finite scales as metric, found shape {scales.shape}"
            f"{'' if scales.shape != (dim,) else ' with others'}."
        )
