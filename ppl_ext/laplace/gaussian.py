"""Gaussians given by a structured precision: their log determinants and draws.

The precision H is a ``Curvature`` of one position. A diagonal with rows R is factorised from the
rows themselves: by their singular values where they are few, and else by the triangular factor of
the rows and the diagonal's root, one above the other. The matrix R' R is not formed where rows can
be kept. Its condition number is the square of theirs: rows of a network, in units of the noise and
the prior, have singular values of 1e4 and more, whose squares leave no digit of the prior in single
precision. Kronecker blocks are factorised through the eigenvalues of their factors, and only a
precision that is a matrix already as a matrix.

Log determinants are differentiable, also where eigenvalues coincide.

A package gives the classes its array functions, those of :class:`Algebra`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from ppl_ext.documented import documents_subclasses

#: Dimension up to which a diagonal with rows has a triangular factor even where the rows are fewer:
#: it takes less than a tenth of a second, and the diagonal may be zero in places.
TRIANGULAR_UP_TO = 500


@documents_subclasses
class Algebra(ABC):
    """Functions of a framework's arrays.

    Attributes
    ----------
    xp : module
        ``torch`` or ``jax.numpy``, of which only functions are used that are the same in both.
    """

    xp: Any
    #: The array as a constant, without a derivative.
    detached: Callable[[Any], Any]
    #: Eigenvalues, rising, and eigenvectors of a constant symmetric matrix.
    eigen: Callable[[Any], tuple[Any, Any]]
    #: Lower triangular factor of a matrix; not finite where it is not positive definite.
    cholesky: Callable[[Any], Any]

    #: Left vectors (R, n), values (n,) and right vectors (n, D) of the singular value decomposition
    #: of constant rows (R, D), n the smaller number; values are NaN where the rows are not finite.
    singular: Callable[[Any], tuple[Any, Any, Any]]
    #: Upper triangular T (D, D) with T' T = A' A, for A (R, D) with R >= D.
    triangular: Callable[[Any], Any]

    @staticmethod
    @abstractmethod
    def solve_transposed(factor: Any, columns: Any) -> Any:
        """The x with L' x = v for a lower triangular L (D, D) and columns v (D, n)."""

    @staticmethod
    @abstractmethod
    def put(array: Any, index: Any, value: Any) -> Any:
        """An array with a value in some places; it may be changed itself."""

    @classmethod
    def eigenvalues(cls, matrix: Any) -> tuple[Any, Any]:
        """Eigenvalues, at least 0, and eigenvectors of a positive semidefinite matrix.

        Values within rounding of 0 are 0. Derivatives of symmetric functions of the values are
        right even where values coincide; the vectors have none.
        """
        constant = cls.detached(matrix)
        values, vectors = cls.eigen(0.5 * (constant + constant.T))
        # The first-order change of the values, as diag(V' dM V).
        moved = cls.xp.einsum("ij,ik,kj->j", vectors, matrix - constant, vectors)
        largest = abs(values).max() if len(values) else 0.0
        rounding = len(values) * cls.xp.finfo(values.dtype).eps * largest
        # What is not finite stays so.
        return cls.xp.where(values <= rounding, 0.0, values + moved), vectors

    @classmethod
    def without_negative(cls, found: Any) -> Any:
        """A symmetric matrix (D, D) with negative eigenvalues set to 0, and its derivative.

        Of a diagonal (D,) negative entries are.
        """
        if found.ndim == 1:
            return cls.xp.clip(found, 0.0)
        xp, matrix = cls.xp, 0.5 * (found + found.T)
        constant = cls.detached(matrix)
        values, vectors = cls.eigen(constant)
        positive = values > 0.0
        # What is not finite stays so.
        kept, rise = xp.where(values <= 0.0, 0.0, values), xp.where(positive, 1.0, 0.0 * values)
        # Divided differences of max(x, 0): the derivative of a function of a matrix, which has no
        # difference of eigenvalues in a denominator unless one of them is cut.
        gaps = values[:, None] - values
        crossing = positive[:, None] != positive
        slopes = xp.where(
            crossing, (kept[:, None] - kept) / xp.where(crossing, gaps, 1.0), rise[:, None]
        )
        change = vectors.T @ (matrix - constant) @ vectors
        return vectors @ (xp.diag(kept) + slopes * change) @ vectors.T


