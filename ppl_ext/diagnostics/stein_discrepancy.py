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
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ppl_ext.batches.passes import Passes
from ppl_ext.diagnostics.fit import (
    FittedGuide,
    all_rows,
    check_temperature,
    chunk_sizes,
    target_of_engine,
)
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_choice, check_count, check_number, described
from ppl_ext.statistics.effective import effective_number
from ppl_ext.target.on_host import as_float64

#: Draws of a guide unless told otherwise.
KSD_SAMPLES = 1000
#: Most rows and columns of a block of pairs unless told otherwise.
BLOCK = 1024

STATISTICS = ("U", "V")
#: What the draws may be for a p-value, resamples that it is made of, and the seed of their signs.
NULLS = ("independent", "chain")
RESAMPLES, SEED = 500, 0


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
    p_value : float or None
        Of the squared discrepancy for draws of the target itself; None without ``null``.
    """

    value: float
    squared: float
    statistic: str
    num_samples: int
    p_value: float | None = None


@dataclass(frozen=True)
class _Scores:
    """Draws, and the target's scores at them with the likelihood divided by a temperature."""

    temperature: float

    def __call__(
        self, density: Any, parameters: Any, target: Any, data: Any, theta: Any
    ) -> tuple[Any, Any]:
        if self.temperature == target.likelihood_temperature:
            return theta, target.full_score(theta, data).score
        return theta, target.full_score_parts(theta, data).score(self.temperature).score


@dataclass(frozen=True)
class Points:
    """Where a package has the points of a fit from.

    Parameters
    ----------
    is_array : callable
        Whether positions themselves are given.
    placed : callable
        Positions, on the device of a target.
    drawn, particles : callable
        Of an engine: so many draws by site, and its particles.
    guide : callable
        The guide of anything else.
    of_model : callable
        The target of a model, and its data.
    """

    is_array: Callable[[Any], bool]
    placed: Callable[[Any, Any], Any]
    drawn: Callable[[int], Any]
    particles: Callable[[], Any]
    guide: Callable[[], FittedGuide]
    of_model: Callable[..., tuple[Any, Any]]


class Options(NamedTuple):
    """How a discrepancy is computed; see ``ksd``."""

    statistic: str | None
    metric: Any
    scale: float
    null: str | None
    block: int


def discrepancy_of(
    fit: Any,
    points: Points,
    target: Any,
    of_fit: tuple[Any, Any, Any, Passes | None],
    num_samples: int | None,
    how: tuple[float | None, int | None],
    wanted: Options,
) -> SteinDiscrepancy:
    """Discrepancy between positions, an engine or a guide and a target; see ``ksd``.

    ``of_fit`` are the model, its arguments and those of a loader, and ``how`` the temperature of
    the likelihood and the draws that are evaluated at once.
    """
    options = wanted._asdict()
    if points.is_array(fit):
        check_num_samples(num_samples, len(fit))
        target, data = _target_of_positions(target, *of_fit, points.of_model)
        positions = points.placed(fit, target)
        check_positions(tuple(positions.shape), target.dim)
        return discrepancy_of_positions(positions, target, data, *how, **options)
    check_no_target(target, fit)
    particles = hasattr(fit, "target") and hasattr(fit, "particles")
    if is_sampler(fit):
        target, data = target_of_engine(fit, *of_fit)
        check_count("num_samples", num_samples, optional=True)
        drawn = points.drawn(num_samples or KSD_SAMPLES)
        positions = points.placed(target.unconstrain(drawn, data), target)
        options["statistic"] = options["statistic"] or "U"
    elif not particles or hasattr(fit, "approximation"):
        return _discrepancy_of_guide(points.guide(), num_samples, *how, **options)
    else:
        check_not_particles(options["null"], fit)
        target, data = target_of_engine(fit, *of_fit)
        positions = points.placed(points.particles(), target)
        check_num_samples(num_samples, len(positions))
    return discrepancy_of_positions(positions, target, data, *how, **options)


