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
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count, check_number

#: Draws of a guide unless told otherwise.
KSD_SAMPLES = 1000
#: Most rows and columns of a block of pairs unless told otherwise.
BLOCK = 1024

STATISTICS = ("U", "V")


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


def stein_discrepancy(
    positions: Float[Any, "P D"],
    scores: Float[Any, "P D"],
    *,
    statistic: str = "V",
    metric: Any = "whitened",
    scale: float = 1.0,
    block: int = BLOCK,
) -> SteinDiscrepancy:
    """Kernelised Stein discrepancy from positions and the target's scores at them.

    It is computed in float64 by NumPy, whatever the arrays are.

    Parameters
    ----------
    positions, scores : arrays (P, D)
    statistic, metric, scale, block
        As in ``ksd``.

    Raises
    ------
    ArgumentError
        The shapes differ, an option is out of range, a position or score is not finite, or a
        coordinate does not vary and ``metric="whitened"``.
    """
    positions, scores = _as_numpy(positions), _as_numpy(scores)
    if positions.ndim != 2 or positions.shape != scores.shape:
        raise ArgumentError(
            f"Expected positions and scores of one shape (P, D), found {positions.shape} and "
            f"{scores.shape}."
        )
    num, dim = positions.shape
    check_options(statistic, metric, scale, block, num, dim)
    for name, values in (("positions", positions), ("scores", scores)):
        broken = num - int(np.isfinite(values).all(1).sum())
        if broken:
            raise ArgumentError(
                f"Expected finite {name}, found {broken} of {num} points where they are not. Look "
                "for NaN in the fit and in the data."
            )
    # Distances are taken after centring: |x|^2 + |y|^2 - 2 x.y cancels far from the origin.
    positions = positions - positions.mean(0)
    if metric is not None:
        scales = positions.std(0, ddof=1) if isinstance(metric, str) else _as_numpy(metric)
        still = int((scales == 0).sum())
        if still:
            raise ArgumentError(
                "Expected draws that vary in every coordinate for metric='whitened', found "
                f"{still} of {dim} coordinates that do not. Pass metric=None, or the scales of the "
                "coordinates."
            )
        positions, scores = positions / scales, scores * scales
    blocks = [slice(start, start + block) for start in range(0, num, block)]
    total = 0.0
    for number, rows in enumerate(blocks):
        for columns in blocks[number:]:
            kernel = _stein_kernel(
                positions[rows], scores[rows], positions[columns], scores[columns], scale
            )
            if rows == columns and statistic == "U":
                np.fill_diagonal(kernel, 0.0)
            # The kernel is symmetric: blocks below the diagonal are not evaluated.
            total += float(kernel.sum()) * (1 if rows == columns else 2)
    squared = total / (num * (num - 1 if statistic == "U" else num))
    if statistic == "V":
        # Not negative but for rounding.
        squared = max(squared, 0.0)
    value = math.copysign(math.sqrt(abs(squared)), squared)
    return SteinDiscrepancy(value, squared, statistic, num)


def _as_numpy(values: Any) -> Float[np.ndarray, ...]:
    on_host = values.detach().cpu() if hasattr(values, "detach") else values
    return np.asarray(on_host, np.float64)


def _stein_kernel(
    x: Float[np.ndarray, "R D"],
    s: Float[np.ndarray, "R D"],
    y: Float[np.ndarray, "C D"],
    t: Float[np.ndarray, "C D"],
    scale: float,
) -> Float[np.ndarray, "R C"]:
    """k0 at every pair of a row x, with score s, and a column y, with score t."""
    totals = (x**2).sum(1)[:, None] + (y**2).sum(1)
    squared = totals - 2.0 * (x @ y.T)
    rounding = 8.0 * np.finfo(np.float64).eps
    squared[squared <= rounding * totals] = 0.0
    base = scale**2 + squared
    kernel = 1.0 / np.sqrt(base)
    slope = kernel / base
    # (s_x - s_y).(x - y)
    differences = (x * s).sum(1)[:, None] + (y * t).sum(1) - s @ y.T - x @ t.T
    found: np.ndarray = kernel * (s @ t.T)
    found += slope * (differences + x.shape[1])
    found -= 3.0 * slope / base * squared
    return found


def check_positions(shape: tuple[int, ...], dim: int) -> None:
    """See that positions are (P, D) with the target's D."""
    if len(shape) != 2 or shape[1] != dim:
        raise ArgumentError(
            f"Expected flat positions of shape (P, {dim}), found {shape}. LogDensity.unconstrain "
            "makes them from sites."
        )


def check_num_samples(num_samples: int | None, num: int) -> None:
    """Refuse a number of draws where the points are given."""
    if num_samples not in (None, num):
        raise ArgumentError(
            f"Expected num_samples to be None or the number of points, {num}, found "
            f"{num_samples}: particles and positions are taken as they are."
        )


def check_source_of_positions(target: Any, model: Any) -> None:
    """See that positions come with a target or a model, not both."""
    if (target is None) == (model is None):
        raise ArgumentError(
            "Expected positions with either target=LogDensity(...) or model=..., found "
            f"{'neither' if target is None else 'both'}."
        )


def check_no_target(target: Any, fit: Any) -> None:
    """Refuse a target for a fit that has one."""
    if target is not None:
        raise ArgumentError(
            f"Expected target with positions only, found it with {type(fit).__name__}. Leave it "
            "out with an engine, and give an autoguide model=... instead."
        )


def check_options(
    statistic: str, metric: Any, scale: float, block: int, num: int, dim: int
) -> None:
    """See that the options fit the points, before the scores are computed, which may take long."""
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
    check_number("scale", scale)
    check_count("block", block)
    if metric is None or (isinstance(metric, str) and metric == "whitened"):
        return
    if isinstance(metric, str) or not hasattr(metric, "shape"):
        raise ArgumentError(
            "Expected metric to be 'whitened', None or an array of the coordinates' scales, found "
            f"{metric!r}."
        )
    scales = _as_numpy(metric)
    if scales.shape != (dim,) or not (np.isfinite(scales) & (scales > 0)).all():
        raise ArgumentError(
            f"Expected {dim} positive finite scales as metric, found shape {scales.shape}"
            f"{'' if scales.shape != (dim,) else ' with others'}."
        )