class Precision(Algebra):
    """A positive definite precision matrix H of D coordinates, factorised."""

    @abstractmethod
    def log_determinant(self) -> Any:
        """log det H, a scalar; not finite where H is singular."""

    @abstractmethod
    def draws(self, noise: Any) -> Any:
        """Draws of N(0, H^-1), shape (n, D), from standard Normal ``noise`` (n, D)."""

    @abstractmethod
    def quadratic(self, moves: Any) -> Any:
        """m' H m of n moves m (n, D), shape (n,)."""

    @abstractmethod
    def definite(self) -> Any:
        """Whether the precision is positive definite in every coordinate, bool (D,).

        Where the precision is one matrix that is not, all of its coordinates are False.
        """


@dataclass(frozen=True)
class DensePrecision(Precision):
    """H = S L L' S, with S the roots of H's diagonal.

    Parameters
    ----------
    scale : array
        S, shape (D,).
    factor : array
        L, shape (D, D), lower triangular.
    bounded : bool array
        Whether H is a positive diagonal and something positive semidefinite.
    """

    scale: Any
    factor: Any
    bounded: Any = False

    @classmethod
    def of(cls, matrix: Any, bounded: Any = False) -> Self:
        """Factorise a matrix (D, D)."""
        diagonal = matrix.diagonal()
        # Scaled to a unit diagonal first, so that units do not decide what is singular.
        scale = cls.xp.sqrt(cls.xp.where(diagonal > 0.0, diagonal, 1.0))
        return cls(scale, cls.cholesky(matrix / (scale[:, None] * scale)), bounded)

    @classmethod
    def of_rows(cls, diagonal: Any, rows: Any) -> Self:
        """Factorise diag(d) + R' R for a diagonal d (D,) and rows R (R, D)."""
        xp = cls.xp
        total = diagonal + (rows**2).sum(0)
        scale = xp.sqrt(xp.where(total > 0.0, total, 1.0))
        # The root has no slope at zero.
        root = xp.where(diagonal > 0.0, xp.sqrt(xp.where(diagonal > 0.0, diagonal, 1.0)), diagonal)
        # A QR decomposition of roots keeps the digits that R' R would lose. Rows of its triangle
        # may have either sign.
        upper = cls.triangular(xp.concatenate([xp.diag(root / scale), rows / scale]))
        return cls(scale, upper.T * xp.sign(upper.diagonal()), (diagonal > 0.0).all())

    def log_determinant(self) -> Any:
        log = self.xp.log
        return 2.0 * (log(self.scale) + log(self.factor.diagonal())).sum()

    def draws(self, noise: Any) -> Any:
        # L'^-1 e has the covariance (L L')^-1.
        return self.solve_transposed(self.factor, noise.T).T / self.scale

    def quadratic(self, moves: Any) -> Any:
        return (((moves * self.scale) @ self.factor) ** 2).sum(-1)

    def _rounding(self) -> float:
        """What rounding leaves of an eigenvalue of L L' that is zero."""
        eps: float = self.xp.finfo(self.scale.dtype).eps
        return 10.0 * len(self.scale) ** 0.5 * eps


