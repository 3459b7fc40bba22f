"""Precisions of JAX arrays; see :mod:`ppl_ext.laplace.gaussian`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from ppl_ext.laplace import gaussian


class Algebra(gaussian.Algebra):
    """Functions of JAX arrays."""

    xp = jnp
    eigen = staticmethod(jnp.linalg.eigh)
    cholesky = staticmethod(jnp.linalg.cholesky)

    @staticmethod
    def held(array: Array) -> Array:
        return lax.stop_gradient(array)

    @staticmethod
    def solve_transposed(factor: Array, columns: Array) -> Array:
        return solve_triangular(factor.T, columns)

    @staticmethod
    def put(array: Array, index: Any, value: Any) -> Array:
        return array.at[index].set(value)


@jax.tree_util.register_dataclass
class DensePrecision(gaussian.DensePrecision, Algebra):
    def definite(self) -> Array:
        sound = jnp.isfinite(self.factor).all() & (self.factor.diagonal() > 0.0).all()
        above = lax.cond(
            self.bounded | ~sound,
            lambda: jnp.asarray(True),
            lambda: jnp.linalg.eigvalsh(self.factor @ self.factor.T)[0] > self._rounding(),
        )
        return jnp.broadcast_to(sound & above, self.scale.shape)


@jax.tree_util.register_dataclass
class RowPrecision(gaussian.RowPrecision, Algebra):
    pass


@jax.tree_util.register_dataclass
class KroneckerPrecision(gaussian.KroneckerPrecision, Algebra):
    pass


@jax.tree_util.register_dataclass
class BlockPrecision(gaussian.BlockPrecision, Algebra):
    pass


Precision = gaussian.Precision
eigenvalues = Algebra.eigenvalues
KINDS = gaussian.Kinds(DensePrecision, RowPrecision, KroneckerPrecision, BlockPrecision)
precision_of = KINDS.precision_of
