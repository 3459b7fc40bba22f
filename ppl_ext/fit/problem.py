"""What a fit asks of a program: a density to evaluate, and the way back to its sites."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from ppl_ext.start.paths import Evaluate
from ppl_ext.start.search import InPieces, Piece, rows_of, starting_points

Positions = Float[np.ndarray, "P D"]


@dataclass
class Problem:
    """A program with its arguments, on the flat unconstrained space of D numbers.

    Attributes
    ----------
    name : str
        How the program is written, such as "as written" or "non-centred".
    evaluate : InPieces
        Log densities (P,) and scores (P, D) at positions (P, D).
    dim : int
    epsilon : float
        Machine epsilon with which densities are computed.
    starting_points : callable
        Of a number: so many random positions with finite density and score.
    coordinates : dict of str to slice
        Range of the flat vector that each site takes.
    values : callable
        Of positions (P, D): the sites of the program as it was written, constrained, as arrays
        whose first axis is the positions.
    target : object
        The host's target of the program as it was written.
    own : object
        That of the program as it is evaluated.
    digest : callable
        A digest of the arguments.
    is_whole : bool
        Whether every evaluation takes all rows.
    """

    name: str
    evaluate: InPieces
    dim: int
    epsilon: float
    starting_points: Callable[[int], Positions]
    coordinates: Mapping[str, slice]
    values: Callable[[Positions], dict[str, Any]]
    target: Any
    own: Any
    digest: Callable[[], str]
    is_whole: bool = True


def problem_of(
    name: str,
    target: Any,
    written: Any,
    pieces: Callable[[dict[str, np.ndarray] | None], Piece],
    epsilon: float,
    by_strategy: Callable[[int], Positions],
    values: Callable[[Positions], dict[str, Any]],
    digest: Callable[[], str],
    generator: np.random.Generator,
) -> Problem:
    """The problem of a target, which is ``written`` or another way to write the same."""
    rows = rows_of(target.plates, generator)
    evaluate = InPieces(pieces(rows))
    points = starting_points(evaluate, target.dim, generator, by_strategy, has_strategy=False)
    return Problem(
        name,
        evaluate,
        target.dim,
        epsilon,
        points,
        target.layout.slices,
        values,
        written,
        target,
        digest,
        is_whole=rows is None,
    )


@dataclass
class Meter:
    """Evaluations and seconds of a fit, against what it may spend."""

    budget: int
    seconds: float
    bar: Any = None
    evaluations: int = 0
    started: float = field(default_factory=time.perf_counter)

    def of(self, evaluate: Evaluate) -> Evaluate:
        """The same evaluations, counted."""

        def counted(
            positions: Positions,
        ) -> tuple[Float[np.ndarray, " P"], Positions]:
            self.evaluations += len(positions)
            if self.bar is not None:
                self.bar.update(len(positions))
            return evaluate(positions)

        return counted

    @property
    def elapsed(self) -> float:
        """Seconds since the fit began."""
        return time.perf_counter() - self.started

    def allows(self, share: float = 1.0) -> bool:
        """Whether less than a share of the budget and of the seconds is spent."""
        return self.evaluations < share * self.budget and self.elapsed < share * self.seconds
