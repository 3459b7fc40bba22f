"""The linear system of Stein variational Newton on JAX's arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float

from numpyro_ext.curvature import cholesky_solve, conjugate_gradients, woodbury
from ppl_ext.stein import newton_system
from ppl_ext.stein.newton_system import Solution


class LinearSystem(newton_system.LinearSystem):
    xp: ClassVar[Any] = jnp
    cholesky_solve, woodbury = staticmethod(cholesky_solve), staticmethod(woodbury)
    conjugate_gradients = staticmethod(conjugate_gradients)

    @staticmethod
    def identity(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
        return jnp.eye(len(matrix), dtype=matrix.dtype)

    @staticmethod
    def mean_of_diagonal(matrix: Float[Array, "n n"]) -> Float[Array, ""]:
        return jnp.trace(matrix) / len(matrix)

    @staticmethod
    def factored(gram: Float[Array, "P P"]) -> tuple[Float[Array, "P P"], Float[Array, "P P"]]:
        factor = jnp.linalg.cholesky(gram)
        return factor, solve_triangular(factor, jnp.eye(len(gram), dtype=gram.dtype), lower=True)

    @staticmethod
    def eliminated(
        features: Float[Array, "P P Q"],
        inverse: Float[Array, "P P"],
        plain: Float[Array, "P Q"],
        inner: Float[Array, "P Q Q"],
    ) -> Float[Array, "P Q"]:
        number, dim = plain.shape
        # W of the caller, by the basis: row (m, j) has c_j(m)_q times entry (m, p) of K^-1.
        mixing = jnp.einsum("mjq,mp->mjpq", features, inverse)
        mixing = mixing.reshape(number * number, number, dim)
        spread = jnp.einsum("kpq,pqr->kpr", mixing, inner)
        # The system of Woodbury's identity, with one row for each pair (m, j) of particles.
        capacity = spread.reshape(len(mixing), -1) @ mixing.reshape(len(mixing), -1).T
        # Woodbury's identity: I + W A^-1 W' is all that is solved.
        capacity = capacity + jnp.eye(len(mixing), dtype=capacity.dtype)
        seen = jnp.einsum("kpq,pq->k", mixing, plain)[:, None]
        return jnp.einsum("kpq,k->pq", mixing, cholesky_solve(capacity, seen)[:, 0])

    @staticmethod
    def squared(features: Float[Array, "P P Q"], inner: Float[Array, "P Q"]) -> Float[Array, "P Q"]:
        seen = jnp.einsum("mjq,mq->mj", features, inner)
        return jnp.einsum("mjq,mj->mq", features, seen)

    @staticmethod
    def expanded(values: Array, number: int) -> Array:
        return jnp.broadcast_to(values, (number, *values.shape[1:]))

    @staticmethod
    def block_factors(
        roots: Float[Array, "P P"], features: Float[Array, "P P Q"], count: int
    ) -> Array:
        def factor(root: Array, features: Array) -> Array:
            return jax.scipy.linalg.block_diag(jnp.diag(jnp.repeat(root, count)), features)

        return jax.vmap(factor)(roots, features)

    @staticmethod
    def for_each(function: Callable[..., Any], *values: Array) -> Float[Array, "P D"]:
        return jax.vmap(function)(*values)

    @staticmethod
    def direct(moves: Float[Array, "P D"]) -> Solution:
        zero = jnp.zeros((), moves.dtype)
        return Solution(moves, jnp.asarray(True), zero, jnp.asarray(0, jnp.int32))

    @staticmethod
    def checked(found: Solution) -> Solution:
        solved = found.solved & jnp.isfinite(found.moves).all()
        return found._replace(moves=jnp.where(solved, found.moves, 0.0), solved=solved)
