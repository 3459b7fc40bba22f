"""Solvers of positive definite systems. None raises: what fails is not a number, or says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import cho_solve
from jaxtyping import Float

from ppl_ext.curvature import woodbury as shared
from ppl_ext.curvature.solvers import Conjugate, IterativeSolution, beginning


def cholesky_solve(
    matrices: Float[Array, "... n n"], right_sides: Float[Array, "... n m"]
) -> Float[Array, "... n m"]:
    """x with A x = b for A (..., n, n) and b (..., n, m); NaN where A is not positive definite."""
    return cho_solve((jnp.linalg.cholesky(matrices), True), right_sides)


def woodbury(
    diagonal: Float[Array, "... D"],
    rows: Float[Array, "P R D"] | None,
    vectors: Float[Array, "P n D"],
) -> tuple[Float[Array, "P n n"], Callable[[Array], Array]]:
    """Solutions of A_p x = v, A_p = diag(d_p) + R_p' R_p, exactly, by systems of the size of R_p.

    Parameters
    ----------
    diagonal : Array
        d > 0, shape (P, D), or (1, D) where it is the same for all.
    rows : Array or None
        R, shape (P, R, D).
    vectors : Array
        v, n for each of P, shape (P, n, D).

    Returns
    -------
    tuple
        The products v_pi' A_p^-1 v_pj, shape (P, n, n), and the map of weights w (P, n) to
        A_p^-1 sum_i w_pi v_pi, shape (P, D).
    """
    root = lax.rsqrt(diagonal)[:, None]
    # Accelerators multiply in reduced precision unless told otherwise.
    matmul = partial(jnp.matmul, precision="highest")
    return shared.woodbury(jnp, root, rows, vectors, matmul, cholesky_solve)


_Carry = tuple[Conjugate, Array, Array]


def conjugate_gradients(
    product: Callable[[Array], Array],
    right_side: Float[Array, " ..."],
    preconditioner: Callable[[Array], Array],
    tolerance: float = 1e-4,
    max_iterations: int = 50,
) -> IterativeSolution:
    """x with A x = b, by conjugate gradients from zero (Hestenes and Stiefel 1952).

    Parameters
    ----------
    product : callable
        Maps an array of the shape of b to A times it.
    right_side : Array
        b, of any shape.
    preconditioner : callable
        Maps an array of the shape of b to nearly A^-1 times it, by a positive definite matrix.
    tolerance : float
        Residual, relative to b, at which to stop.
    max_iterations : int
    """
    size = jnp.sqrt((right_side**2).sum())
    bound = tolerance * size

    def unfinished(carry: _Carry) -> Array:
        now, count, definite = carry
        short = jnp.sqrt((now.residual**2).sum()) <= bound
        return (count < max_iterations) & ~short & definite

    def iterate(carry: _Carry) -> _Carry:
        now, count, _ = carry
        image = product(now.direction)
        curvature = (now.direction * image).sum()
        definite = curvature > 0.0
        # A step of zero length where there is negative curvature, or nothing finite.
        length = jnp.where(definite, now.fall / jnp.where(definite, curvature, 1.0), 0.0)
        return now.after(length, image, preconditioner), count + 1, definite

    first = beginning(right_side, jnp.zeros_like(right_side), preconditioner)
    carry = first, jnp.asarray(0, jnp.int32), jnp.asarray(True)
    now, count, definite = lax.while_loop(unfinished, iterate, carry)
    relative = jnp.sqrt((now.residual**2).sum()) / jnp.where(size > 0.0, size, 1.0)
    return IterativeSolution(now.solution, relative, count, definite)
