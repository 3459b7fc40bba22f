"""What a search for a start asks of a package's target, in pieces of one size."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ppl_ext.errors import StartWarning
from ppl_ext.process import raise_waiting
from ppl_ext.start.find import MOST_DIMENSIONS, Counted, find
from ppl_ext.start.given import HOST, Space, Started, start_from
from ppl_ext.start.paths import Evaluate, SpentError
from ppl_ext.target.layouts import DataPlate
from ppl_ext.target.noncentred import moved_sites
from ppl_ext.target.on_host import as_float64

#: Positions that are evaluated at once; fewer are filled up, so that one program serves all.
WIDTH = 16
#: The same where each piece passes over a loader: fewer passes of many positions.
WIDTHS = (WIDTH, 128)
#: Rows of each plate that a search looks at; of more a random batch.
MOST_ROWS = 10_000
#: Random points start within this distance of 0 in every coordinate.
RADIUS = 1.0
#: How often points are drawn again where density or score is not finite.
TRIES = 20
#: Bounds on searches that nobody asked for: dimensions beyond which covariances are diagonal, so
#: that a search takes some 600 evaluations; dimensions beyond which there is none, since paths of
#: long vectors take memory and time; and seconds, without compiling, after which one ends.
MOST_FULL, MOST_SEARCHED, SECONDS = 200, 10_000, 30.0

#: Log densities and scores of as many positions as a piece has, where so many pieces were evaluated
#: before.
Piece = Callable[[Float[np.ndarray, "P D"], int], tuple[Any, Any]]

#: Pieces of one call, and the numbers that they read together, at most: a call of a compiled
#: program takes as long as several small pieces of it, and what is longer has to hear Ctrl-C.
MOST_PIECES, MOST_POSITIONS, MOST_READ = 8, 2**14, 2**22


@dataclass(frozen=True)
class Joined:
    """A piece that takes several pieces of :data:`WIDTH` in one call.

    Parameters
    ----------
    piece : callable
    together : int
        How many at most.
    """

    piece: Piece
    together: int

    def __call__(self, positions: Float[np.ndarray, "P D"], before: int) -> tuple[Any, Any]:
        return self.piece(positions, before)


class InPieces:
    """Evaluates any number of positions in pieces of one size, as float64.

    Parameters
    ----------
    piece : callable
    calls : int
        Pieces that were evaluated before: one who goes on from a file gives their number, since
        NumPyro evaluates the first ones by another compiled program, whose last bits may differ.
    widths : sequence of int
        Sizes that pieces may have; they get the smallest that holds all positions, or the largest.
    """

    def __init__(self, piece: Piece, calls: int = 0, widths: Sequence[int] = (WIDTH,)) -> None:
        self._piece, self.calls, self._widths = piece, calls, widths
        self._together: int = piece.together if isinstance(piece, Joined) else 1

    def __call__(
        self, positions: Float[np.ndarray, "P D"]
    ) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, "P D"]]:
        """Log densities (P,) and scores (P, D) at positions (P, D)."""
        count = len(positions)
        width = next((each for each in self._widths if each >= count), self._widths[-1])
        missing = -count % width
        filled = np.concatenate([positions, np.repeat(positions[-1:], missing, axis=0)])
        found = []
        several = width * self._together if width == WIDTH else width
        for first in range(0, len(filled), several):
            raise_waiting()
            some = filled[first : first + several]
            found.append(self._piece(some, self.calls))
            self.calls += len(some) // width
        values, scores = (
            np.concatenate([np.asarray(each, np.float64) for each in parts])[:count]
            for parts in zip(*found, strict=True)
        )
        return values, scores


def pieces_together(dim: int, numbers: int) -> int:
    """Pieces that one call may take, of so many dimensions and numbers among the data."""
    of_positions = MOST_POSITIONS // (WIDTH * max(dim, 1))
    return max(1, min(MOST_PIECES, of_positions, MOST_READ // (WIDTH * max(numbers, 1))))


def rows_of(
    plates: Mapping[str, DataPlate], generator: np.random.Generator
) -> dict[str, np.ndarray] | None:
    """A large batch of rows of every plate that the engine subsamples; None for all rows."""
    if all(plate.size <= MOST_ROWS for plate in plates.values()):
        return None
    return {
        name: np.sort(generator.permutation(plate.size)[:MOST_ROWS])
        for name, plate in plates.items()
    }


def rows_left(plates: Mapping[str, DataPlate], rows: Mapping[str, np.ndarray]) -> float:
    """Rows of the data over those of a batch, all plates together."""
    return math.prod(plate.size / len(rows[name]) for name, plate in plates.items())


def within(evaluate: Evaluate, seconds: float, clock: Callable[[], float]) -> Evaluate:
    """The same evaluations, which end so long after the first, the one that compiles."""
    began: list[float] = []

    def limited(
        positions: Float[np.ndarray, "P D"],
    ) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, "P D"]]:
        if began and clock() - began[0] > seconds:
            raise SpentError
        found = evaluate(positions)
        # Set once, after the first evaluation: compiling it is not what a bound on seconds is for.
        began[:] = began or [clock()]
        return found

    return limited


def starts_by_host(given: Any, usual: str, dim: int) -> bool:
    """Whether a run starts by the host's init strategy.

    ``given`` is what was given as ``start``, ``usual`` what is done where that is None.
    """
    if given is None:
        return usual == HOST or dim > MOST_SEARCHED
    return isinstance(given, str) and given == HOST


def space_of(
    target: Any,
    data: Any,
    of_guide: Callable[[Any], Any],
    evaluate: Piece,
    moved_values: Callable[[Any, Any, dict[str, Any]], dict[str, Any]],
    clock: Callable[[], float] = time.perf_counter,
) -> Space:
    """What a target tells a search of where its positions lie."""

    def placed(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: target.placed(value) for name, value in values.items()}

    return Space(
        target.dim,
        target.layout.slices,
        lambda: target.value_shapes(data),
        lambda values: as_float64(target.unconstrain(placed(values), data)),
        of_guide,
        InPieces(evaluate),
        target.epsilon,
        clock,
        moved_sites(target.model),
        lambda values: moved_values(target, data, placed(values)),
    )


def begin(
    given: Any,
    space: Space,
    generator: np.random.Generator,
    by_strategy: Callable[[int], Float[np.ndarray, "P D"]],
    *,
    has_strategy: bool = False,
) -> Started | None:
    """Where a run starts that does not start by the host's init strategy.

    None where a search took too long, so that it does.

    Parameters
    ----------
    given : object
        What was given as ``start``; None is a search unasked, which is bounded in time.
    space : Space
    generator : numpy.random.Generator
    by_strategy : callable
        So many positions (P, D) by the init strategy, with finite density and score.
    has_strategy : bool
        Whether the user gave one; else points of a search are drawn near 0, and by the host's
        strategy where none of them is finite.

    Raises
    ------
    ArgumentError
        The start does not fit the model.
    ModelCheckError
        No starting point has a finite density and score.

    Warns
    -----
    StartWarning
        A search unasked took too long.
    """
    unasked = given is None
    if not unasked and not isinstance(given, str):
        return Started(start_from(given, space, generator))
    limited = within(space.evaluate, SECONDS, space.clock)
    counted = Counted(limited if unasked else space.evaluate)
    points = starting_points(counted, space.dim, generator, by_strategy, has_strategy=has_strategy)
    try:
        most_full = MOST_FULL if unasked else MOST_DIMENSIONS
        start = find(counted, points, generator, space.epsilon, most_full)
    except SpentError:
        warnings.warn(
            f"The search for a start was ended after {SECONDS:g} s and {counted.evaluations} "
            "evaluations of the score: the run starts by the init strategy. Pass start='host' to "
            "leave the search out, or start='search' to have it end by itself.",
            StartWarning,
            stacklevel=2,
        )
        return None
    return Started(start, space.evaluate)


def near_zero(generator: np.random.Generator, number: int, dim: int) -> Float[np.ndarray, "P D"]:
    """Random points of the box in which searches start, with finite densities or not."""
    return generator.uniform(-RADIUS, RADIUS, (number, dim))


def starting_points(
    evaluate: Evaluate,
    dim: int,
    generator: np.random.Generator,
    by_strategy: Callable[[int], Float[np.ndarray, "P D"]],
    *,
    has_strategy: bool,
) -> Callable[[int], Float[np.ndarray, "P D"]]:
    """Random points with finite density and score, so many at a time; see :func:`begin`."""

    def points(number: int) -> Float[np.ndarray, "P D"]:
        if has_strategy:
            return by_strategy(number)
        found = np.zeros((0, dim))
        for _ in range(TRIES):
            drawn = near_zero(generator, number, dim)
            values, scores = evaluate(drawn)
            finite = np.isfinite(values) & np.isfinite(scores).all(-1)
            found = np.concatenate([found, drawn[finite]])[:number]
            if len(found) == number:
                return found
        return by_strategy(number)

    return points
