"""Curvature matrices of P particles, each a sum of parts that are never formed as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.stein.newton import CurvatureSizes


@dataclass(frozen=True)
class KroneckerBlock:
    """A block A (x) B of the coordinates from ``start`` on, for each of P particles.

    Parameters
    ----------
    left : Tensor
        A, shape (P, a, a).
    right : Tensor
        B, shape (P, b, b).
    start : int
        First coordinate; the block has a b of them, with the index of B running fastest.
    """

    left: Float[Tensor, "P a a"]
    right: Float[Tensor, "P b b"]
    start: int

    @cached_property
    def where(self) -> slice:
        """Coordinates of the block."""
        return slice(self.start, self.start + self.left.shape[1] * self.right.shape[1])

    def product(self, vectors: Float[Tensor, "P ab"]) -> Float[Tensor, "P ab"]:
        """A_p (x) B_p times one vector of each particle, (P, a b)."""
        # Without an axis of vectors, which costs as much as the products where blocks are small.
        rows = self.left.shape[1]
        part = vectors.reshape(len(vectors), rows, -1) @ self.right
        part = part * self.left if rows == 1 else self.left @ part
        return part.flatten(start_dim=1)

    def products(self, vectors: Float[Tensor, "P n ab"]) -> Float[Tensor, "P n ab"]:
        """A_p (x) B_p times n vectors of each particle, (P, n, a b)."""
        rows, columns = self.left.shape[1], self.right.shape[1]
        if rows == 1:
            return (vectors @ self.right) * self.left
        part = vectors.reshape(*vectors.shape[:-1], rows, columns)
        return (self.left[:, None] @ part @ self.right[:, None]).flatten(start_dim=2)

    def mean_products(self, vectors: Float[Tensor, "n ab"]) -> Float[Tensor, "n ab"]:
        """The mean over particles of A_p (x) B_p times each of n vectors, (n, a b)."""
        number, rows, columns = len(self.left), self.left.shape[1], self.right.shape[1]
        if rows == 1:
            return vectors @ (self.left * self.right).mean(dim=0)
        # Two large products are faster than two small ones for each particle.
        right = self.right.swapdims(0, 1).reshape(columns, -1)
        part = (vectors.reshape(-1, columns) @ right).reshape(-1, rows, number, columns)
        left = self.left.swapdims(0, 1).reshape(rows, -1)
        part = left @ part.permute(2, 1, 0, 3).reshape(number * rows, -1)
        part = part.reshape(rows, -1, columns).swapdims(0, 1)
        return part.reshape(vectors.shape) / number


@dataclass(frozen=True)
class Curvature:
    """H_p = diag(d_p) + M_p + R_p' R_p + blocks A_p (x) B_p, positive semidefinite.

    Parameters
    ----------
    diagonal : Tensor
        d, shape (P, D), or (1, D) where it is the same for all particles.
    matrix : Tensor or None
        M, shape (P, D, D).
    rows : Tensor or None
        R, shape (P, R, D).
    blocks : tuple of KroneckerBlock
        Blocks on the diagonal.
    """

    diagonal: Float[Tensor, "... D"]
    matrix: Float[Tensor, "P D D"] | None = None
    rows: Float[Tensor, "P R D"] | None = None
    blocks: tuple[KroneckerBlock, ...] = ()

    def as_tensors(self) -> dict[str, Any]:
        """The parts in a dictionary of tensors and numbers, for saving."""
        blocks = [(block.left, block.right, block.start) for block in self.blocks]
        return {
            "diagonal": self.diagonal,
            "matrix": self.matrix,
            "rows": self.rows,
            "blocks": blocks,
        }

    @classmethod
    def from_tensors(cls, saved: dict[str, Any]) -> Curvature:
        """The curvature of :meth:`as_tensors`."""
        blocks = tuple(KroneckerBlock(*block) for block in saved["blocks"])
        return cls(saved["diagonal"], saved["matrix"], saved["rows"], blocks)

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

    def product(self, vectors: Float[Tensor, "P D"]) -> Float[Tensor, "P D"]:
        """H_p v_p for one vector of each particle, (P, D)."""
        if self.matrix is not None or self.rows is not None:
            return self.products(vectors[:, None])[:, 0]
        total = self.diagonal * vectors
        for block in self.blocks:
            total[:, block.where] += block.product(vectors[:, block.where])
        return total

    def products(self, vectors: Float[Tensor, "P n D"]) -> Float[Tensor, "P n D"]:
        """H_p v_pn for n vectors of each particle, (P, n, D)."""
        total = self.diagonal[:, None] * vectors
        if self.matrix is not None:
            total = total + vectors @ self.matrix
        if self.rows is not None:
            total = total + (vectors @ self.rows.mT) @ self.rows
        if self.blocks:
            total = total.expand(self.number, *total.shape[1:]).clone()
        for block in self.blocks:
            total[..., block.where] += block.products(vectors[..., block.where])
        return total

    def quadratic(self, vectors: Float[Tensor, "P D"]) -> Float[Tensor, " P"]:
        """v_p' H_p v_p for one vector of each particle, (P,)."""
        total = (self.diagonal * vectors**2).sum(dim=1)
        if self.matrix is not None:
            total = total + ((vectors[:, None] @ self.matrix)[:, 0] * vectors).sum(dim=1)
        if self.rows is not None:
            # Rows are passed over once, and not back again.
            total = total + (self.rows @ vectors[..., None])[..., 0].square().sum(dim=1)
        for block in self.blocks:
            part = vectors[:, block.where]
            total = total + (part * block.product(part)).sum(dim=1)
        return total

    def mean_products(self, vectors: Float[Tensor, "n D"]) -> Float[Tensor, "n D"]:
        """The mean over particles of H_p times each of n vectors, (n, D)."""
        total = self.diagonal.mean(dim=0) * vectors
        if self.matrix is not None:
            total = total + vectors @ self.matrix.mean(dim=0)
        if self.rows is not None:
            # The rows of all particles side by side: one large product is faster than P small.
            rows = self.rows.reshape(-1, self.rows.shape[-1])
            total = total + (vectors @ rows.T) @ rows / len(self.rows)
        for block in self.blocks:
            total[:, block.where] += block.mean_products(vectors[:, block.where])
        return total

    def diagonals(self) -> Float[Tensor, "P D"]:
        """The diagonals of all H_p, (P, D)."""
        total = self.diagonal.expand(self.number, self.diagonal.shape[1]).clone()
        if self.matrix is not None:
            total = total + self.matrix.diagonal(dim1=1, dim2=2)
        if self.rows is not None:
            total = total + (self.rows**2).sum(dim=1)
        for block in self.blocks:
            left = block.left.diagonal(dim1=1, dim2=2)
            right = block.right.diagonal(dim1=1, dim2=2)
            flat = (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)
            total[:, block.where] += flat
        return total

    def dense(self) -> Float[Tensor, "P D D"]:
        """All H_p, (P, D, D)."""
        number, dim = self.number, self.diagonal.shape[1]
        total = torch.diag_embed(self.diagonal.expand(number, dim))
        if self.matrix is not None:
            total = total + self.matrix
        if self.rows is not None:
            total = total + self.rows.mT @ self.rows
        for block in self.blocks:
            product = torch.einsum("pab,pcd->pacbd", block.left, block.right)
            size = block.left.shape[1] * block.right.shape[1]
            where = block.where
            total[:, where, where] += product.reshape(number, size, size)
        return total