def _discrepancy_of_guide(
    fitted: FittedGuide,
    num_samples: int | None,
    likelihood_temperature: float | None,
    draw_chunk: int | None,
    **options: Any,
) -> SteinDiscrepancy:
    """Discrepancy between a guide and its target, by default the U-statistic of its draws."""
    num = KSD_SAMPLES if num_samples is None else num_samples
    check_count("num_samples", num)
    options = _checked(options, "U", num, fitted.target.dim)
    own = fitted.target.likelihood_temperature
    scores = _Scores(check_temperature(own, likelihood_temperature))
    return stein_discrepancy(*fitted.at_draws(num, draw_chunk, scores), **options)


def discrepancy_of_positions(
    positions: Float[Any, "P D"],
    target: Any,
    data: Any,
    likelihood_temperature: float | None,
    draw_chunk: int | None,
    **options: Any,
) -> SteinDiscrepancy:
    """Discrepancy between positions and a target, by default the V-statistic.

    Scores are computed in chunks of one size, for which one program is compiled: the last is
    filled up with the last position.
    """
    num = len(positions)
    options = _checked(options, "V", num, target.dim)
    own = target.likelihood_temperature
    scores = _Scores(check_temperature(own, likelihood_temperature))
    size, *more = chunk_sizes(num, target.dim, draw_chunk)
    pieces = []
    for start in range(0, size * (1 + len(more)), size):
        places = np.minimum(np.arange(start, start + size), num - 1)
        pieces.append(as_float64(scores(None, None, target, data, positions[places])[1]))
    return stein_discrepancy(positions, np.concatenate(pieces)[:num], **options)


def _checked(options: dict[str, Any], default: str, num: int, dim: int) -> dict[str, Any]:
    """Options with a default statistic, checked before the scores, which may take long."""
    if options["statistic"] is None:
        options = {**options, "statistic": default}
    check_options(**options, num=num, dim=dim)
    return options


def _target_of_positions(
    target: Any,
    model: Callable[..., Any] | None,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    passes: Passes | None,
    of_model: Callable[..., tuple[Any, Any]],
) -> tuple[Any, Any]:
    """The target of positions that are given, and its data with all rows.

    Raises
    ------
    ArgumentError
        There is no target and no model or both.
    """
    if (target is None) == (model is None):
        raise ArgumentError(
            "Expected positions with either target=LogDensity(...) or model=..., found "
            f"{'neither' if target is None else 'both'}."
        )
    if target is None:
        return of_model(model, args, kwargs, passes=passes)
    target = target.over(passes)
    return target, all_rows(target, args, kwargs)


def stein_discrepancy(
    positions: Float[Any, "P D"],
    scores: Float[Any, "P D"],
    *,
    statistic: str = "V",
    metric: Any = "whitened",
    scale: float = 1.0,
    null: str | None = None,
    block: int = BLOCK,
) -> SteinDiscrepancy:
    """Kernelised Stein discrepancy from positions and the target's scores at them.

    It is computed in float64 by NumPy, whatever the arrays are.

    Parameters
    ----------
    positions, scores : arrays (P, D)
    statistic, metric, scale, null, block
        As in ``ksd``.

    Raises
    ------
    ArgumentError
        The shapes differ, an option is out of range, a position or score is not finite, or a
        coordinate does not vary and ``metric="whitened"``.
    """
    positions, scores = as_float64(positions), as_float64(scores)
    if positions.ndim != 2 or positions.shape != scores.shape:
        raise ArgumentError(
            f"Expected positions and scores of one shape (P, D), found {positions.shape} and "
            f"{scores.shape}."
        )
    num, dim = positions.shape
    check_options(statistic, metric, scale, block, num, dim, null)
    for name, values in (("positions", positions), ("scores", scores)):
        if broken := num - int(np.isfinite(values).all(1).sum()):
            raise ArgumentError(
                f"Expected finite {name}, found {broken} of {num} points where they are not. Look "
                "for NaN in the fit and in the data."
            )
    # Distances are taken after centring: |x|^2 + |y|^2 - 2 x.y cancels far from the origin.
    positions = positions - positions.mean(0)
    if metric is not None:
        scales = positions.std(0, ddof=1) if isinstance(metric, str) else as_float64(metric)
        if still := int((scales == 0).sum()):
            raise ArgumentError(
                "Expected draws that vary in every coordinate for metric='whitened', found "
                f"{still} of {dim} coordinates that do not. Pass metric=None, or the scales of the "
                "coordinates."
            )
        positions, scores = positions / scales, scores * scales
    blocks = [slice(start, start + block) for start in range(0, num, block)]
    signs = None if null is None else _signs(positions, null)
    total, resampled = 0.0, np.zeros(RESAMPLES)
    for number, rows in enumerate(blocks):
        for columns in blocks[number:]:
            kernel = _stein_kernel(
                positions[rows], scores[rows], positions[columns], scores[columns], scale
            )
            if rows == columns and statistic == "U":
                np.fill_diagonal(kernel, 0.0)
            # The kernel is symmetric: blocks below the diagonal are not evaluated.
            times = 1 if rows == columns else 2
            total += float(kernel.sum()) * times
            if signs is not None:
                resampled += times * ((signs[:, rows] @ kernel) * signs[:, columns]).sum(1)
    squared = total / (num * (num - 1 if statistic == "U" else num))
    if statistic == "V":
        # Not negative but for rounding.
        squared = max(squared, 0.0)
    value = math.copysign(math.sqrt(abs(squared)), squared)
    p_value = None
    if signs is not None:
        # Signs that are all alike give the total itself, to rounding.
        as_large = resampled >= total - 1e-9 * abs(total)
        p_value = (1.0 + float(as_large.sum())) / (1.0 + RESAMPLES)
    return SteinDiscrepancy(value, squared, statistic, num, p_value)