@dataclass(frozen=True)
class RowPrecision(Precision):
    """H = diag(d) + R' R, by the singular values of R diag(d)^(-1/2).

    Parameters
    ----------
    diagonal : array
        d, shape (D,).
    directions : array
        Right singular vectors V, shape (n, D).
    values : array
        Squares t of the singular values, shape (n,).
    """

    diagonal: Any
    directions: Any
    values: Any

    @classmethod
    def of(cls, diagonal: Any, rows: Any) -> Self:
        """Factorise a diagonal (D,) and rows (R, D)."""
        scaled = rows / cls.xp.sqrt(cls.xp.where(diagonal > 0.0, diagonal, 1.0))
        constant = cls.detached(scaled)
        left, values, right = cls.singular(constant)
        # The first-order change of the values, as diag(U' dR V').
        moved = ((left.T @ (scaled - constant)) * right).sum(-1)
        # t = s^2, so that dt = 2 s ds.
        return cls(diagonal, right, values**2 + 2.0 * values * moved)

    def log_determinant(self) -> Any:
        # det(diag(d) + R'R) = prod(d) det(I + Q Q') with Q = R diag(d)^(-1/2), whose squared
        # singular values are t.
        return self.xp.log(self.diagonal).sum() + self.xp.log1p(self.values).sum()

    def draws(self, noise: Any) -> Any:
        # (1 + t)^(-1/2) - 1, without the cancellation at t = 0.
        root = self.xp.sqrt(1.0 + self.values)
        shrink = -self.values / (root * (1.0 + root))
        inside = noise + (noise @ self.directions.T * shrink) @ self.directions
        return inside / self.xp.sqrt(self.diagonal)

    def quadratic(self, moves: Any) -> Any:
        scaled = moves * self.xp.sqrt(self.diagonal)
        along = (scaled @ self.directions.T) ** 2
        return (scaled**2).sum(-1) + (along * self.values).sum(-1)

    def definite(self) -> Any:
        return self.diagonal > 0.0


@dataclass(frozen=True)
class KroneckerPrecision(Precision):
    """H = S (A (x) B + c) S with S = diag(a (x) b)^(1/2), by the eigenvectors of A and B.

    Parameters
    ----------
    left_scale, right_scale : array
        Roots of a and b, of as many entries as A and B have rows.
    left, right : array
        Eigenvectors of A and B, as columns.
    values : array
        Eigenvalues of A (x) B + c, shape (rows of A, rows of B).
    """

    left_scale: Any
    right_scale: Any
    left: Any
    right: Any
    values: Any

    @classmethod
    def of(cls, block: Any, diagonal: Any) -> Self:
        """Factorise a block and the diagonal of its coordinates."""
        left, right = block.left[0], block.right[0]
        # Where the diagonal is such a product, dividing by its root leaves a Kronecker product and
        # a number times I.
        number, left_scale, right_scale = cls._as_product(diagonal.reshape(len(left), len(right)))
        left_values, left_vectors = cls.eigenvalues(left / (left_scale[:, None] * left_scale))
        right_values, right_vectors = cls.eigenvalues(right / (right_scale[:, None] * right_scale))
        values = left_values[:, None] * right_values + number
        return cls(left_scale, right_scale, left_vectors, right_vectors, values)

    @classmethod
    def _as_product(cls, diagonal: Any) -> tuple[Any, Any, Any]:
        """c, a^(1/2) and b^(1/2) with a diagonal (p, q) nearest to c a_i b_j in the logarithm."""
        xp, positive = cls.xp, (diagonal > 0.0).all()
        logs = xp.log(xp.where(positive, diagonal, 1.0))
        mean = logs.mean()
        left, right = logs.mean(1) - mean, logs.mean(0) - mean
        number = xp.where(positive, xp.exp(mean), diagonal.mean())
        return number, xp.exp(0.5 * left), xp.exp(0.5 * right)

    def log_determinant(self) -> Any:
        log = self.xp.log
        scales = log(self.left_scale)[:, None] + log(self.right_scale)
        return (log(self.values) + 2.0 * scales).sum()

    def draws(self, noise: Any) -> Any:
        inside = noise.reshape(len(noise), *self.values.shape) / self.xp.sqrt(self.values)
        turned = self.left @ inside @ self.right.T
        return (turned / (self.left_scale[:, None] * self.right_scale)).reshape(noise.shape)

    def quadratic(self, moves: Any) -> Any:
        scales = self.left_scale[:, None] * self.right_scale
        scaled = moves.reshape(len(moves), *self.values.shape) * scales
        turned = self.left.T @ scaled @ self.right
        return (self.values * turned**2).reshape(len(moves), -1).sum(-1)

    def definite(self) -> Any:
        size = len(self.left_scale) * len(self.right_scale)
        return self.xp.broadcast_to((self.values > 0.0).all(), (size,))


