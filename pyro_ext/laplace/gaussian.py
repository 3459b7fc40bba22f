"""Precisions of torch tensors; see :mod:`ppl_ext.laplace.gaussian`."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ppl_ext.laplace import gaussian
from pyro_ext.curvature import symmetric_eigen


class Algebra(gaussian.Algebra):
    """Functions of torch tensors."""

    xp = torch
    detached = staticmethod(Tensor.detach)
    eigen = staticmethod(symmetric_eigen)

    @staticmethod
    def cholesky(matrix: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
        # A matrix that is not positive definite is told by NaN, as JAX does. torch's usual function
        # raises an error instead.
        factor, failed = torch.linalg.cholesky_ex(matrix)
        return torch.where(failed == 0, factor, math.nan)

    @staticmethod
    def singular(
        rows: Float[Tensor, "R d"],
    ) -> tuple[Float[Tensor, "R n"], Float[Tensor, " n"], Float[Tensor, "n d"]]:
        finite = torch.isfinite(rows).all()
        # As with eigenvalues: in single precision the solver sometimes gives up.
        left, values, right = torch.linalg.svd(
            torch.where(finite, rows, 0.0).double(), full_matrices=False
        )
        values = torch.where(finite, values, math.nan)
        return left.to(rows.dtype), values.to(rows.dtype), right.to(rows.dtype)

    @staticmethod
    def triangular(matrix: Float[Tensor, "R d"]) -> Float[Tensor, "d d"]:
        # Without the orthogonal factor, which takes as long, there is no derivative.
        mode = "reduced" if matrix.requires_grad else "r"
        return torch.linalg.qr(matrix, mode=mode).R

    @staticmethod
    def solve_transposed(
        factor: Float[Tensor, "n n"], columns: Float[Tensor, "n m"]
    ) -> Float[Tensor, "n m"]:
        return torch.linalg.solve_triangular(factor.T, columns, upper=True)

    @staticmethod
    def put(array: Float[Tensor, " ..."], index: Any, value: Any) -> Float[Tensor, " ..."]:
        array[index] = value
        return array


class DensePrecision(gaussian.DensePrecision, Algebra):
    def definite(self) -> Bool[Tensor, " d"]:
        sound = torch.isfinite(self.factor).all() & (self.factor.diagonal() > 0.0).all()
        # A positive diagonal with something semidefinite beside it is definite. Otherwise the
        # eigenvalues tell, which take longer than the factor.
        if bool(sound) and not bool(self.bounded):
            sound = symmetric_eigen(self.factor @ self.factor.T)[0][0] > self._rounding()
        return sound.expand(self.scale.shape)


class RowPrecision(gaussian.RowPrecision, Algebra): ...


class KroneckerPrecision(gaussian.KroneckerPrecision, Algebra): ...


class BlockPrecision(gaussian.BlockPrecision, Algebra): ...


Precision = gaussian.Precision
eigenvalues = Algebra.eigenvalues
PRECISIONS = gaussian.Precisions(DensePrecision, RowPrecision, KroneckerPrecision, BlockPrecision)
precision_of = PRECISIONS.precision_of
