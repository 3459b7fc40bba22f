"""Moves of microcanonical Langevin dynamics, as pure functions of arrays.

A chain has a position z and a direction u, a unit vector of D numbers: speed is constant, and the
score turns the direction. All functions take C chains at once, of the arrays of ``functions``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from jaxtyping import Bool, Float

from ppl_ext.microcanonical.functions import Functions

#: Log densities (C,) and scores (C, D) at positions (C, D).
Evaluate: TypeAlias = Callable[[Any], tuple[Any, Any]]
#: Error of the energy of a move, in nats, from which on it has diverged: the hosts' NUTS has the
#: same. Even so rare a draw has no share in a posterior.
DIVERGED = 1_000.0


class Point(NamedTuple):
    """Where chains are.

    Parameters
    ----------
    position, direction : array (C, D)
        z, and u of length 1 (in the coordinates of the scale).
    log_density : array (C,)
        At the position.
    score : array (C, D)
        Its gradient there, in the coordinates of the scale: the scale times that by the position.
    """

    position: Float[Any, "C D"]
    direction: Float[Any, "C D"]
    log_density: Float[Any, " C"]
    score: Float[Any, "C D"]


def turned(
    direction: Float[Any, "C D"], score: Float[Any, "C D"], time: Any, functions: Functions
) -> tuple[Float[Any, "C D"], Float[Any, " C"]]:
    """The direction after the score, held where it is, has turned it for a time, exactly.

    With e the direction of the score and δ = time |score| / (D - 1)

        u' = (u + e (sinh δ + (e·u) (cosh δ - 1))) / (cosh δ + (e·u) sinh δ).

    Written in exp(-2 δ), so that a long time does not overflow.

    Parameters
    ----------
    direction, score : array (C, D)
        D is 2 at least. The score is in the coordinates of the scale.
    time : float or array ()

    Returns
    -------
    direction : array (C, D)
    kinetic : array (C,)
        What the kinetic energy gains: (D - 1) log(cosh δ + (e·u) sinh δ).

    References
    ----------
    J. Robnik, G. B. De Luca, E. Silverstein and U. Seljak, "Microcanonical Hamiltonian Monte
    Carlo", JMLR 2023, https://arxiv.org/abs/2212.08549; J. Robnik and U. Seljak, "Fluctuation
    without dissipation: microcanonical Langevin Monte Carlo", https://arxiv.org/abs/2303.18221.
    """
    xp, dim = functions.xp, direction.shape[-1]
    norm = xp.sqrt(functions.dot(score, score))
    # Without a score there is nothing to turn by.
    divisor = xp.where(norm > 0.0, norm, xp.ones_like(norm))
    # e·u, without a unit vector e of D numbers in memory.
    along = functions.dot(score, direction) / divisor
    decay = xp.exp(-time * norm / (dim - 1))
    less = xp.expm1(-2.0 * time * norm / (dim - 1))
    # Both sides of the fraction by 2 exp(-δ): cosh is 1 + decay², sinh is 1 - decay².
    denominator = 2.0 + less * (1.0 - along)
    kept = 2.0 * decay / denominator
    # sinh δ + (e·u) (cosh δ - 1), over |score| so that it multiplies the score itself.
    gained = (along * (2.0 + less - 2.0 * decay) - less) / (denominator * divisor)
    # (D - 1) δ is time * norm, and log1p keeps the digits of a short time.
    kinetic = time * norm + (dim - 1) * xp.log1p(0.5 * less * (1.0 - along))
    return functions.combined(kept, direction, gained, score), kinetic


def refreshed(
    direction: Float[Any, "C D"], noise: Float[Any, "C D"], amount: Any, functions: Functions
) -> Float[Any, "C D"]:
    """The direction with some noise added, of length 1: (u + ν ξ) / |u + ν ξ|.

    Parameters
    ----------
    direction, noise : array (C, D)
        ``noise`` is standard Normal.
    amount : float or array ()
        ν; see :func:`forgetting`.
    """
    moved = direction + amount * noise
    return moved / functions.xp.sqrt(functions.dot(moved, moved))[:, None]


def forgetting(time: Any, length: Any, dim: int, xp: Any) -> Any:
    """ν = sqrt((exp(2 ε / L) - 1) / D), with which the direction is forgotten over a length L.

    Parameters
    ----------
    time : array ()
        ε, the length of a step.
    length : array ()
        L.
    dim : int
    """
    return xp.sqrt(xp.expm1(2.0 * time / length) / dim)


def leapfrog(
    point: Point, evaluate: Evaluate, step_size: Any, scale: Any, functions: Functions
) -> tuple[Point, Float[Any, " C"]]:
    """Half a turn, a step along the direction, half a turn: one evaluation of the score.

    Parameters
    ----------
    point : Point
    evaluate : callable
    step_size : float or array ()
        ε, the length of the step in the coordinates of the scale.
    scale : array (D,) or (1,)
        Lengths by which coordinates are measured, about their standard deviations.

    Returns
    -------
    point : Point
    error : array (C,)
        What the energy gains, in nats, which would be nothing for a short step: the gain of the
        kinetic energy less that of the log density.
    """
    half = 0.5 * step_size
    direction, first = turned(point.direction, point.score, half, functions)
    position = functions.moved(point.position, step_size, scale, direction)
    log_density, score = evaluate(position)
    score = scale * score
    direction, second = turned(direction, score, half, functions)
    error = first + second - (log_density - point.log_density)
    return Point(position, direction, log_density, score), error


def metropolis(
    before: Point,
    after: Point,
    error: Float[Any, " C"],
    log_uniform: Float[Any, " C"] | None,
    functions: Functions,
) -> tuple[Point, Bool[Any, " C"], Bool[Any, " C"], Float[Any, " C"]]:
    """Where chains are after a move: there, or where they were, with the direction turned round.

    Parameters
    ----------
    before, after : Point
    error : array (C,)
        What the energy has gained in the move.
    log_uniform : array (C,), optional
        Logarithms of uniform numbers, by which a move is accepted with probability
        min(1, exp(-error)). Without, all moves are accepted that have not diverged.

    Returns
    -------
    point : Point
    accepted, diverged : bool array (C,)
    chance : array (C,)
        min(1, exp(-error)), 0 where the move has diverged.
    """
    xp = functions.xp
    # Where a score is not finite, the turn by it makes the error so.
    diverged = ~(xp.isfinite(error) & (error < DIVERGED))
    chance = xp.where(diverged, xp.zeros_like(error), xp.exp(-xp.where(error > 0.0, error, 0.0)))
    accepted = ~diverged if log_uniform is None else ~diverged & (log_uniform < -error)

    def turned_round() -> Point:
        return before._replace(direction=-before.direction)

    # Metropolis' rule holds for moves that undo themselves, as one does that ends with a turn
    # round. After it all chains turn round: accepted ones, for the second time, go on.
    point = Point(*functions.select(accepted, after, turned_round))
    return point, accepted, diverged, chance


def with_spare(evaluate: Evaluate, dim: int, xp: Any) -> Evaluate:
    """Log density and score with standard Normal coordinates after the first ``dim``.

    On a line a direction cannot turn; a spare coordinate makes a plane of it.
    """

    def both(position: Any) -> tuple[Any, Any]:
        own, spare = position[:, :dim], position[:, dim:]
        log_density, score = evaluate(own)
        joined = xp.concatenate((score, -spare), -1)
        return log_density - 0.5 * (spare * spare).sum(-1), joined

    return both
