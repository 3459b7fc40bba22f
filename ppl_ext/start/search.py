"""What a search for a start asks of a package's target, in pieces of one size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from ppl_ext.layouts import DataPlate
from ppl_ext.start.find import find
from ppl_ext.start.paths import Evaluate
from ppl_ext.start.start import Start

#: Positions that are evaluated at once; fewer are filled up, so that one program serves all.
WIDTH = 16
#: Rows of each plate that a search looks at; of more a random batch.
MOST_ROWS = 10_000
#: Random points start within this distance of 0 in every coordinate.
RADIUS = 1.0
#: How often points are drawn again where density or score is not finite.
TRIES = 20

#: Log densities and scores of exactly ``WIDTH`` positions, where so many pieces were evaluated
#: before.
Piece = Callable[[Float[np.ndarray, "P D"], int], tuple[Any, Any]]


class InPieces:
    """Evaluates any number of positions in pieces of ``WIDTH``, as float64.

    Parameters
    ----------
    piece : callable
    calls : int
        Pieces that were evaluated before: one who goes on from a file gives their number, since
        NumPyro evaluates the first ones by another compiled program, whose last bits may differ.
    """

    def __init__(self, piece: Piece, calls: int = 0) -> None:
        self._piece, self.calls = piece, calls

    def __call__(
        self, positions: Float[np.ndarray, "P D"]
    ) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, "P D"]]:
        """Log densities (P,) and scores (P, D) at positions (P, D)."""
        count = len(positions)
        missing = -count % WIDTH
        filled = np.concatenate([positions, np.repeat(positions[-1:], missing, axis=0)])
        found = []
        for first in range(0, len(filled), WIDTH):
            found.append(self._piece(filled[first : first + WIDTH], self.calls))
            self.calls += 1
        values, scores = (
            np.concatenate([np.asarray(each, np.float64) for each in parts])[:count]
            for parts in zip(*found, strict=True)
        )
        return values, scores


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


def search(
    piece: Piece,
    dim: int,
    epsilon: float,
    generator: np.random.Generator,
    by_strategy: Callable[[int], Float[np.ndarray, "P D"]],
    *,
    has_strategy: bool,
) -> Start:
    """Search for the start of a target.

    Parameters
    ----------
    piece : callable
    dim : int
        Length D of the flat vector.
    epsilon : float
        Machine epsilon of the target's precision.
    generator : numpy.random.Generator
    by_strategy : callable
        So many positions (P, D) by the init strategy, with finite density and score.
    has_strategy : bool
        Whether the user gave one; else points are drawn near 0, and by the host's strategy where
        none of them is finite.
    """
    evaluate = InPieces(piece)
    points = starting_points(evaluate, dim, generator, by_strategy, has_strategy=has_strategy)
    return find(evaluate, points, generator, epsilon)


def starting_points(
    evaluate: Evaluate,
    dim: int,
    generator: np.random.Generator,
    by_strategy: Callable[[int], Float[np.ndarray, "P D"]],
    *,
    has_strategy: bool,
) -> Callable[[int], Float[np.ndarray, "P D"]]:
    """Random points with finite density and score, so many at a time; see :func:`search`."""

    def points(number: int) -> Float[np.ndarray, "P D"]:
        if has_strategy:
            return by_strategy(number)
        found = np.zeros((0, dim))
        for _ in range(TRIES):
            drawn = generator.uniform(-RADIUS, RADIUS, (number, dim))
            values, scores = evaluate(drawn)
            finite = np.isfinite(values) & np.isfinite(scores).all(-1)
            found = np.concatenate([found, drawn[finite]])[:number]
            if len(found) == number:
                return found
        return by_strategy(number)

    return points
