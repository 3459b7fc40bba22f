"""Gaussians given by a structured precision: their log determinants and draws.

The precision H is a :class:`~numpyro_ext.curvature.Curvature` of one position. A diagonal with rows
is factorised through the Gram matrix of the rows, Kronecker blocks through the eigenvalues of their
factors, and only a precision that is a matrix already as a matrix: nothing of D x D numbers is
formed for the others.

Log determinants are differentiable, also where eigenvalues coincide.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from numpyro_ext.curvature import Curvature, KroneckerBlock


class Precision(ABC):
    """A positive definite precision matrix H of D coordinates, factorised."""

    @abstractmethod
    def log_determinant(self) -> Array:
        """log det H, a scalar; not finite where H is singular."""

    @abstractmethod
    def draws(self, noise: Array) -> Array:
        """Draws of N(0, H^-1), shape (n, D), from standard Normal ``noise`` (n, D)."""

    @abstractmethod
    def definite(self) -> Array:
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
        return DensePrecision.of(curvature.dense()[0], (curvature.diagonal > 0.0).all())
    dim = curvature.diagonal.shape[1]
    rows = jnp.zeros((0, dim), curvature.diagonal.dtype)
    if curvature.rows is not None:
        rows = curvature.rows[0]
    return RowPrecision.of(curvature.diagonal[0], rows)


def eigenvalues(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues, at least 0, and eigenvectors of a positive semidefinite matrix.

    Values within rounding of 0 are 0. Derivatives of symmetric functions of the values are right
    even where values coincide; the vectors have none.
    """
    values, vectors = jnp.linalg.eigh(lax.stop_gradient(0.5 * (matrix + matrix.T)))
    # The first-order change of the values, as diag(V' dM V).
    moved = jnp.einsum("ij,ik,kj->j", vectors, matrix - lax.stop_gradient(matrix), vectors)
    rounding = len(values) * jnp.finfo(values.dtype).eps * jnp.abs(values).max(initial=0.0)
    return jnp.where(values > rounding, values + moved, 0.0), vectors


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DensePrecision(Precision):
    """H = S L L' S, with S the roots of H's diagonal.

    Parameters
    ----------
    scale : Array
        S, shape (D,).
    factor : Array
        L, shape (D, D), lower triangular.
    bounded : Array
        Whether H is a positive diagonal and something positive semidefinite.
    """

    scale: Array
    factor: Array
    bounded: Array

    @classmethod
    def of(cls, matrix: Array, bounded: Array | bool = False) -> DensePrecision:
        """Factorise a matrix (D, D)."""
        diagonal = jnp.diagonal(matrix)
        # Scaled to a unit diagonal first, so that units do not decide what is singular.
        scale = jnp.sqrt(jnp.where(diagonal > 0.0, diagonal, 1.0))
        factor = jnp.linalg.cholesky(matrix / (scale[:, None] * scale))
        return cls(scale, factor, jnp.asarray(bounded))

    def log_determinant(self) -> Array:
        return 2.0 * (jnp.log(self.scale) + jnp.log(jnp.diagonal(self.factor))).sum()

    def draws(self, noise: Array) -> Array:
        return solve_triangular(self.factor.T, noise.T).T / self.scale

    def definite(self) -> Array:
        sound = jnp.isfinite(self.factor).all() & (jnp.diagonal(self.factor) > 0.0).all()

        def least() -> Array:
            return jnp.linalg.eigvalsh(self.factor @ self.factor.T)[0]

        # What rounding leaves of an eigenvalue that is zero.
        rounding = 10.0 * len(self.scale) ** 0.5 * jnp.finfo(self.scale.dtype).eps
        above = lax.cond(
            self.bounded | ~sound, lambda: jnp.asarray(True), lambda: least() > rounding
        )
        sound = sound & above
        return jnp.broadcast_to(sound, self.scale.shape)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RowPrecision(Precision):
    """H = diag(d) + R' R, by the matrix determinant lemma and Woodbury's identity.

    Parameters
    ----------
    diagonal : Array
        d, shape (D,).
    directions : Array
        U' R diag(d)^(-1/2), shape (R, D), for the eigenvectors U of the rows' Gram matrix.
    values : Array
        Its eigenvalues, shape (R,).
    """

    diagonal: Array
    directions: Array
    values: Array

    @classmethod
    def of(cls, diagonal: Array, rows: Array) -> RowPrecision:
        """Factorise a diagonal (D,) and rows (R, D)."""
        safe = jnp.where(diagonal > 0.0, diagonal, 1.0)
        scaled = rows / jnp.sqrt(safe)
        values, vectors = eigenvalues(scaled @ scaled.T)
        return cls(diagonal, vectors.T @ scaled, values)

    def log_determinant(self) -> Array:
        return jnp.log(self.diagonal).sum() + jnp.log1p(self.values).sum()

    def draws(self, noise: Array) -> Array:
        # (1 + t)^(-1/2) - 1 over t, without the cancellation at t = 0.
        root = jnp.sqrt(1.0 + self.values)
        shrink = -1.0 / (root * (1.0 + root))
        inside = noise + (noise @ self.directions.T * shrink) @ self.directions
        return inside / jnp.sqrt(self.diagonal)

    def definite(self) -> Array:
        return self.diagonal > 0.0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KroneckerPrecision(Precision):
    """H = S (A (x) B + c) S with S = diag(a (x) b)^(1/2), by the eigenvectors of A and B.

    Parameters
    ----------
    left_scale, right_scale : Array
        Roots of a and b, of as many entries as A and B have rows.
    left, right : Array
        Eigenvectors of A and B, as columns.
    values : Array
        Eigenvalues of A (x) B + c, shape (rows of A, rows of B).
    """

    left_scale: Array
    right_scale: Array
    left: Array
    right: Array
    values: Array

    @classmethod
    def of(cls, block: KroneckerBlock, diagonal: Array) -> KroneckerPrecision:
        """Factorise a block and the diagonal of its coordinates."""
        left, right = block.left[0], block.right[0]
        number, left_scale, right_scale = _as_product(diagonal.reshape(len(left), len(right)))
        left_values, left_vectors = eigenvalues(left / (left_scale[:, None] * left_scale))
        right_values, right_vectors = eigenvalues(right / (right_scale[:, None] * right_scale))
        values = left_values[:, None] * right_values + number
        return cls(left_scale, right_scale, left_vectors, right_vectors, values)

    def log_determinant(self) -> Array:
        scales = jnp.log(self.left_scale)[:, None] + jnp.log(self.right_scale)
        return (jnp.log(self.values) + 2.0 * scales).sum()

    def draws(self, noise: Array) -> Array:
        inside = noise.reshape(len(noise), *self.values.shape) / jnp.sqrt(self.values)
        turned = self.left @ inside @ self.right.T
        return (turned / (self.left_scale[:, None] * self.right_scale)).reshape(noise.shape)

    def definite(self) -> Array:
        return jnp.broadcast_to((self.values > 0.0).all(), (self.values.size,))


