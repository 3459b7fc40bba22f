"""A Normal guide with a Kronecker covariance for each matrix-shaped site (``AutoMatrixNormal``).

A weight matrix W (n x p) has the posterior approximation ``W = M + A E B^T`` with standard Normal
E: the matrix normal distribution with row covariance U = A A^T and column covariance V = B B^T.
The entries of W taken row by row have the covariance U (x) V, which is described by
n (n + 1) / 2 + p (p + 1) / 2 numbers and never formed.

Source of the distribution: A. P. Dawid, "Some matrix-variate distribution theory: notational
considerations and a Bayesian application", Biometrika 68 (1981). As an approximate posterior of
network weights: C. Louizos and M. Welling, "Structured and efficient variational deep learning
with matrix Gaussian posteriors", ICML 2016.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from pyro.distributions import Normal, constraints
from pyro.infer.autoguide.guides import AutoContinuous
from pyro.infer.autoguide.initialization import init_to_median
from pyro.nn.module import PyroModule, PyroParam
from torch import Tensor, nn
from torch.distributions import transform_to
from torch.distributions.transforms import Transform

from ppl_ext.guides.layouts import Blocks, find_blocks
from ppl_ext.options import check_number
from pyro_ext.guides.flat_density import Moments, Parameters, register_flat_density
from pyro_ext.guides.normal import LOG_TWO_PI, NormalDensity, _solve_lower


class Factors(NamedTuple):
    """What an ``AutoMatrixNormal`` is made of.

    ``mean`` is (D,). ``scale`` holds the standard deviations (R,) of the coordinates that belong
    to no matrix, in flat order. ``matrices`` gives for each matrix-shaped site, by name, the lower
    triangular factors A (n, n) and B (p, p) of the covariance A A^T (x) B B^T.
    """

    mean: Tensor
    scale: Tensor
    matrices: dict[str, tuple[Tensor, Tensor]]


class MatrixNormalTransform(Transform):
    """``mean + A E B^T`` for each matrix of the flat vector, ``mean + scale * e`` for the rest.

    Parameters
    ----------
    factors : Factors
    blocks : Blocks
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, factors: Factors, blocks: Blocks) -> None:
        super().__init__()
        self.factors = factors
        self.blocks = blocks

    def _call(self, x: Tensor) -> Tensor:
        return self.factors.mean + _scaled(x, self.factors, self.blocks)

    def _inverse(self, y: Tensor) -> Tensor:
        return _whitened(y - self.factors.mean, self.factors, self.blocks)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return _log_determinant(self.factors, self.blocks).expand(x.shape[:-1])


