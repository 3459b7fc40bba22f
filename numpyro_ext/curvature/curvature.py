"""Curvature matrices on JAX's arrays, see :mod:`ppl_ext.curvature.curvature`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from ppl_ext.curvature import curvature, outer_products
from ppl_ext.curvature.curvature import KroneckerBlock

jax.tree_util.register_dataclass(KroneckerBlock)


@jax.tree_util.register_dataclass
class Curvature(curvature.Curvature):
    """H_p = diag(d_p) + M_p + R_p' R_p + blocks A_p (x) B_p, positive semidefinite.

    Parameters
    ----------
    diagonal : Array
        d, shape (P, D), or (1, D) where it is the same for all particles.
    matrix : Array or None
        M, shape (P, D, D).
    rows : Array or None
        R, shape (P, R, D).
    blocks : tuple of KroneckerBlock
        Blocks on the diagonal.
    """

    xp: ClassVar[Any] = jnp
    eigen = staticmethod(jnp.linalg.eigh)

    @staticmethod
    def detached(values: Array) -> Array:
        """The same as constants, through which no derivative goes."""
        return lax.stop_gradient(values)

    def _with_blocks(self, total: Array, part: Callable[[KroneckerBlock], Array]) -> Array:
        # Piece by piece: of additions at coordinates each would write the whole array.
        pieces, stop = [], 0
        for block in sorted(self.blocks, key=lambda block: block.start):
            pieces += [total[..., stop : block.start], total[..., block.where] + part(block)]
            stop = block.where.stop
        return jnp.concatenate([*pieces, total[..., stop:]], axis=-1) if pieces else total

    @staticmethod
    def _added(total: Array, where: Any, values: Array) -> Array:
        return total.at[where].add(values)


OUTER_PRODUCTS = outer_products.OuterProducts(
    jnp,
    lambda direction, like: jnp.asarray(direction, like.dtype),
    Curvature,
    lambda steps, step, start: lax.fori_loop(0, steps, lambda _, tree: step(tree), start),
    lax.cond,
)


__all__ = ["OUTER_PRODUCTS", "Curvature", "KroneckerBlock"]