def _signs(positions: Float[np.ndarray, "P D"], null: str) -> Float[np.ndarray, "R P"]:
    """Random signs: each of its own, or in runs as long as a chain's draws depend on each other."""
    generator, num = np.random.default_rng(SEED), len(positions)
    signs = generator.choice([-1.0, 1.0], size=(RESAMPLES, num))
    if null == "independent":
        return signs
    # (P, 1, D): one chain.
    times = num / effective_number(positions[:, None])
    # Correlations of signs fall by exp(-1 / time) from one draw to the next.
    keep = math.exp(-1.0 / float(times.max()))
    turned = np.where(generator.uniform(size=signs.shape) < 0.5 * (1.0 - keep), -1.0, 1.0)
    turned[:, 0] = signs[:, 0]
    return np.cumprod(turned, axis=1)


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
    # What is left of points that coincide is rounding, of either sign.
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


def is_sampler(fit: Any) -> bool:
    """Whether this is an engine whose draws are independent and have no known density."""
    makes = getattr(fit, "makes_draws", False)
    return makes and not hasattr(fit, "density") and not hasattr(fit, "approximation")


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


def check_not_particles(null: str | None, engine: Any) -> None:
    """Refuse a p-value of particles, which depend on each other in no way that is known."""
    if null is not None:
        raise ArgumentError(
            f"Expected null=None with {type(engine).__name__}, whose particles are no independent "
            f"draws and no chain, found {null!r}. `check` judges particles."
        )


def check_no_target(target: Any, fit: Any) -> None:
    """Refuse draws by site, and a target for a fit that has one."""
    if isinstance(getattr(fit, "draws", fit), Mapping):
        raise ArgumentError(
            "Expected an engine, a guide or an array of positions (P, D) in unconstrained space, "
            f"found {described(fit)}, which has draws by site. Call ksd(positions, target=target, "
            "args=args) with positions = target.unconstrain(draws, target.bind(*args)) and the "
            "target of a fit or of LogDensity(model, ...)."
        )
    if target is not None:
        raise ArgumentError(
            f"Expected target with positions only, found it with {type(fit).__name__}. Leave it "
            "out with an engine, and give an autoguide model=... instead."
        )


def check_options(
    statistic: str,
    metric: Any,
    scale: float,
    block: int,
    num: int,
    dim: int,
    null: str | None = None,
) -> None:
    """See that the options fit the points, before the scores are computed, which may take long."""
    check_choice("statistic", statistic, STATISTICS)
    check_choice("null", null, (None, *NULLS))
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
    scales = as_float64(metric)
    if scales.shape != (dim,) or not (np.isfinite(scales) & (scales > 0)).all():
        raise ArgumentError(
            f"Expected {dim} positive finite scales as metric, found shape {scales.shape}"
            f"{'' if scales.shape != (dim,) else ' with others'}."
        )