class AutoMatrixNormal(AutoContinuous):
    """Normal guide whose covariance is a Kronecker product for each matrix-shaped site.

    The covariance over the flat unconstrained vector is block diagonal by site. A site whose
    unconstrained value has at least two axes longer than one is taken as a matrix W: its first
    axis (axes of length one aside) is the n rows, the remaining ones together are the p columns.
    It is ``W = M + A E B^T`` with standard Normal E, hence its entries, row by row, have the
    covariance ``A A^T (x) B B^T``. Every other site is diagonal.

    A and B are lower triangular with a positive diagonal. They share one scale, as (c A, B / c) is
    the same guide; at the start, and after
    :meth:`MatrixNormalDensity.set_factors`, it is divided evenly.

    Parameters
    ----------
    model : callable
        Pyro model.
    init_loc_fn : callable
        Initial values by site; Pyro's default.
    init_scale : float
        Initial standard deviation of each unconstrained coordinate; Pyro's default.

    Notes
    -----
    Parameters, by the names of ``named_parameters()``: ``loc`` (D,); ``scale_unconstrained``
    (R,), where R > 0 coordinates belong to no matrix; and for each matrix-shaped site
    ``row_scale.<site>_unconstrained`` (n,) and ``row_tril.<site>_unconstrained`` (n, n), whose
    product is A, with ``column_scale`` (p,) and ``column_tril`` (p, p) likewise for B.

    Raises
    ------
    ArgumentError
        ``init_scale`` is not a positive number.
    """

    scale_constraint = constraints.softplus_positive
    scale_tril_constraint = constraints.unit_lower_cholesky

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        init_loc_fn: Callable[..., Any] = init_to_median,
        init_scale: float = 0.1,
    ) -> None:
        check_number("init_scale", init_scale)
        super().__init__(model, init_loc_fn=init_loc_fn)
        self._init_scale = float(init_scale)

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        self.blocks = blocks = find_blocks(self._unconstrained_shapes)
        self.loc = nn.Parameter(self._init_loc())
        if blocks.num_rest:
            scale = self.loc.new_full((blocks.num_rest,), self._init_scale)
            self.scale = PyroParam(scale, self.scale_constraint)
        for side, axis in (("row", 0), ("column", 1)):
            scales, trils = PyroModule(), PyroModule()
            setattr(self, f"{side}_scale", scales)
            setattr(self, f"{side}_tril", trils)
            for block in blocks.matrices:
                length = block.shape[axis]
                scale = self.loc.new_full((length,), math.sqrt(self._init_scale))
                unit = torch.eye(length, dtype=self.loc.dtype, device=self.loc.device)
                _set_by_site(scales, block.name, PyroParam(scale, self.scale_constraint))
                _set_by_site(trils, block.name, PyroParam(unit, self.scale_tril_constraint))

    def _factor(self, side: str, name: str) -> Tensor:
        scale = _get_by_site(getattr(self, f"{side}_scale"), name)
        return scale.unsqueeze(-1) * _get_by_site(getattr(self, f"{side}_tril"), name)

    def _factors(self) -> Factors:
        scale = self.scale if self.blocks.num_rest else self.loc.new_empty(0)
        matrices = {
            block.name: (self._factor("row", block.name), self._factor("column", block.name))
            for block in self.blocks.matrices
        }
        return Factors(self.loc, scale, matrices)

    def get_base_dist(self) -> Any:
        """Standard Normal over the flat vector."""
        return Normal(torch.zeros_like(self.loc), torch.ones_like(self.loc)).to_event(1)

    def get_transform(self, *args: Any, **kwargs: Any) -> MatrixNormalTransform:
        """From the standard Normal to the posterior."""
        return MatrixNormalTransform(self._factors(), self.blocks)

    def _loc_scale(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        factors = self._factors()
        # The marginal variance of W_ij is U_ii V_jj.
        matrices = [
            torch.outer(*(factor.square().sum(-1).sqrt() for factor in factors.matrices[name]))
            for name, _, _ in self.blocks.matrices
        ]
        return factors.mean, _join(matrices, factors.scale, self.blocks)


@register_flat_density(AutoMatrixNormal)
class MatrixNormalDensity(NormalDensity):
    """``AutoMatrixNormal``: closed forms by triangular solves with A and B.

    O(n p (n + p)) operations per draw and matrix, O(n p) memory.
    """

    covariance_structure = "matrix_normal"

    def blocks(self) -> Blocks:
        """Which parts of the flat vector are matrices and which are the rest."""
        return self.guide.blocks

    def factors(self, parameters: Parameters) -> Factors:
        """Mean, factors of each matrix, and standard deviations of the rest.

        Differentiable in the parameters. Only the products A (x) B are determined: (c A, B / c)
        is the same density.
        """
        loc = parameters["loc"]
        rest = self.guide.blocks.num_rest
        scale = self._scale(parameters) if rest else loc.new_empty(0)
        positive = transform_to(self.guide.scale_constraint)
        unit_lower = transform_to(self.guide.scale_tril_constraint)

        def factor(side: str, name: str) -> Tensor:
            scale = positive(parameters[f"{side}_scale.{name}_unconstrained"])
            return scale.unsqueeze(-1) * unit_lower(parameters[f"{side}_tril.{name}_unconstrained"])

        matrices = {
            name: (factor("row", name), factor("column", name))
            for name, _, _ in self.guide.blocks.matrices
        }
        return Factors(loc, scale, matrices)

    def set_factors(self, parameters: Parameters, factors: Factors) -> Parameters:
        """New parameters with which the guide has these factors.

        The scale that A and B share is divided so that their diagonals have the same geometric
        mean; the density is that of the given factors.

        Parameters
        ----------
        parameters : dict of tensors
            Present parameters.
        factors : Factors
            As :meth:`factors` gives them: A and B lower triangular with positive diagonals.

        Returns
        -------
        dict of tensors
        """
        result = {"loc": factors.mean.clone()}
        if self.guide.blocks.num_rest:
            result["scale_unconstrained"] = self._unconstrained_scale(factors.scale)
        unit_lower = transform_to(self.guide.scale_tril_constraint)
        for name, pair in factors.matrices.items():
            row_level, column_level = (factor.diagonal().log().mean() for factor in pair)
            half = 0.5 * (column_level - row_level)
            for side, factor, shift in (("row", pair[0], half), ("column", pair[1], -half)):
                scale = factor.diagonal()
                unit = factor / scale.unsqueeze(-1)
                unconstrained = self._unconstrained_scale(scale * shift.exp())
                result[f"{side}_scale.{name}_unconstrained"] = unconstrained
                result[f"{side}_tril.{name}_unconstrained"] = unit_lower.inv(unit).clone()
        return {name: result[name] for name in parameters}

    def set_scale(self, parameters: Parameters, scale: float) -> Parameters:
        """New parameters with this standard deviation everywhere, uncorrelated, the same mean."""
        factors = self.factors(parameters)
        mean, half = factors.mean, math.sqrt(scale)

        def unit(length: int) -> Any:
            return half * torch.eye(length, dtype=mean.dtype, device=mean.device)

        matrices = {
            name: (unit(rows), unit(columns)) for name, _, (rows, columns) in self.blocks().matrices
        }
        return self.set_factors(
            parameters, Factors(mean, torch.full_like(factors.scale, scale), matrices)
        )

    @torch.no_grad()
    def sample(self, parameters: Parameters, generator: torch.Generator, num: int) -> Tensor:
        noise = self.noise(parameters, generator, (num, self.dim))
        return _scaled(noise, self.factors(parameters), self.blocks()).add_(parameters["loc"])

    def log_prob(self, parameters: Parameters, theta: Tensor) -> Tensor:
        factors, blocks = self.factors(parameters), self.blocks()
        standard = _whitened(theta - factors.mean, factors, blocks)
        square = standard.square().sum(-1) + self.dim * LOG_TWO_PI
        return -0.5 * square - _log_determinant(factors, blocks)

    def score(self, parameters: Parameters, theta: Tensor) -> Tensor:
        factors, blocks = self.factors(parameters), self.blocks()
        matrices, rest = _split(factors.mean - theta, blocks)
        # grad log q (W) = -U^{-1} (W - M) V^{-1}.
        scores = [
            _solve(pair, _solve(pair, matrix), transpose=True)
            for pair, matrix in zip(_pairs(factors, blocks), matrices, strict=True)
        ]
        return _join(scores, rest / factors.scale.square(), blocks)

    def moments(self, parameters: Parameters) -> Moments:
        """Mean (D,) and dense Cholesky factor (D, D): for small D only."""
        factors, blocks = self.factors(parameters), self.blocks()
        dense = {
            where.start: torch.kron(*factors.matrices[name]) for name, where, _ in blocks.matrices
        }
        sizes = [where.stop - where.start for where in blocks.rest]
        pieces = factors.scale.split(sizes) if sizes else ()
        for where, piece in zip(blocks.rest, pieces, strict=True):
            dense[where.start] = torch.diag(piece)
        return Moments(factors.mean, torch.block_diag(*(dense[start] for start in sorted(dense))))


def _pairs(factors: Factors, blocks: Blocks) -> list[tuple[Tensor, Tensor]]:
    """Factors in the order of the flat vector."""
    return [factors.matrices[name] for name, _, _ in blocks.matrices]


def _split(x: Tensor, blocks: Blocks) -> tuple[list[Tensor], Tensor]:
    """Matrices (..., n, p) and the rest (..., R) of flat vectors (..., D)."""
    lead = x.shape[:-1]
    matrices = [x[..., where].reshape(*lead, *shape) for _, where, shape in blocks.matrices]
    rest = [x[..., where] for where in blocks.rest]
    return matrices, torch.cat(rest, -1) if rest else x[..., :0]


def _join(matrices: Sequence[Tensor], rest: Tensor, blocks: Blocks) -> Tensor:
    """Inverse of :func:`_split`."""
    parts = {
        block.where.start: matrix.flatten(-2)
        for block, matrix in zip(blocks.matrices, matrices, strict=True)
    }
    used = 0
    for where in blocks.rest:
        size = where.stop - where.start
        parts[where.start] = rest[..., used : used + size]
        used += size
    return torch.cat([parts[start] for start in sorted(parts)], -1)


def _scaled(x: Tensor, factors: Factors, blocks: Blocks) -> Tensor:
    """``A E B^T`` and ``scale * e`` of standard Normal vectors (..., D)."""
    matrices, rest = _split(x, blocks)
    scaled = [
        row @ (matrix @ column.T)
        for (row, column), matrix in zip(_pairs(factors, blocks), matrices, strict=True)
    ]
    return _join(scaled, rest * factors.scale, blocks)


def _whitened(x: Tensor, factors: Factors, blocks: Blocks) -> Tensor:
    """Inverse of :func:`_scaled`."""
    matrices, rest = _split(x, blocks)
    whitened = [
        _solve(pair, matrix) for pair, matrix in zip(_pairs(factors, blocks), matrices, strict=True)
    ]
    return _join(whitened, rest / factors.scale, blocks)


def _solve(pair: tuple[Tensor, Tensor], matrix: Tensor, transpose: bool = False) -> Tensor:
    """``A^{-1} X B^{-T}``, or ``A^{-T} X B^{-1}``, of matrices (..., n, p)."""
    row, column = pair
    # Right-hand sides of all draws together, so that each factor is read once.
    half = _solve_lower(column, matrix, transpose)
    return _solve_lower(row, half.mT, transpose).mT


def _log_determinant(factors: Factors, blocks: Blocks) -> Tensor:
    """Log determinant of the map from standard Normal vectors."""
    total = factors.scale.log().sum()
    for name, _, (rows, columns) in blocks.matrices:
        row, column = factors.matrices[name]
        # det(A (x) B) = det(A)^p det(B)^n.
        total = total + columns * row.diagonal().log().sum()
        total = total + rows * column.diagonal().log().sum()
    return total


def _set_by_site(module: Any, name: str, value: Any) -> None:
    """Set a parameter under the name of a site, whose dots are nested modules as in the host."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(module, part):
            setattr(module, part, PyroModule())
        module = getattr(module, part)
    setattr(module, last, value)


def _get_by_site(module: Any, name: str) -> Tensor:
    return functools.reduce(getattr, name.split("."), module)
