"""Curvature matrices of P particles, each a sum of parts that are never formed as a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ppl_ext.stein.newton import CurvatureSizes


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KroneckerBlock:
    """A block A (x) B of the coordinates from ``start`` on, for each of P particles.

    Parameters
    ----------
    left : Array
        A, shape (P, a, a).
    right : Array
        B, shape (P, b, b).
    start : int
        First coordinate; the block has a b of them, with the index of B running fastest.
    """

    left: Float[Array, "P a a"]
    right: Float[Array, "P b b"]
    start: int = field(metadata={"static": True})

    @property
    def where(self) -> slice:
        """Coordinates of the block."""
        return slice(self.start, self.start + self.left.shape[1] * self.right.shape[1])

    def products(self, vectors: Float[Array, "P n ab"]) -> Float[Array, "P n ab"]:
        """A_p (x) B_p times n vectors of each particle, (P, n, a b)."""
        rows, columns = self.left.shape[1], self.right.shape[1]
        if rows == 1:
            return (vectors @ self.right) * self.left
        part = vectors.reshape(*vectors.shape[:-1], rows, columns)
        part = self.left[:, None] @ part @ self.right[:, None]
        return part.reshape(*part.shape[:2], -1)

    def mean_products(self, vectors: Float[Array, "n ab"]) -> Float[Array, "n ab"]:
        """The mean over particles of A_p (x) B_p times each of n vectors, (n, a b)."""
        number, rows, columns = len(self.left), self.left.shape[1], self.right.shape[1]
        if rows == 1:
            return vectors @ (self.left * self.right).mean(axis=0)
        # Two large products are faster than two small ones for each particle.
        right = self.right.swapaxes(0, 1).reshape(columns, -1)
        part = (vectors.reshape(-1, columns) @ right).reshape(-1, rows, number, columns)
        left = self.left.swapaxes(0, 1).reshape(rows, -1)
        part = left @ part.transpose(2, 1, 0, 3).reshape(number * rows, -1)
        part = part.reshape(rows, -1, columns).swapaxes(0, 1)
        return part.reshape(vectors.shape) / number


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Curvature:
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

    diagonal: Float[Array, "... D"]
    matrix: Float[Array, "P D D"] | None = None
    rows: Float[Array, "P R D"] | None = None
    blocks: tuple[KroneckerBlock, ...] = ()

    @property
    def number(self) -> int:
        """Number P of particles; 1 where all have the same diagonal and nothing else."""
        leaves = [self.diagonal, self.matrix, self.rows, *(block.left for block in self.blocks)]
        return max(len(leaf) for leaf in leaves if leaf is not None)

    @property
    def sizes(self) -> CurvatureSizes:
        """The sizes of the parts."""
        return CurvatureSizes(
            0 if self.rows is None else self.rows.shape[1],
            self.matrix is not None,
            tuple((block.left.shape[1], block.right.shape[1]) for block in self.blocks),
            len(self.diagonal) == 1,
        )

    def product(self, vectors: Float[Array, "P D"]) -> Float[Array, "P D"]:
        """H_p v_p for one vector of each particle, (P, D)."""
        return self.products(vectors[:, None])[:, 0]

    def products(self, vectors: Float[Array, "P n D"]) -> Float[Array, "P n D"]:
        """H_p v_pn for n vectors of each particle, (P, n, D)."""
        total = self.diagonal[:, None] * vectors
        if self.matrix is not None:
            total = total + vectors @ self.matrix
        if self.rows is not None:
            total = total + (vectors @ self.rows.mT) @ self.rows
        return self._with_blocks(total, lambda block: block.products(vectors[..., block.where]))

    def quadratic(self, vectors: Float[Array, "P D"]) -> Float[Array, " P"]:
        """v_p' H_p v_p for one vector of each particle, (P,)."""
        total = (self.diagonal * vectors**2).sum(axis=1)
        if self.matrix is not None:
            total = total + ((vectors[:, None] @ self.matrix)[:, 0] * vectors).sum(axis=1)
        if self.rows is not None:
            # Rows are passed over once, and not back again.
            total = total + ((self.rows @ vectors[..., None])[..., 0] ** 2).sum(axis=1)
        for block in self.blocks:
            part = vectors[:, block.where]
            total = total + (part * block.products(part[:, None])[:, 0]).sum(axis=1)
        return total

    def mean_products(self, vectors: Float[Array, "n D"]) -> Float[Array, "n D"]:
        """The mean over particles of H_p times each of n vectors, (n, D)."""
        total = self.diagonal.mean(axis=0) * vectors
        if self.matrix is not None:
            total = total + vectors @ self.matrix.mean(axis=0)
        if self.rows is not None:
            # The rows of all particles side by side: one large product is faster than P small.
            rows = self.rows.reshape(-1, self.rows.shape[-1])
            total = total + (vectors @ rows.T) @ rows / len(self.rows)
        return self._with_blocks(total, lambda block: block.mean_products(vectors[:, block.where]))

    def diagonals(self) -> Float[Array, "P D"]:
        """The diagonals of all H_p, (P, D)."""
        total = jnp.broadcast_to(self.diagonal, (self.number, self.diagonal.shape[1]))
        if self.matrix is not None:
            total = total + jnp.diagonal(self.matrix, axis1=1, axis2=2)
        if self.rows is not None:
            total = total + (self.rows**2).sum(axis=1)

        def diagonal(block: KroneckerBlock) -> Array:
            left = jnp.diagonal(block.left, axis1=1, axis2=2)
            right = jnp.diagonal(block.right, axis1=1, axis2=2)
            return (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)

        return self._with_blocks(total, diagonal)

    def _with_blocks(self, total: Array, part: Callable[[KroneckerBlock], Array]) -> Array:
        """``total`` (..., D) and what is found of each block, added at its coordinates."""
        # Piece by piece: of additions at coordinates each would write the whole array.
        pieces, stop = [], 0
        for block in sorted(self.blocks, key=lambda block: block.start):
            pieces += [total[..., stop : block.start], total[..., block.where] + part(block)]
            stop = block.where.stop
        return jnp.concatenate([*pieces, total[..., stop:]], axis=-1) if pieces else total

    def dense(self) -> Float[Array, "P D D"]:
        """All H_p, (P, D, D)."""
        number, dim = self.number, self.diagonal.shape[1]
        diagonal = jnp.broadcast_to(self.diagonal, (number, dim))
        total = diagonal[:, :, None] * jnp.eye(dim, dtype=self.diagonal.dtype)
        if self.matrix is not None:
            total = total + self.matrix
        if self.rows is not None:
            total = total + self.rows.mT @ self.rows
        for block in self.blocks:
            product = jnp.einsum("pab,pcd->pacbd", block.left, block.right)
            size = block.left.shape[1] * block.right.shape[1]
            where = block.where
            total = total.at[:, where, where].add(product.reshape(number, size, size))
        return total
