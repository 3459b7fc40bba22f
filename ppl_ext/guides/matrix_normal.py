"""A Normal guide with a Kronecker covariance for each matrix-shaped site (``AutoMatrixNormal``).

A weight matrix W (n x p) has the posterior approximation ``W = M + A E B^T`` with standard Normal
E: the matrix normal distribution with row covariance U = A A^T and column covariance V = B B^T.
The entries of W taken row by row have the covariance U (x) V, which is described by
n (n + 1) / 2 + p (p + 1) / 2 numbers and never formed.

Source of the distribution: A. P. Dawid, "Some matrix-variate distribution theory: notational
considerations and a Bayesian application", Biometrika 68 (1981),
https://doi.org/10.1093/biomet/68.1.265. As an approximate posterior of network weights: C. Louizos
and M. Welling, "Structured and efficient variational deep learning with matrix Gaussian
posteriors", ICML 2016, https://arxiv.org/abs/1603.04733.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

from ppl_ext.documented import documents_subclasses
from ppl_ext.guides.arrays import LOG_TWO_PI, ArrayFunctions
from ppl_ext.guides.flat_density import FlatDensityShell, Moments
from ppl_ext.guides.layouts import Blocks
from ppl_ext.start.start import Start

#: What the formulas need of arrays: an :class:`~ppl_ext.guides.arrays.ArrayFunctions`.
Functions = type[ArrayFunctions]


class Factors(NamedTuple):
    """What an ``AutoMatrixNormal`` is made of, and the map from standard Normal vectors to draws.

    ``mean`` is (D,). ``scale`` holds the standard deviations (R,) of the coordinates that belong
    to no matrix, in flat order. ``matrices`` gives for each matrix-shaped site, by name, the lower
    triangular factors A (n, n) and B (p, p) of the covariance A A^T (x) B B^T.
    """

    mean: Any
    scale: Any
    matrices: dict[str, tuple[Any, Any]]

    def pairs(self, blocks: Blocks) -> list[tuple[Any, Any]]:
        """A and B in the order of the flat vector: JAX sorts dictionaries by their keys."""
        return [self.matrices[name] for name, _, _ in blocks.matrices]

    def scaled(self, of: Functions, x: Any, blocks: Blocks) -> Any:
        """``A E B^T`` and ``scale * e`` of standard Normal vectors (..., D)."""
        matrices, rest = blocks.split(of.xp, x)
        scaled = [
            row @ (matrix @ column.T)
            for (row, column), matrix in zip(self.pairs(blocks), matrices, strict=True)
        ]
        return blocks.join(of.xp, scaled, rest * self.scale)

    def whitened(self, of: Functions, x: Any, blocks: Blocks) -> Any:
        """Inverse of :meth:`scaled`."""
        matrices, rest = blocks.split(of.xp, x)
        whitened = [
            _solve(of, pair, matrix)
            for pair, matrix in zip(self.pairs(blocks), matrices, strict=True)
        ]
        return blocks.join(of.xp, whitened, rest / self.scale)

    def log_determinant(self, of: Functions, blocks: Blocks) -> Any:
        """Log determinant of the map from standard Normal vectors."""
        log = of.xp.log
        total = log(self.scale).sum()
        for name, _, (rows, columns) in blocks.matrices:
            row, column = self.matrices[name]
            # det(A (x) B) = det(A)^p det(B)^n.
            total = total + columns * log(row.diagonal()).sum()
            total = total + rows * log(column.diagonal()).sum()
        return total

    def deviations(self, of: Functions, blocks: Blocks) -> Any:
        """Standard deviation of each coordinate, (D,)."""
        # The marginal variance of W_ij is U_ii V_jj.
        matrices = [
            of.xp.outer(*(of.xp.sqrt((factor**2).sum(-1)) for factor in pair))
            for pair in self.pairs(blocks)
        ]
        return blocks.join(of.xp, matrices, self.scale)


def _solve(of: Functions, pair: tuple[Any, Any], matrix: Any, transpose: bool = False) -> Any:
    """``A^{-1} X B^{-T}``, or ``A^{-T} X B^{-1}``, of matrices (..., n, p)."""
    row, column = pair
    # Right-hand sides of all draws together, so that each factor is read once.
    half = of.solve_lower(column, matrix, transpose)
    return of.solve_lower(row, half.mT, transpose).mT


@documents_subclasses
class MatrixTransform:
    """``mean + A E B^T`` for each matrix of the flat vector, ``mean + scale * e`` for the rest.

    Parameters
    ----------
    factors : Factors
    blocks : Blocks
    """

    arrays: ClassVar[type[ArrayFunctions]]

    def __init__(self, factors: Factors, blocks: Blocks) -> None:
        super().__init__()
        self.factors, self.blocks = factors, blocks

    def _call(self, x: Any) -> Any:
        return self.factors.mean + self.factors.scaled(self.arrays, x, self.blocks)

    def _inverse(self, y: Any) -> Any:
        return self.factors.whitened(self.arrays, y - self.factors.mean, self.blocks)

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Any:
        total = self.factors.log_determinant(self.arrays, self.blocks)
        return self.arrays.xp.broadcast_to(total, x.shape[:-1])


@documents_subclasses
class MatrixGuide:
    """Normal guide whose covariance is a Kronecker product for each matrix-shaped site.

    Each package's ``AutoMatrixNormal`` has the whole text.
    """


class MatrixDensity(FlatDensityShell):
    """``AutoMatrixNormal``: closed forms by triangular solves with A and B.

    O(n p (n + p)) operations per draw and matrix, O(n p) memory.
    """

    def blocks(self) -> Blocks:
        """Which parts of the flat vector are matrices and which are the rest."""
        return self.guide.blocks

    def factors(self, parameters: Any) -> Factors:
        """Mean, factors of each matrix, and standard deviations of the rest.

        Differentiable in the parameters. Only the products A (x) B are determined: (c A, B / c)
        is the same density.
        """
        raise NotImplementedError

    def set_factors(self, parameters: Any, factors: Factors) -> Any:
        """New parameters with which the guide has these factors.

        The scale that A and B share is divided so that their diagonals have the same geometric
        mean; the density is that of the given factors.

        Parameters
        ----------
        parameters : dict of arrays
            Present parameters.
        factors : Factors
            As :meth:`factors` gives them: A and B lower triangular with positive diagonals.

        Returns
        -------
        dict of arrays
        """
        raise NotImplementedError

    def _balanced(self, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        """A and B with one scale divided so that their diagonals have the same geometric mean."""
        row_level, column_level = (self.arrays.xp.log(factor.diagonal()).mean() for factor in pair)
        ratio = self.arrays.xp.exp(0.5 * (column_level - row_level))
        return pair[0] * ratio, pair[1] / ratio

    def set_start(self, parameters: Any, start: Start) -> Any:
        """The start's mean and deviations; within a matrix, of one row or column to the others."""
        factors, blocks, xp = self.factors(parameters), self.blocks(), self.arrays.xp
        like = factors.mean
        deviations = self.arrays.as_array(start.modes[0].conditional_deviations, like)
        of_matrices, rest = blocks.split(xp, deviations)
        matrices = {}
        for (name, _, _), found in zip(blocks.matrices, of_matrices, strict=True):
            # Nearest in logarithms to deviations a_i b_j: the means of row i and of column j, less
            # half of that of all each.
            logs = xp.log(found)
            levels = (logs.mean(axis) - 0.5 * logs.mean() for axis in (1, 0))
            matrices[name] = tuple(xp.diag(xp.exp(level)) for level in levels)
        mean = self.arrays.as_array(start.mean, like)
        return self.set_factors(parameters, Factors(mean, rest, matrices))

    def set_scale(self, parameters: Any, scale: float) -> Any:
        # A and B have half of the scale's logarithm each.
        factors, half = self.factors(parameters), math.sqrt(scale)
        matrices = {
            name: (
                half * self.arrays.identity(rows, factors.mean),
                half * self.arrays.identity(columns, factors.mean),
            )
            for name, _, (rows, columns) in self.blocks().matrices
        }
        deviations = self.arrays.xp.full_like(factors.scale, scale)
        return self.set_factors(parameters, Factors(factors.mean, deviations, matrices))

    def log_prob(self, parameters: Any, theta: Any) -> Any:
        factors, blocks = self.factors(parameters), self.blocks()
        standard = factors.whitened(self.arrays, theta - factors.mean, blocks)
        square = (standard**2).sum(-1) + self.dim * LOG_TWO_PI
        return -0.5 * square - factors.log_determinant(self.arrays, blocks)

    def score(self, parameters: Any, theta: Any) -> Any:
        factors, blocks = self.factors(parameters), self.blocks()
        matrices, rest = blocks.split(self.arrays.xp, factors.mean - theta)
        # grad log q (W) = -U^{-1} (W - M) V^{-1}.
        scores = [
            # A^-T (A^-1 (M - W) B^-T) B^-1, as U = A A' and V = B B'.
            _solve(self.arrays, pair, _solve(self.arrays, pair, matrix), transpose=True)
            for pair, matrix in zip(factors.pairs(blocks), matrices, strict=True)
        ]
        return blocks.join(self.arrays.xp, scores, rest / factors.scale**2)

    def moments(self, parameters: Any) -> Moments:
        """Mean (D,) and dense Cholesky factor (D, D): for small D only."""
        factors, blocks, xp = self.factors(parameters), self.blocks(), self.arrays.xp
        dense = {
            where.start: xp.kron(*factors.matrices[name]) for name, where, _ in blocks.matrices
        }
        used = 0
        for where in blocks.rest:
            size = where.stop - where.start
            dense[where.start] = xp.diag(factors.scale[used : used + size])
            used += size
        # In flat order, in which matrices and the rest take turns.
        covariance = [dense[start] for start in sorted(dense)]
        return Moments(factors.mean, self.arrays.block_diagonal(covariance))
