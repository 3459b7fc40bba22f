"""Precisions of torch tensors; see :mod:`ppl_ext.laplace.gaussian`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ppl_ext.laplace import gaussian
from pyro_ext.curvature import symmetric_eigen


class Algebra(gaussian.Algebra):
    """Functions of torch tensors."""

    xp = torch
    held = staticmethod(Tensor.detach)
    eigen = staticmethod(symmetric_eigen)

    @staticmethod
    def cholesky(matrix: Tensor) -> Tensor:
        factor, failed = torch.linalg.cholesky_ex(matrix)
        return torch.where(failed == 0, factor, math.nan)

    @staticmethod
    def solve_transposed(factor: Tensor, columns: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(factor.T, columns, upper=True)

    @staticmethod
    def put(array: Tensor, index: Any, value: Any) -> Tensor:
        array[index] = value
        return array


class DensePrecision(gaussian.DensePrecision, Algebra):
    def definite(self) -> Tensor:
        sound = torch.isfinite(self.factor).all() & (self.factor.diagonal() > 0.0).all()
        if bool(sound) and not bool(self.bounded):
            sound = symmetric_eigen(self.factor @ self.factor.T)[0][0] > self._rounding()
        return sound.expand(self.scale.shape)


class RowPrecision(gaussian.RowPrecision, Algebra):
    pass


class KroneckerPrecision(gaussian.KroneckerPrecision, Algebra):
    pass


class BlockPrecision(gaussian.BlockPrecision, Algebra):
    pass


Precision = gaussian.Precision
eigenvalues = Algebra.eigenvalues
KINDS = gaussian.Kinds(DensePrecision, RowPrecision, KroneckerPrecision, BlockPrecision)
precision_of = KINDS.precision_of
