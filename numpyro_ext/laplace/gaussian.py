"""Precisions of JAX arrays; see :mod:`ppl_ext.laplace.gaussian`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Bool, Float

from ppl_ext.laplace import gaussian


class Algebra(gaussian.Algebra):
    """Functions of JAX arrays."""

    xp = jnp
    eigen = staticmethod(jnp.linalg.eigh)
    cholesky = staticmethod(jnp.linalg.cholesky)

    @staticmethod
    def detached(array: Float[Array, " ..."]) -> Float[Array, " ..."]:
        return lax.stop_gradient(array)

    @staticmethod
    def singular(
        rows: Float[Array, "R d"],
    ) -> tuple[Float[Array, "R n"], Float[Array, " n"], Float[Array, "n d"]]:
        left, values, right = jnp.linalg.svd(rows, full_matrices=False)
        return left, values, right

    @staticmethod
    def triangular(matrix: Float[Array, "R d"]) -> Float[Array, "d d"]:
        return jnp.linalg.qr(matrix, mode="r")

    @staticmethod
    def solve_transposed(
        factor: Float[Array, "n n"], columns: Float[Array, "n m"]
    ) -> Float[Array, "n m"]:
        return solve_triangular(factor.T, columns)

    @staticmethod
    def put(array: Float[Array, " ..."], index: Any, value: Any) -> Float[Array, " ..."]:
        return array.at[index].set(value)


@jax.tree_util.register_dataclass
class DensePrecision(gaussian.DensePrecision, Algebra):
    def definite(self) -> Bool[Array, " d"]:
        sound = jnp.isfinite(self.factor).all() & (self.factor.diagonal() > 0.0).all()
        above = lax.cond(
            self.bounded | ~sound,
            lambda: jnp.asarray(True),
            lambda: jnp.linalg.eigvalsh(self.factor @ self.factor.T)[0] > self._rounding(),
        )
        return jnp.broadcast_to(sound & above, self.scale.shape)


@jax.tree_util.register_dataclass
class RowPrecision(gaussian.RowPrecision, Algebra): ...


@jax.tree_util.register_dataclass
class KroneckerPrecision(gaussian.KroneckerPrecision, Algebra): ...


@jax.tree_util.register_dataclass
class BlockPrecision(gaussian.BlockPrecision, Algebra): ...


Precision = gaussian.Precision
eigenvalues = Algebra.eigenvalues
PRECISIONS = gaussian.Precisions(DensePrecision, RowPrecision, KroneckerPrecision, BlockPrecision)
precision_of = PRECISIONS.precision_of
