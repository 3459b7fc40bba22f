"""Gaussians given by a structured precision: their log determinants and draws.

The precision H is a :class:`~pyro_ext.curvature.Curvature` of one position. A diagonal with rows is
factorised through the Gram matrix of the rows, Kronecker blocks through the eigenvalues of their
factors, and only a precision that is a matrix already as a matrix: nothing of D x D numbers is
formed for the others.

Log determinants are differentiable, also where eigenvalues coincide.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_ext.curvature import Curvature, KroneckerBlock, symmetric_eigen


class Precision(ABC):
    """A positive definite precision matrix H of D coordinates, factorised."""

    @abstractmethod
    def log_determinant(self) -> Tensor:
        """log det H, a scalar; not finite where H is singular."""

    @abstractmethod
    def draws(self, noise: Tensor) -> Tensor:
        """Draws of N(0, H^-1), shape (n, D), from standard Normal ``noise`` (n, D)."""

    @abstractmethod
    def definite(self) -> Tensor:
        """Whether the precision is positive definite in every coordinate, bool (D,).

        Where the precision is one matrix that is not, all of its coordinates are False.
        """


def precision_of(curvature: Curvature) -> Precision:
    """Factorise the curvature of one position (P = 1); H is that matrix.

    A Kronecker block A (x) B with the diagonal d of its coordinates is exact where d is one number,
    or a product of one number for each row of A and one for each row of B, or where A or B is a
    number. Any other d is replaced by the product that is nearest in the logarithm; by its mean,
    where it is zero in places.

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
        return BlockPrecision.of(curvature)
    if curvature.matrix is not None:
        return DensePrecision.of(curvature.dense()[0], bool((curvature.diagonal > 0.0).all()))
    rows = curvature.diagonal[:0] if curvature.rows is None else curvature.rows[0]
    return RowPrecision.of(curvature.diagonal[0], rows)