def _as_product(diagonal: Array) -> tuple[Array, Array, Array]:
    """c, a^(1/2) and b^(1/2) with a diagonal (p, q) nearest to c a_i b_j in the logarithm."""
    positive = (diagonal > 0.0).all()
    logs = jnp.log(jnp.where(positive, diagonal, 1.0))
    mean = logs.mean()
    left, right = logs.mean(axis=1) - mean, logs.mean(axis=0) - mean
    number = jnp.where(positive, jnp.exp(mean), diagonal.mean())
    return number, jnp.exp(0.5 * left), jnp.exp(0.5 * right)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BlockPrecision(Precision):
    """Independent blocks of coordinates, and a diagonal for those that are in none.

    Parameters
    ----------
    diagonal : Array
        Precision of the coordinates outside the blocks; 1 inside; shape (D,).
    blocks : tuple of Precision
    places : tuple of (int, int)
        First coordinate of each block, and the first after it.
    """

    diagonal: Array
    blocks: tuple[Precision, ...]
    places: tuple[tuple[int, int], ...] = field(metadata={"static": True})

    @classmethod
    def of(cls, curvature: Curvature) -> BlockPrecision:
        """Factorise a curvature of blocks and a diagonal."""
        whole = curvature.diagonal[0]
        outside, places = whole, []
        blocks: list[Precision] = []
        for block in curvature.blocks:
            where = block.where
            if min(block.left.shape[1], block.right.shape[1]) == 1:
                matrix = jnp.kron(block.left[0], block.right[0]) + jnp.diag(whole[where])
                blocks.append(DensePrecision.of(matrix, (whole[where] > 0.0).all()))
            else:
                blocks.append(KroneckerPrecision.of(block, whole[where]))
            places.append((where.start, where.stop))
            outside = outside.at[where].set(1.0)
        return cls(outside, tuple(blocks), tuple(places))

    def log_determinant(self) -> Array:
        total = jnp.log(self.diagonal).sum()
        for block in self.blocks:
            total = total + block.log_determinant()
        return total

    def draws(self, noise: Array) -> Array:
        found = noise / jnp.sqrt(self.diagonal)
        for block, (start, stop) in zip(self.blocks, self.places, strict=True):
            found = found.at[:, start:stop].set(block.draws(noise[:, start:stop]))
        return found

    def definite(self) -> Array:
        found = self.diagonal > 0.0
        for block, (start, stop) in zip(self.blocks, self.places, strict=True):
            found = found.at[start:stop].set(block.definite())
        return found
