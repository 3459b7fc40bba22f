"""Solvers of positive definite systems. None raises: what fails is not a number, or says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import cho_solve

Solver = Literal["dense", "dual", "cg"]
SOLVERS: tuple[str, ...] = get_args(Solver)


def cholesky_solve(matrices: Array, right_sides: Array) -> Array:
    """x with A x = b for A (..., n, n) and b (..., n, m); NaN where A is not positive definite."""
    return cho_solve((jnp.linalg.cholesky(matrices), True), right_sides)


def woodbury_solve(diagonal: Array, rows: Array, right_sides: Array) -> Array:
    """x with (diag(d) + R' R) x = b, exactly, by a system of the size of R's rows.

    Parameters
    ----------
    diagonal : Array
        d > 0, shape (..., D).
    rows : Array
        R, shape (..., R, D).
    right_sides : Array
        b as rows, shape (..., n, D); so is x.
    """
    scaled = right_sides / diagonal[..., None, :]
    if rows.shape[-2] == 0:
        return scaled
    weighted = rows / diagonal[..., None, :]
    capacity = rows @ weighted.mT + jnp.eye(rows.shape[-2], dtype=rows.dtype)
    inner = cholesky_solve(capacity, rows @ scaled.mT)
    return scaled - inner.mT @ weighted


_Carry = tuple[Array, Array, Array, Array, Array, Array]


class Iterated(NamedTuple):
    """What an iterative solver found.

    Parameters
    ----------
    solution : Array
    residual : Array
        |b - A x| / |b|.
    iterations : Array
        Products taken.
    definite : Array
        False if a direction of negative curvature was met; the solution is the last before it.
    """

    solution: Array
    residual: Array
    iterations: Array
    definite: Array


def conjugate_gradients(
    product: Callable[[Array], Array],
    right_side: Array,
    preconditioner: Array,
    tolerance: float = 1e-4,
    max_iterations: int = 50,
) -> Iterated:
    """x with A x = b, by conjugate gradients from zero (Hestenes and Stiefel 1952).

    Parameters
    ----------
    product : callable
        Maps an array of the shape of b to A times it.
    right_side : Array
        b, of any shape.
    preconditioner : Array
        Positive diagonal, in the shape of b.
    tolerance : float
        Residual, relative to b, at which to stop.
    max_iterations : int
    """
    size = jnp.sqrt((right_side**2).sum())
    bound = tolerance * size

    def unfinished(carry: _Carry) -> Array:
        _, residual, _, _, count, definite = carry
        short = jnp.sqrt((residual**2).sum()) <= bound
        return (count < max_iterations) & ~short & definite

    def iterate(carry: _Carry) -> _Carry:
        solution, residual, direction, fall, count, _ = carry
        image = product(direction)
        curvature = (direction * image).sum()
        definite = curvature > 0.0
        # A step of zero length where there is negative curvature, or nothing finite.
        length = jnp.where(definite, fall / jnp.where(definite, curvature, 1.0), 0.0)
        solution = solution + length * direction
        residual = residual - length * image
        scaled = residual / preconditioner
        following = (residual * scaled).sum()
        direction = scaled + (following / fall) * direction
        return solution, residual, direction, following, count + 1, definite

    scaled = right_side / preconditioner
    solution, residual, _, _, count, definite = lax.while_loop(
        unfinished,
        iterate,
        (
            jnp.zeros_like(right_side),
            right_side,
            scaled,
            (right_side * scaled).sum(),
            jnp.asarray(0, jnp.int32),
            jnp.asarray(True),
        ),
    )
    relative = jnp.sqrt((residual**2).sum()) / jnp.where(size > 0.0, size, 1.0)
    return Iterated(solution, relative, count, definite)