def eigenvalues(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, at least 0, and eigenvectors of a positive semidefinite matrix.

    Values within rounding of 0 are 0. Derivatives of symmetric functions of the values are right
    even where values coincide; the vectors have none.
    """
    held = matrix.detach()
    values, vectors = symmetric_eigen(0.5 * (held + held.T))
    # The first-order change of the values, as diag(V' dM V).
    moved = torch.einsum("ij,ik,kj->j", vectors, matrix - held, vectors)
    largest = values.abs().amax() if len(values) else values.sum()
    rounding = len(values) * torch.finfo(values.dtype).eps * largest
    # What is not finite stays so.
    return torch.where(values <= rounding, torch.zeros_like(values), values + moved), vectors


@dataclass(frozen=True)
class DensePrecision(Precision):
    """H = S L L' S, with S the roots of H's diagonal.

    Parameters
    ----------
    scale : Tensor
        S, shape (D,).
    factor : Tensor
        L, shape (D, D), lower triangular.
    bounded : bool
        Whether H is a positive diagonal and something positive semidefinite.
    """

    scale: Tensor
    factor: Tensor
    bounded: bool = False

    @classmethod
    def of(cls, matrix: Tensor, bounded: bool = False) -> DensePrecision:
        """Factorise a matrix (D, D)."""
        diagonal = matrix.diagonal()
        # Scaled to a unit diagonal first, so that units do not decide what is singular.
        scale = torch.where(diagonal > 0.0, diagonal, torch.ones_like(diagonal)).sqrt()
        factor, failed = torch.linalg.cholesky_ex(matrix / (scale[:, None] * scale))
        return cls(
            scale, torch.where(failed == 0, factor, torch.full_like(factor, math.nan)), bounded
        )

    def log_determinant(self) -> Tensor:
        return 2.0 * (self.scale.log() + self.factor.diagonal().log()).sum()

    def draws(self, noise: Tensor) -> Tensor:
        turned = torch.linalg.solve_triangular(self.factor.T, noise.T, upper=True)
        return turned.T / self.scale

    def definite(self) -> Tensor:
        sound = torch.isfinite(self.factor).all() & (self.factor.diagonal() > 0.0).all()
        if bool(sound) and not self.bounded:
            # What rounding leaves of an eigenvalue that is zero.
            least = symmetric_eigen(self.factor @ self.factor.T)[0][0]
            sound = least > 10.0 * len(self.scale) ** 0.5 * torch.finfo(least.dtype).eps
        return sound.expand(self.scale.shape)


@dataclass(frozen=True)
class RowPrecision(Precision):
    """H = diag(d) + R' R, by the matrix determinant lemma and Woodbury's identity.

    Parameters
    ----------
    diagonal : Tensor
        d, shape (D,).
    directions : Tensor
        U' R diag(d)^(-1/2), shape (R, D), for the eigenvectors U of the rows' Gram matrix.
    values : Tensor
        Its eigenvalues, shape (R,).
    """

    diagonal: Tensor
    directions: Tensor
    values: Tensor

    @classmethod
    def of(cls, diagonal: Tensor, rows: Tensor) -> RowPrecision:
        """Factorise a diagonal (D,) and rows (R, D)."""
        safe = torch.where(diagonal > 0.0, diagonal, torch.ones_like(diagonal))
        scaled = rows / safe.sqrt()
        values, vectors = eigenvalues(scaled @ scaled.T)
        return cls(diagonal, vectors.T @ scaled, values)

    def log_determinant(self) -> Tensor:
        return self.diagonal.log().sum() + self.values.log1p().sum()

    def draws(self, noise: Tensor) -> Tensor:
        # (1 + t)^(-1/2) - 1 over t, without the cancellation at t = 0.
        root = (1.0 + self.values).sqrt()
        shrink = -1.0 / (root * (1.0 + root))
        inside = noise + (noise @ self.directions.T * shrink) @ self.directions
        return inside / self.diagonal.sqrt()

    def definite(self) -> Tensor:
        return self.diagonal > 0.0


@dataclass(frozen=True)
class KroneckerPrecision(Precision):
    """H = S (A (x) B + c) S with S = diag(a (x) b)^(1/2), by the eigenvectors of A and B.

    Parameters
    ----------
    left_scale, right_scale : Tensor
        Roots of a and b, of as many entries as A and B have rows.
    left, right : Tensor
        Eigenvectors of A and B, as columns.
    values : Tensor
        Eigenvalues of A (x) B + c, shape (rows of A, rows of B).
    """

    left_scale: Tensor
    right_scale: Tensor
    left: Tensor
    right: Tensor
    values: Tensor

    @classmethod
    def of(cls, block: KroneckerBlock, diagonal: Tensor) -> KroneckerPrecision:
        """Factorise a block and the diagonal of its coordinates."""
        left, right = block.left[0], block.right[0]
        number, left_scale, right_scale = _as_product(diagonal.reshape(len(left), len(right)))
        left_values, left_vectors = eigenvalues(left / (left_scale[:, None] * left_scale))
        right_values, right_vectors = eigenvalues(right / (right_scale[:, None] * right_scale))
        values = left_values[:, None] * right_values + number
        return cls(left_scale, right_scale, left_vectors, right_vectors, values)

    def log_determinant(self) -> Tensor:
        scales = self.left_scale.log()[:, None] + self.right_scale.log()
        return (self.values.log() + 2.0 * scales).sum()

    def draws(self, noise: Tensor) -> Tensor:
        inside = noise.reshape(len(noise), *self.values.shape) / self.values.sqrt()
        turned = self.left @ inside @ self.right.T
        return (turned / (self.left_scale[:, None] * self.right_scale)).reshape(noise.shape)

    def definite(self) -> Tensor:
        return (self.values > 0.0).all().expand(self.values.numel())


def _as_product(diagonal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """c, a^(1/2) and b^(1/2) with a diagonal (p, q) nearest to c a_i b_j in the logarithm."""
    positive = (diagonal > 0.0).all()
    logs = torch.where(positive, diagonal, torch.ones_like(diagonal)).log()
    mean = logs.mean()
    left, right = logs.mean(dim=1) - mean, logs.mean(dim=0) - mean
    number = torch.where(positive, mean.exp(), diagonal.mean())
    return number, (0.5 * left).exp(), (0.5 * right).exp()


@dataclass(frozen=True)
class BlockPrecision(Precision):
    """Independent blocks of coordinates, and a diagonal for those that are in none.

    Parameters
    ----------
    diagonal : Tensor
        Precision of the coordinates outside the blocks; 1 inside; shape (D,).
    blocks : tuple of Precision
    places : tuple of (int, int)
        First coordinate of each block, and the first after it.
    """

    diagonal: Tensor
    blocks: tuple[Precision, ...]
    places: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, curvature: Curvature) -> BlockPrecision:
        """Factorise a curvature of blocks and a diagonal."""
        whole = curvature.diagonal[0]
        inside = torch.zeros_like(whole, dtype=torch.bool)
        blocks: list[Precision] = []
        places = []
        for block in curvature.blocks:
            where = block.where
            if min(block.left.shape[1], block.right.shape[1]) == 1:
                matrix = torch.kron(block.left[0], block.right[0]) + whole[where].diag()
                blocks.append(DensePrecision.of(matrix, bool((whole[where] > 0.0).all())))
            else:
                blocks.append(KroneckerPrecision.of(block, whole[where]))
            places.append((where.start, where.stop))
            inside[where] = True
        outside = torch.where(inside, torch.ones_like(whole), whole)
        return cls(outside, tuple(blocks), tuple(places))

    def log_determinant(self) -> Tensor:
        total = self.diagonal.log().sum()
        for block in self.blocks:
            total = total + block.log_determinant()
        return total

    def draws(self, noise: Tensor) -> Tensor:
        found = noise / self.diagonal.sqrt()
        for block, (start, stop) in zip(self.blocks, self.places, strict=True):
            found[:, start:stop] = block.draws(noise[:, start:stop])
        return found

    def definite(self) -> Tensor:
        found = self.diagonal > 0.0
        for block, (start, stop) in zip(self.blocks, self.places, strict=True):
            found[start:stop] = block.definite()
        return found
