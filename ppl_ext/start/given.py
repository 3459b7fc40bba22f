"""Where a run starts: what may be given as its start, and how that becomes Normals."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from ppl_ext.errors import ArgumentError
from ppl_ext.options import described
from ppl_ext.start.find import MOST_DIMENSIONS, Counted, local_normal
from ppl_ext.start.local_normal import lower_factor
from ppl_ext.start.paths import Evaluate, Vector
from ppl_ext.start.start import Mode, Start
from ppl_ext.target.on_host import on_host

#: The library's search, and the host's init strategy.
SEARCH, HOST = "search", "host"
#: Draws that a guide without closed moments is known by, and draws that judge a local Normal.
DRAWS, JUDGES = 256, 16
#: Longer points are not evaluated, and have these standard deviations: a network's takes as long
#: as many steps of a run, which tells of values that are not finite as well.
MOST_LOCAL, DEVIATION = 10_000, 0.1
#: How often draws whose density is not finite are pulled half the way to the mean.
PULLS = 30
#: A covariance is taken from draws when there are so many for each dimension; else deviations.
DRAWS_PER_DIMENSION = 2
#: Least standard deviation that draws tell, as a share of the largest or of the value itself.
LEAST_DEVIATION = 1e-6

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Space:
    """What a target tells of where its positions lie.

    Attributes
    ----------
    dim : int
        Length D of the flat vector.
    coordinates : dict of str to slice
        Range of the flat vector that each site takes.
    shapes : callable
        Shapes of the latent sites in their supports.
    unconstrain : callable
        From values of the sites (n, ...) to positions (n, D).
    of_guide : callable
        What is known of a host's guide: its Normals, or draws by site; None of anything else.
    evaluate : callable
        Log densities and scores at positions.
    epsilon : float
        Machine epsilon of the target's precision.
    clock : callable
        The seconds that a search is bounded by, where several processes have to decide alike.
    moves : mapping of str to str
        By site of the program as written, the latent site that stands for it; see
        :class:`~ppl_ext.target.noncentred.Moves`.
    as_moved : callable
        From values (n, ...) of the sites as written to those of the latent sites.
    """

    dim: int
    coordinates: Mapping[str, slice]
    shapes: Callable[[], Mapping[str, tuple[int, ...]]]
    unconstrain: Callable[[dict[str, np.ndarray]], Float[np.ndarray, "n D"]]
    of_guide: Callable[[Any], Start | Values | None]
    evaluate: Evaluate
    epsilon: float
    clock: Callable[[], float] = time.perf_counter
    moves: Mapping[str, str] = field(default_factory=dict)
    as_moved: Callable[[dict[str, np.ndarray]], dict[str, Any]] = dict


@dataclass(frozen=True)
class DrawnStart(Start):
    """A start that is known by draws.

    Attributes
    ----------
    points : array (n, D)
        The draws.
    """

    points: Float[np.ndarray, "n D"] = field(kw_only=True)

    def draw(self, number: int, seed: int | Sequence[int] = 0) -> Float[np.ndarray, "number D"]:
        """The draws themselves where so many are asked for, some of them where fewer are.

        Where more are asked for, the others are of the Normal with their moments.
        """
        count = len(self.points)
        if number > count:
            return np.concatenate([self.points, super().draw(number - count, seed)])
        chosen = np.random.default_rng(seed).choice(count, number, replace=False)
        return self.points[np.sort(chosen)]


@dataclass(frozen=True)
class Started:
    """A start, and the density to look at what is drawn from it.

    Attributes
    ----------
    start : Start
    evaluate : callable, optional
        Of a start that was searched for: its draws are pulled in until their densities are finite.
    """

    start: Start
    evaluate: Evaluate | None = None

    # Positions far out may have densities that overflow.
    @np.errstate(all="ignore")
    def positions(self, number: int, seed: int | Sequence[int]) -> Float[np.ndarray, "number D"]:
        """Positions for so many particles; one alone starts at the first mode's mean."""
        if number == 1:
            return self.start.mean[None].copy()
        drawn = self.start.draw(number, seed)
        if self.evaluate is None:
            return drawn
        for _ in range(PULLS):
            values, scores = self.evaluate(drawn)
            bad = ~(np.isfinite(values) & np.isfinite(scores).all(-1))
            if not bad.any():
                break
            drawn[bad] = 0.5 * (drawn[bad] + self.start.mean)
        return drawn


def check_start(start: Any, is_guide: Callable[[Any], bool], guide_form: str) -> None:
    """See that a start is of one of the kinds that there are.

    Raises
    ------
    ArgumentError
        It is not.
    """
    if start is None or isinstance(start, Start | Mapping) or is_guide(start):
        return
    if isinstance(start, str) and start in (SEARCH, HOST):
        return
    if not isinstance(start, type) and callable(getattr(start, "get_samples", None)):
        return
    raise ArgumentError(
        f"Expected start to be {SEARCH!r}, {HOST!r}, a Start (of find_start), a fit, a dict from "
        f"latent sites to values or draws, {guide_form}, or an object with get_samples(), found "
        f"{described(start)}."
    )


@np.errstate(all="ignore")
def start_from(given: Any, space: Space, generator: np.random.Generator) -> Start:
    """The start that was given, as Normals on a target's flat space.

    Raises
    ------
    ArgumentError
        It is of another model, or has values outside the supports.
    """
    if isinstance(given, Start):
        return _checked(given, space)
    found = space.of_guide(given)
    if isinstance(found, Start):
        return _checked(found, space)
    if found is None:
        found = given if isinstance(given, Mapping) else _samples(given)
    return _from_values(found, space, generator)


