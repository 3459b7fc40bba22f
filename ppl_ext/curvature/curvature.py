"""Curvature matrices of P particles, each a sum of parts that are never formed as a whole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

from jaxtyping import Float


class CurvatureSizes(NamedTuple):
    """The sizes of the parts of a curvature, as far as they decide what a solver costs.

    Parameters
    ----------
    rows : int
        Rows R of each particle.
    has_matrix : bool
        Whether there is a matrix (D, D) of each particle.
    blocks : tuple of (int, int)
        Sides of the factors of each Kronecker block.
    one_diagonal : bool
        Whether the diagonal is the same for all particles.
    """

    rows: int
    has_matrix: bool
    blocks: tuple[tuple[int, int], ...]
    one_diagonal: bool


#: Arrays by name, sums over rows among them.
Sums = dict[str, Any]


class Rows(ABC):
    """Rows R (P, R, D) of the Jacobians of P particles, in chunks (P, r, D).

    Parameters
    ----------
    nothing : array
        Zeros (P, 1, D).
    single : array, optional
        The rows, where they are one chunk.
    """

    def __init__(self, nothing: Float[Any, "P 1 D"], single: Float[Any, "P R D"] | None) -> None:
        self.nothing, self.single = nothing, single

    @property
    @abstractmethod
    def count(self) -> int:
        """Rows R of each particle."""

    @abstractmethod
    def fold(self, function: Callable[[Sums, Any, Sums], Sums], carry: Sums, held: Sums) -> Sums:
        """``function(carry, rows, held)`` over the chunks, from a first ``carry``.

        Arrays that the function uses and that have a derivative must be in ``held``.
        """

    @abstractmethod
    def all(self) -> Float[Any, "P R D"]:
        """All rows."""

    def sums(self, function: Callable[[Any, Sums], Sums], held: Sums) -> Sums:
        """The sums of ``function(rows, held)``, 0 of rows that are 0, over the chunks."""
        if self.single is not None:
            return function(self.single, held)

        def add(carry: Sums, rows: Any, held: Sums) -> Sums:
            part = function(rows, held)
            return {name: carry[name] + part[name] for name in part}

        return self.fold(add, function(self.nothing, held), held)

    def total(self, function: Callable[[Any], Any]) -> Any:
        """The sum of ``function(rows)``, an array, over the chunks."""
        return self.sums(lambda rows, _: {"": function(rows)}, {})[""]


@dataclass(frozen=True)
class KroneckerBlock:
    """A block A (x) B of the coordinates from ``start`` on, for each of P particles.

    Parameters
    ----------
    left : array
        A, shape (P, a, a).
    right : array
        B, shape (P, b, b).
    start : int
        First coordinate; the block has a b of them, with the index of B running fastest.
    """

    left: Float[Any, "P a a"]
    right: Float[Any, "P b b"]
    # A part of the structure, and not a leaf, where JAX takes the block for a tree.
    start: int = field(metadata={"static": True})

    @cached_property
    def where(self) -> slice:
        """Coordinates of the block."""
        return slice(self.start, self.start + self.left.shape[1] * self.right.shape[1])

    def product(self, vectors: Float[Any, "P ab"]) -> Float[Any, "P ab"]:
        """A_p (x) B_p times one vector of each particle, (P, a b)."""
        # Without an axis of vectors, which costs as much as the products where blocks are small.
        rows = self.left.shape[1]
        part = vectors.reshape(len(vectors), rows, -1) @ self.right
        part = part * self.left if rows == 1 else self.left @ part
        return part.reshape(len(vectors), -1)

    def products(self, vectors: Float[Any, "P n ab"]) -> Float[Any, "P n ab"]:
        """A_p (x) B_p times n vectors of each particle, (P, n, a b)."""
        rows, columns = self.left.shape[1], self.right.shape[1]
        if rows == 1:
            return (vectors @ self.right) * self.left
        part = vectors.reshape(*vectors.shape[:-1], rows, columns)
        part = self.left[:, None] @ part @ self.right[:, None]
        return part.reshape(*part.shape[:2], -1)

    def mean_products(self, vectors: Float[Any, "n ab"]) -> Float[Any, "n ab"]:
        """The mean over particles of A_p (x) B_p times each of n vectors, (n, a b)."""
        number, rows, columns = len(self.left), self.left.shape[1], self.right.shape[1]
        if rows == 1:
            return vectors @ (self.left * self.right).mean(axis=0)
        # Two large products are faster than two small ones for each particle.
        # (b, P b), and below (a, P a): all particles' factors side by side.
        right = self.right.swapaxes(0, 1).reshape(columns, -1)
        part = (vectors.reshape(-1, columns) @ right).reshape(-1, rows, number, columns)
        left = self.left.swapaxes(0, 1).reshape(rows, -1)
        part = left @ part.swapaxes(0, 2).reshape(number * rows, -1)
        part = part.reshape(rows, -1, columns).swapaxes(0, 1)
        return part.reshape(vectors.shape) / number


@dataclass(frozen=True)
class Curvature:
    """H_p = diag(d_p) + M_p + R_p' R_p + blocks A_p (x) B_p, positive semidefinite.

    Parameters
    ----------
    diagonal : array
        d, shape (P, D), or (1, D) where it is the same for all particles.
    matrix : array or None
        M, shape (P, D, D).
    rows : array or None
        R, shape (P, R, D).
    blocks : tuple of KroneckerBlock
        Blocks on the diagonal.
    """

    #: ``torch`` or ``jax.numpy``, of which only functions are used that are the same in both.
    xp: ClassVar[Any]
    #: Eigenvalues, rising, and eigenvectors of symmetric matrices.
    eigen: ClassVar[Callable[..., tuple[Any, Any]]]
    #: An array as a constant, without a derivative.
    detached: ClassVar[Callable[..., Any]]

    diagonal: Float[Any, "... D"]
    matrix: Float[Any, "P D D"] | None = None
    rows: Float[Any, "P R D"] | None = None
    blocks: tuple[KroneckerBlock, ...] = ()

    @classmethod
    def of_prior(cls, found: Float[Any, "P D ..."]) -> Self:
        """The curvature of a prior, given as diagonals (P, D) or as matrices (P, D, D)."""
        return cls(found) if found.ndim == 2 else cls(cls.xp.zeros_like(found[:1, 0]), found)

    @classmethod
    def of_rows(cls, rows: Rows, structure: str, rank: int, numbers: int = 0) -> Self:
        """R_p' R_p in any structure of :class:`GaussNewton` but Kronecker factors.

        ``rank`` is that of ``"low_rank"``. ``"full"`` is summed up where that is smaller, and R_p
        has more than so many ``numbers``.
        """
        xp, nothing = cls.xp, rows.nothing[:, 0]
        dim = nothing.shape[-1]
        if structure == "diag":
            return cls(rows.total(lambda r: (r**2).sum(axis=1)))
        if structure == "full":
            if rows.count <= dim or rows.count * dim <= numbers:
                return cls(nothing[:1], rows=rows.all())
            return cls(nothing[:1], matrix=rows.total(lambda r: r.mT @ r))
        rank = min(rank, rows.count, dim)

        def merge(carry: Sums, r: Any, _: Sums) -> Sums:
            kept = cls.leading(xp.concatenate([carry["kept"], r], axis=1), rank)
            return {"kept": kept, "total": carry["total"] + (r**2).sum(axis=1)}

        if rows.single is None:
            start = {"kept": xp.tile(rows.nothing, (1, rank, 1)), "total": nothing}
            found = rows.fold(merge, start, {})
            kept, total = found["kept"], found["total"]
        else:
            kept, total = cls.leading(rows.single, rank), (rows.single**2).sum(axis=1)
        rest = total - (kept**2).sum(axis=1)
        # A difference within rounding of zero is zero, not a precision.
        rounding = 10.0 * rows.count * xp.finfo(total.dtype).eps * total
        return cls(xp.where(rest > rounding, rest, 0.0), rows=kept)

    @classmethod
    def leading(cls, rows: Float[Any, "P R D"], rank: int) -> Float[Any, "P k D"]:
        """Rows (P, rank, D) with the leading terms of R' R, and their derivative up to rotations.

        Found from the smaller Gram matrix: a singular value decomposition of R costs more.
        """
        # R R' has the non-zero eigenvalues of R' R; with its leading eigenvectors V the rows V' R
        # keep the leading terms.
        gram = rows @ rows.mT
        constant = cls.detached(gram)
        values, vectors = cls.eigen(constant)
        kept, dropped = vectors[..., -rank:], vectors[..., :-rank]
        # First-order change of the leading eigenspace, into the other one.
        gaps = values[:, None, -rank:] - values[:, :-rank, None]
        rounding = values.shape[-1] * cls.xp.finfo(rows.dtype).eps
        apart = gaps > rounding * values[:, -1:, None]
        slopes = cls.xp.where(apart, 1.0 / cls.xp.where(apart, gaps, 1.0), 0.0)
        kept = kept + dropped @ (slopes * (dropped.mT @ (gram - constant) @ kept))
        return kept.mT @ rows

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

    def plus(self, other: Any) -> Any:
        """The sum of two curvatures, of which one at most has blocks."""
        rows = [part.rows for part in (self, other) if part.rows is not None]
        matrices = [part.matrix for part in (self, other) if part.matrix is not None]
        return type(self)(
            self.diagonal + other.diagonal,
            sum(matrices[1:], start=matrices[0]) if matrices else None,
            self.xp.concatenate(rows, axis=1) if rows else None,
            self.blocks + other.blocks,
        )

    def product(self, vectors: Float[Any, "P D"]) -> Float[Any, "P D"]:
        """H_p v_p for one vector of each particle, (P, D)."""
        if self.matrix is not None or self.rows is not None:
            return self.products(vectors[:, None])[:, 0]
        total = self.diagonal * vectors
        return self._with_blocks(total, lambda block: block.product(vectors[:, block.where]))

    def products(self, vectors: Float[Any, "P n D"]) -> Float[Any, "P n D"]:
        """H_p v_pn for n vectors of each particle, (P, n, D)."""
        total = self.diagonal[:, None] * vectors
        if self.matrix is not None:
            # Matrices are symmetric, so that vectors may stand on the left, as rows.
            total = total + vectors @ self.matrix
        if self.rows is not None:
            total = total + (vectors @ self.rows.mT) @ self.rows
        return self._with_blocks(total, lambda block: block.products(vectors[..., block.where]))

    def quadratic(self, vectors: Float[Any, "P D"]) -> Float[Any, " P"]:
        """v_p' H_p v_p for one vector of each particle, (P,)."""
        total = (self.diagonal * vectors**2).sum(axis=1)
        if self.matrix is not None:
            total = total + ((vectors[:, None] @ self.matrix)[:, 0] * vectors).sum(axis=1)
        if self.rows is not None:
            # Rows are passed over once, and not back again.
            total = total + ((self.rows @ vectors[..., None])[..., 0] ** 2).sum(axis=1)
        for block in self.blocks:
            part = vectors[:, block.where]
            total = total + (part * block.product(part)).sum(axis=1)
        return total

    def mean_products(self, vectors: Float[Any, "n D"]) -> Float[Any, "n D"]:
        """The mean over particles of H_p times each of n vectors, (n, D)."""
        total = self.diagonal.mean(axis=0) * vectors
        if self.matrix is not None:
            total = total + vectors @ self.matrix.mean(axis=0)
        if self.rows is not None:
            # The rows of all particles side by side: one large product is faster than P small.
            rows = self.rows.reshape(-1, self.rows.shape[-1])
            total = total + (vectors @ rows.T) @ rows / len(self.rows)
        return self._with_blocks(total, lambda block: block.mean_products(vectors[:, block.where]))

    def diagonals(self) -> Float[Any, "P D"]:
        """The diagonals of all H_p, (P, D)."""
        total = self._of_each()
        if self.matrix is not None:
            total = total + self.matrix.diagonal(0, 1, 2)
        if self.rows is not None:
            total = total + (self.rows**2).sum(axis=1)

        def diagonal(block: KroneckerBlock) -> Any:
            left = block.left.diagonal(0, 1, 2)
            right = block.right.diagonal(0, 1, 2)
            return (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)

        return self._with_blocks(total, diagonal)

    def dense(self) -> Float[Any, "P D D"]:
        """All H_p, (P, D, D)."""
        xp, identity = self.xp, self.xp.diag(self.xp.ones_like(self.diagonal[0]))
        total = self._of_each()[:, :, None] * identity
        if self.matrix is not None:
            total = total + self.matrix
        if self.rows is not None:
            total = total + self.rows.mT @ self.rows
        for block in self.blocks:
            product = xp.einsum("pab,pcd->pacbd", block.left, block.right)
            size = block.left.shape[1] * block.right.shape[1]
            where = (slice(None), block.where, block.where)
            total = self._added(total, where, product.reshape(len(product), size, size))
        return total

    def _of_each(self) -> Float[Any, "P D"]:
        """The diagonal parts of all particles, in memory of their own."""
        return self.xp.tile(self.diagonal, (self.number // len(self.diagonal), 1))

    def _with_blocks(self, total: Any, part: Callable[[KroneckerBlock], Any]) -> Any:
        """``total`` (..., D) and what is found of each block, added at its coordinates."""
        for block in self.blocks:
            total = self._added(total, (..., block.where), part(block))
        return total

    @staticmethod
    def _added(total: Any, where: Any, values: Any) -> Any:
        """An array to which values are added at some places; its memory may be written over."""
        raise NotImplementedError
