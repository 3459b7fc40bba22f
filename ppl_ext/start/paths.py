"""Quasi-Newton paths towards modes, side by side.

Each path is L-BFGS with a line search by the weak Wolfe conditions (A. Lewis and M. Overton,
"Nonsmooth optimization via quasi-Newton methods", 2013, section 2.1, whose bisection also copes
with kinks). A path asks for one evaluation at a time, and all paths' wishes are evaluated together,
so that few programs are compiled and every call works on several positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

Vector = Float[np.ndarray, " D"]
#: Log densities (P,) and scores (P, D) at positions (P, D).
Evaluate = Callable[
    [Float[np.ndarray, "P D"]], tuple[Float[np.ndarray, " P"], Float[np.ndarray, "P D"]]
]


class SpentError(Exception):
    """No further evaluation may be made."""


#: Iterations of a path, and evaluations of a line search, at most.
ITERATIONS, TRIES = 75, 30
#: Pairs of differences that are kept.
HISTORY = 20
#: Weak Wolfe conditions: sufficient increase, and curvature.
INCREASE, CURVATURE = 1e-4, 0.9
#: A path ends when so many iterations in turn gain less than this many nats, as far as the
#: precision of the log density tells.
IDLE, GAIN = 2, 1e-2
#: Precisions of a log density's value below which its differences tell nothing.
ROUNDING = 8.0


@dataclass
class Path:
    """Positions from a starting point to a mode, with what was evaluated there.

    Attributes
    ----------
    positions, scores : list of array (D,)
    values : list of float
        Log densities.
    scales : list of float
        A typical standard deviation, as far as the path had told by then.
    settled : bool
        Whether the last iterations gained next to nothing; False where the path went on and on,
        as it does where the density has no highest point.
    known : bool
        Whether it was left where a mode that is known explains it.
    """

    positions: list[Vector] = field(default_factory=list)
    scores: list[Vector] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    settled: bool = False
    known: bool = False

    def add(self, position: Vector, value: float, score: Vector, variance: float | None) -> None:
        """Go on to a position."""
        self.positions.append(position)
        self.values.append(value)
        self.scores.append(score)
        self.scales.append(math.sqrt(variance or 1.0))


class InverseHessian:
    """The inverse of minus the Hessian, from differences along a path (two-loop recursion)."""

    def __init__(self) -> None:
        self._moves: list[Vector] = []
        self._changes: list[Vector] = []

    def add(self, move: Vector, change: Vector) -> None:
        """Learn that the score fell by ``change`` along ``move``; concave parts alone are kept."""
        # Only so does the matrix stay positive definite.
        if move @ change > 1e-10 * np.linalg.norm(move) * np.linalg.norm(change):
            self._moves = [*self._moves, move][-HISTORY:]
            self._changes = [*self._changes, change][-HISTORY:]

    @property
    def variance(self) -> float | None:
        """A typical variance; None before anything is known."""
        if not self._moves:
            return None
        move, change = self._moves[-1], self._changes[-1]
        return float(move @ change / (change @ change))

    def times(self, vector: Vector) -> Vector:
        """Its product with a vector."""
        variance = self.variance
        assert variance is not None
        pairs = list(zip(self._moves, self._changes, strict=True))
        found, weights = vector.copy(), []
        for move, change in reversed(pairs):
            weights.append((move @ found) / (move @ change))
            found -= weights[-1] * change
        # The matrix that the recursion begins with (Nocedal and Wright 2006, equation 7.20).
        found *= variance
        for (move, change), weight in zip(pairs, reversed(weights), strict=True):
            found += move * (weight - (change @ found) / (move @ change))
        return found


#: Whether known modes explain the density at a position, of that, log density and score there.
IsKnown = Callable[[Vector, float, Vector], bool]
Wish = Generator[Vector, tuple[float, Vector], None]


def follow(
    path: Path,
    start: Vector,
    value: float,
    score: Vector,
    epsilon: float,
    is_known: IsKnown | None = None,
) -> Wish:
    """Walk a path, given value and score at its start; yields positions to evaluate.

    ``epsilon`` is the relative precision of values. The path ends where ``is_known`` says so.
    """
    path.add(start, value, score, None)
    known, idle = InverseHessian(), 0
    for _ in range(ITERATIONS):
        position, value, score = path.positions[-1], path.values[-1], path.scores[-1]
        if is_known is not None and is_known(position, value, score):
            path.settled = path.known = True
            return
        if known.variance is None:
            # Of length one at most, while nothing is known of scales.
            direction = score / max(1.0, float(np.linalg.norm(score)))
        else:
            direction = known.times(score)
        slope = float(direction @ score)
        noise = ROUNDING * epsilon * max(1.0, abs(value))
        if not slope > 0.0 or not np.isfinite(slope):
            path.settled = not score.any()
            return
        low, high, length = 0.0, np.inf, 1.0
        best: tuple[float, Vector, Vector] | None = None
        # The weak Wolfe conditions, by doubling and halving the length.
        for _ in range(TRIES):
            there = position + length * direction
            found, gradient = yield there
            # Not ``<``: what is not a number counts as too low. Less the rounding of values, within
            # which an increase cannot be seen.
            if not found >= value + INCREASE * length * slope - noise:
                high = length
            else:
                if best is None or found >= best[0]:
                    best = found, there, gradient
                if gradient @ direction <= CURVATURE * slope:
                    break
                low = length
            length = 0.5 * (low + high) if np.isfinite(high) else 2.0 * low
        if best is None:
            # No step up can be told from rounding, which is as near as can be.
            # The slope is twice what a Newton step would gain, in nats.
            path.settled = slope < 1.0
            return
        found, there, gradient = best
        known.add(there - position, score - gradient)
        path.add(there, found, gradient, known.variance)
        idle = idle + 1 if found - value < max(GAIN, noise) else 0
        if idle == IDLE:
            path.settled = True
            return


def side_by_side(
    evaluate: Evaluate,
    starts: Float[np.ndarray, "P D"],
    values: Float[np.ndarray, " P"],
    scores: Float[np.ndarray, "P D"],
    epsilon: float,
    is_known: IsKnown | None = None,
) -> list[Path]:
    """Paths from several points, whose evaluations are made together.

    Parameters
    ----------
    evaluate : callable
    starts, scores : arrays (P, D)
    values : array (P,)
        Finite, as are the scores.
    epsilon : float
        Relative precision of values.
    is_known : callable, optional
        Whether known modes explain the density at a position, where a path ends then.
    """
    paths = [Path() for _ in starts]
    walks = [
        follow(path, start, float(value), score, epsilon, is_known)
        for path, start, value, score in zip(paths, starts, values, scores, strict=True)
    ]
    wishes = {i: wish for i, walk in enumerate(walks) if (wish := next(walk, None)) is not None}
    while wishes:
        found, gradients = evaluate(np.stack(list(wishes.values())))
        following: dict[int, Vector] = {}
        for i, value, score in zip(wishes, found, gradients, strict=True):
            finite = np.isfinite(value) and np.isfinite(score).all()
            # So low that the line search turns back.
            answer = (float(value), score) if finite else (-np.inf, np.zeros_like(score))
            with suppress(StopIteration):
                following[i] = walks[i].send(answer)
        wishes = following
    return paths