@dataclass(frozen=True)
class BlockPrecision(Precision):
    """Independent blocks of coordinates, and a diagonal for those that are in none.

    Parameters
    ----------
    diagonal : array
        Precision of the coordinates outside the blocks; 1 inside; shape (D,).
    blocks : tuple of Precision
    places : tuple of (int, int)
        First coordinate of each block, and the first after it.
    """

    diagonal: Any
    blocks: tuple[Precision, ...]
    places: tuple[tuple[int, int], ...] = field(metadata={"static": True})

    @classmethod
    def of(cls, curvature: Any, classes: Precisions) -> Self:
        """Factorise a curvature of blocks and a diagonal."""
        whole = curvature.diagonal[0]
        outside, places = 1.0 * whole, []
        blocks: list[Precision] = []
        for block in curvature.blocks:
            where = block.where
            if min(block.left.shape[1], block.right.shape[1]) == 1:
                matrix = cls.xp.kron(block.left[0], block.right[0]) + cls.xp.diag(whole[where])
                blocks.append(classes.dense.of(matrix, (whole[where] > 0.0).all()))
            else:
                blocks.append(classes.kronecker.of(block, whole[where]))
            places.append((where.start, where.stop))
            # So that it neither changes the determinant nor is indefinite there.
            outside = cls.put(outside, where, 1.0)
        return cls(outside, tuple(blocks), tuple(places))

    def log_determinant(self) -> Any:
        total = self.xp.log(self.diagonal).sum()
        for block in self.blocks:
            total = total + block.log_determinant()
        return total

    def draws(self, noise: Any) -> Any:
        found = noise / self.xp.sqrt(self.diagonal)
        for block, (start, stop) in zip(self.blocks, self.places, strict=True):
            part = np.s_[:, start:stop]
            found = self.put(found, part, block.draws(noise[part]))
        return found

    def quadratic(self, moves: Any) -> Any:
        inside = self.xp.zeros_like(self.diagonal)
        total = 0.0
        for block, (start, stop) in zip(self.blocks, self.places, strict=True):
            inside = self.put(inside, slice(start, stop), 1.0)
            total = total + block.quadratic(moves[:, start:stop])
        return total + (moves**2 * self.diagonal * (1.0 - inside)).sum(-1)

    def definite(self) -> Any:
        found = self.diagonal > 0.0
        for block, (start, stop) in zip(self.blocks, self.places, strict=True):
            found = self.put(found, slice(start, stop), block.definite())
        return found


class Precisions(NamedTuple):
    """A package's classes of precisions."""

    dense: type[DensePrecision]
    row: type[RowPrecision]
    kronecker: type[KroneckerPrecision]
    block: type[BlockPrecision]

    def precision_of(self, curvature: Any) -> Precision:
        """Factorise the curvature of one position (P = 1); H is that matrix.

        A Kronecker block A (x) B with the diagonal d of its coordinates is exact where d is one
        number, or a product of one number for each row of A and one for each row of B, or where A
        or B is a number. Any other d is replaced by the product that is nearest in the logarithm;
        by its mean, where it is zero in places.

        Raises
        ------
        ValueError
            There is more than one position, or blocks come with rows or a matrix.
        """
        if curvature.number != 1:
            raise ValueError(f"Expected the curvature of one position, found {curvature.number}.")
        if curvature.blocks:
            if curvature.matrix is not None or curvature.rows is not None:
                raise ValueError("Expected blocks with a diagonal alone, found rows or a matrix.")
            return self.block.of(curvature, self)
        if curvature.matrix is not None:
            return self.dense.of(curvature.dense()[0], (curvature.diagonal > 0.0).all())
        diagonal = curvature.diagonal[0]
        rows = curvature.diagonal[:0] if curvature.rows is None else curvature.rows[0]
        number, dim = rows.shape
        if number and (number >= dim or dim <= TRIANGULAR_UP_TO):
            return self.dense.of_rows(diagonal, rows)
        return self.row.of(diagonal, rows)
