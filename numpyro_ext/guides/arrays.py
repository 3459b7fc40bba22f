"""Functions of JAX arrays for the formulas of ``ppl_ext.guides``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import block_diag, solve_triangular
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Float

from ppl_ext.guides.arrays import ArrayFunctions


class JaxFunctions(ArrayFunctions):
    """Functions of JAX arrays."""

    xp = jnp
    detached = staticmethod(lax.stop_gradient)
    inverse_root = staticmethod(lax.rsqrt)
    softplus = staticmethod(jax.nn.softplus)
    softmax = staticmethod(jax.nn.softmax)
    log_softmax = staticmethod(jax.nn.log_softmax)
    ndtr = staticmethod(ndtr)
    ndtri = staticmethod(ndtri)

    @staticmethod
    def as_array(values: Any, like: Array) -> Float[Array, " ..."]:
        return jnp.asarray(values, like.dtype)

    @staticmethod
    def identity(length: int, like: Array) -> Float[Array, "length length"]:
        return jnp.eye(length, dtype=like.dtype)

    @staticmethod
    def block_diagonal(matrices: Sequence[Float[Array, "_ _"]]) -> Float[Array, "D D"]:
        return block_diag(*matrices)

    @staticmethod
    def solve_lower(
        factor: Float[Array, "... n n"], rows: Float[Array, "... n"], transpose: bool = False
    ) -> Float[Array, "... n"]:
        together = rows if rows.ndim == factor.ndim else rows.reshape(-1, rows.shape[-1])
        solved = solve_triangular(factor, together.mT, trans=1 if transpose else 0, lower=True)
        return solved.mT.reshape(rows.shape)

    @staticmethod
    def largest(values: Float[Array, "... n"]) -> Float[Array, "... n"]:
        return jax.nn.one_hot(jnp.argmax(values, -1), values.shape[-1], dtype=values.dtype)

    @staticmethod
    def repeated(number: int, step: Callable[[Any], Any], start: Any) -> Any:
        return lax.fori_loop(0, number, lambda _, carry: step(carry), start)

    @staticmethod
    def until_settled(most: int, step: Callable[[Any], tuple[Any, Any]], start: Any) -> Any:
        def advance(state: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
            return *step(state[0]), state[2] + 1

        first = start, jnp.array(True), jnp.array(0)
        return lax.while_loop(lambda state: state[1] & (state[2] < most), advance, first)[0]