def _checked(start: Start, space: Space) -> Start:
    lengths = {len(mode.mean) for mode in start.modes}
    if lengths != {space.dim}:
        raise ArgumentError(
            f"Expected a start of this model, whose latent sites have {space.dim} unconstrained "
            f"numbers, found one of {', '.join(map(str, sorted(lengths)))}. Call find_start with "
            "this model and these arguments."
        )
    sizes = {name: where.stop - where.start for name, where in space.coordinates.items()}
    if start.sites and dict(start.sites) != sizes:
        raise ArgumentError(
            f"Expected a start of this model, whose latent sites have so many unconstrained "
            f"numbers: {sizes}, found one of {dict(start.sites)}. Call find_start with this model "
            "and these arguments."
        )
    return start


def _samples(given: Any) -> Values:
    try:
        found = given.get_samples()
    except TypeError as error:
        raise ArgumentError(
            f"Expected draws of {type(given).__name__}.get_samples(), found that it wants "
            f"arguments ({error}). Pass the draws themselves."
        ) from error
    if not isinstance(found, Mapping):
        raise ArgumentError(
            f"Expected {type(given).__name__}.get_samples() to give a dict from latent sites to "
            f"draws, found {described(found)}."
        )
    return found


def as_array(value: Any, dtype: Any = np.float64) -> np.ndarray:
    """A host's array as NumPy's, in double precision unless told otherwise.

    Raises
    ------
    ArgumentError
        It holds no numbers.
    """
    try:
        return np.asarray(on_host(value), dtype)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"Expected numbers, found {described(value)}.") from error


def _from_values(values: Values, space: Space, generator: np.random.Generator) -> Start:
    shapes = space.shapes()
    # Values of the program as written, whose sites are as long as those that stand for them.
    is_written = not all(name in values for name in space.moves.values())
    if is_written:
        written = {latent: name for name, latent in space.moves.items()}
        shapes = {written.get(name, name): shape for name, shape in shapes.items()}
    if missing := [name for name in shapes if name not in values]:
        raise ArgumentError(
            f"Expected a start with values of the latent sites {list(shapes)}, found none of "
            f"{missing} among {list(values)}."
        )
    # Long points are kept in single precision: twice their length counts beside a network's fit.
    precision = np.float64 if space.dim <= MOST_LOCAL or space.epsilon < 1e-10 else np.float32
    arrays = {name: as_array(values[name], precision) for name in shapes}
    found = {name: array.shape for name, array in arrays.items()}
    if found == dict(shapes):
        arrays = {name: array[None] for name, array in arrays.items()}
    else:
        counts = {shape[0] if shape else 0 for shape in found.values()}
        is_drawn = all(shape[1:] == shapes[name] for name, shape in found.items())
        if not is_drawn or len(counts) != 1 or counts == {0}:
            raise ArgumentError(
                f"Expected a start with one value of each latent site, of shapes {dict(shapes)}, "
                f"or draws, with one axis more in front, as long in all, found {found}."
            )
    latents = space.as_moved(arrays) if is_written else arrays
    points = np.asarray(space.unconstrain(latents), precision)
    outside = [
        name for name, where in space.coordinates.items() if not np.isfinite(points[:, where]).all()
    ]
    if outside:
        raise ArgumentError(
            f"Expected a start with finite values inside the supports of the latent sites, found "
            f"others of {outside}."
        )
    # Draws that are all one point have no spread to tell, as a mode given as draws.
    if (points == points[0]).all():
        return _at_point(points[0], space, generator)
    return DrawnStart((normal_of(points),), 0, points=points)


def _at_point(point: Vector, space: Space, generator: np.random.Generator) -> Start:
    """The Normal about a point with the density's curvature there."""
    # One number, at every place.
    unknown = Mode(point, np.broadcast_to(DEVIATION, point.shape), 0.0, np.inf)
    if len(point) > MOST_LOCAL:
        return Start((unknown,), 0)
    counted = Counted(space.evaluate)
    values, _ = counted(point[None])
    if not np.isfinite(values[0]):
        raise ArgumentError(
            f"Expected a start where the density is finite, found log density {values[0]} at the "
            "values that were given."
        )
    noise = generator.normal(size=(JUDGES, len(point)))
    mode = local_normal(counted, point, 1.0, noise, space.epsilon)
    if mode is None or not np.isfinite(mode.deviations).all():
        mode = unknown
    return Start((replace(mode, mean=point),), counted.evaluations)


def normal_of(points: Float[np.ndarray, "n D"]) -> Mode:
    """The Normal with the moments of draws; diagonal where these are few."""
    number, dim = points.shape
    mean = points.mean(0)
    # Its triangle is the root of the covariance: QR keeps the digits that products of points would
    # lose.
    centred = (points - mean) / np.sqrt(number - 1)
    deviations = np.sqrt(np.square(centred).sum(0))
    least = LEAST_DEVIATION * np.maximum(np.abs(mean), deviations.max())
    if dim <= MOST_DIMENSIONS and number > DRAWS_PER_DIMENSION * dim:
        factor = lower_factor(centred.T)
        if (np.diag(factor) > least).all():
            return Mode(mean, factor, 0.0, 0.0)
    return Mode(mean, np.maximum(deviations, least), 0.0, 0.0)
