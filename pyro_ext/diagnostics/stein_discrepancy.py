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
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count
from pyro_ext.density import Data, LogDensity
from pyro_ext.diagnostics.fit import (
    PASS_ALL_ROWS,
    check_temperature,
    chunk_sizes,
    diagnostic_generator,
    draw,
    fitted_guide,
    target_of_engine,
    target_of_model,
)
from pyro_ext.kernels.distances import centre

#: Draws of a guide unless told otherwise.
KSD_SAMPLES = 1000
#: Rows and columns of a block of pairs unless told otherwise.
BLOCK = 1024

STATISTICS = ("U", "V")

Metric = str | Tensor | np.ndarray | None


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
    seed: int | None = None,
) -> SteinDiscrepancy:
    """Kernelised Stein discrepancy between a fit and its target.

    It needs draws and the target's scores at them, on the full data, but no normalising constant
    and no density of the fit, so it takes particles and guides alike. Zero means that the two
    agree.

    Parameters
    ----------
    fit
        An engine with particles, which are taken as they are; an engine that fits a guide; an
        autoguide fitted by Pyro's ``SVI``, with ``model`` and ``args``; or flat unconstrained
        positions (P, D), with ``target`` or ``model``, and ``args``.
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
    metric : "whitened", tensor (D,) or None
        Scales of the coordinates: positions are divided by them and scores multiplied, as if the
        model were written in these units. "whitened" takes the standard deviations of the
        draws, a tensor gives the scales, and None leaves the coordinates as they are. See the
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
    seed : int, optional
        Seed of the draws of a guide, which come from a generator of their own. Default: 0.

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
    several fits of one target, give all of them the same* ``metric``: a tensor of posterior
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
        fit, target, model, args, kwargs, num_samples, draw_chunk, seed
    )
    statistic = natural if statistic is None else statistic
    # Before the scores, which may take long.
    _check_options(statistic, metric, scale, block, len(positions), target.dim)
    temperature = check_temperature(target, likelihood_temperature)
    sizes = chunk_sizes(len(positions), target.dim, draw_chunk)
    scores = torch.cat([_score(target, data, part, temperature) for part in positions.split(sizes)])
    return stein_discrepancy(
        positions, scores, statistic=statistic, metric=metric, scale=scale, block=block
    )


@torch.no_grad()
def stein_discrepancy(
    positions: Tensor,
    scores: Tensor,
    *,
    statistic: str = "V",
    metric: Metric = "whitened",
    scale: float = 1.0,
    block: int = BLOCK,
) -> SteinDiscrepancy:
    """Kernelised Stein discrepancy from positions and the target's scores at them.

    Parameters
    ----------
    positions, scores : tensors (P, D)
    statistic, metric, scale, block
        As in :func:`ksd`.

    Raises
    ------
    ArgumentError
        The shapes differ, an option is out of range, a position or score is not finite, or a
        coordinate does not vary and ``metric="whitened"``.
    """
    if positions.dim() != 2 or positions.shape != scores.shape:
        raise ArgumentError(
            f"Expected positions and scores of one shape (P, D), found {tuple(positions.shape)} "
            f"and {tuple(scores.shape)}."
        )
    num, dim = positions.shape
    _check_options(statistic, metric, scale, block, num, dim)
    for name, values in (("positions", positions), ("scores", scores)):
        broken = num - int(values.isfinite().all(1).sum())
        if broken:
            raise ArgumentError(
                f"Expected finite {name}, found {broken} of {num} points where they are not. Look "
                "for NaN in the fit and in the data."
            )
    positions = centre(positions)
    if metric is not None:
        scales = _scales(metric, positions)
        positions, scores = positions / scales, scores * scales
    norms, products = positions.square().sum(1), (positions * scores).sum(1)
    slices = [slice(start, start + block) for start in range(0, num, block)]
    total = 0.0
    for number, rows in enumerate(slices):
        for columns in slices[number:]:
            kernel = _stein_kernel(positions, scores, norms, products, rows, columns, scale)
            if rows == columns and statistic == "U":
                kernel.fill_diagonal_(0.0)
            # The kernel is symmetric: blocks below the diagonal are not evaluated.
            total += float(kernel.sum(dtype=torch.float64)) * (1 if rows == columns else 2)
    squared = total / (num * (num - 1 if statistic == "U" else num))
    if statistic == "V":
        # Not negative but for rounding.
        squared = max(squared, 0.0)
    value = math.copysign(math.sqrt(abs(squared)), squared)
    return SteinDiscrepancy(value, squared, statistic, num)


def _stein_kernel(
    positions: Tensor,
    scores: Tensor,
    norms: Tensor,
    products: Tensor,
    rows: slice,
    columns: slice,
    scale: float,
) -> Tensor:
    """k0 at one block of pairs; ``norms`` are |x|^2 and ``products`` x.s of every point."""
    x, y, s, t = positions[rows], positions[columns], scores[rows], scores[columns]
    totals = norms[rows].unsqueeze(1) + norms[columns]
    squared = torch.add(totals, x @ y.T, alpha=-2.0)
    rounding = 8.0 * torch.finfo(squared.dtype).eps
    squared = squared.masked_fill(squared <= rounding * totals, 0.0)
    base = scale**2 + squared
    kernel = base.rsqrt()
    slope = kernel / base
    # (s_x - s_y).(x - y)
    differences = products[rows].unsqueeze(1) + products[columns] - s @ y.T - x @ t.T
    return (
        kernel * (s @ t.T)
        + slope * (differences + positions.shape[1])
        - 3.0 * slope / base * squared
    )


def _score(target: LogDensity, data: Data, positions: Tensor, temperature: float) -> Tensor:
    if temperature == target.likelihood_temperature:
        return target.full_score(positions, data).score
    return target.full_score_parts(positions, data).score(temperature).score


def _points(
    fit: Any,
    target: LogDensity | None,
    model: Callable[..., Any] | None,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    num_samples: int | None,
    draw_chunk: int | None,
    seed: int | None,
) -> tuple[Tensor, LogDensity, Data, str]:
    """Flat points, their target and data, and the statistic that suits them."""
    if isinstance(fit, (Tensor, np.ndarray)):
        _refuse_num_samples(num_samples, len(fit))
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
        positions = torch.as_tensor(fit, dtype=target.dtype, device=target.device).detach()
        if positions.dim() != 2 or positions.shape[1] != target.dim:
            raise ArgumentError(
                f"Expected flat positions of shape (P, {target.dim}), found "
                f"{tuple(positions.shape)}. LogDensity.unconstrain makes them from sites."
            )
        return positions, target, data, "V"
    if target is not None:
        raise ArgumentError(
            f"Expected target with positions only, found it with {type(fit).__name__}. Leave it "
            "out with an engine, and give an autoguide model=... instead."
        )
    if hasattr(fit, "target") and hasattr(fit, "particles"):
        target, data = target_of_engine(fit, model, args, kwargs)
        positions = fit.particles
        _refuse_num_samples(num_samples, len(positions))
        return positions, target, data, "V"
    fitted = fitted_guide(fit, model, args, kwargs)
    num_samples = KSD_SAMPLES if num_samples is None else num_samples
    check_count("num_samples", num_samples)
    generator = diagnostic_generator(seed)
    sizes = chunk_sizes(num_samples, fitted.target.dim, draw_chunk)
    positions = torch.cat([draw(fitted, generator, size) for size in sizes])
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
    if not isinstance(metric, (Tensor, np.ndarray)):
        raise ArgumentError(
            "Expected metric to be 'whitened', None or a tensor of the coordinates' scales, found "
            f"{metric!r}."
        )
    scales = torch.as_tensor(metric)
    if tuple(scales.shape) != (dim,) or not bool((scales.isfinite() & (scales > 0)).all()):
        raise ArgumentError(
            f"Expected {dim} positive finite scales as metric, found shape {tuple(scales.shape)}"
            f"{'' if tuple(scales.shape) != (dim,) else ' with others'}."
        )


def _scales(metric: Metric, centred: Tensor) -> Tensor:
    if isinstance(metric, str):
        scales = centred.std(0)
        still = int((scales == 0).sum())
        if still:
            raise ArgumentError(
                "Expected draws that vary in every coordinate for metric='whitened', found "
                f"{still} of {len(scales)} coordinates that do not. Pass metric=None, or the "
                "scales of the coordinates."
            )
        return scales
    return torch.as_tensor(metric, dtype=centred.dtype, device=centred.device)
