"""A Normal guide with Kronecker covariances for Pyro; see :mod:`ppl_ext.guides.matrix_normal`."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from pyro.distributions import Normal, constraints
from pyro.infer.autoguide.guides import AutoContinuous
from pyro.infer.autoguide.initialization import init_to_median
from pyro.nn.module import PyroModule, PyroParam
from torch import Generator, Tensor, nn
from torch.distributions import transform_to
from torch.distributions.transforms import Transform

from ppl_ext.guides import matrix_normal as shared
from ppl_ext.guides.layouts import find_blocks
from ppl_ext.options import check_number
from pyro_ext.guides.arrays import TensorFunctions
from pyro_ext.guides.flat_density import Draws, Parameters, register_flat_density
from pyro_ext.guides.normal import NormalDensity

Factors = shared.Factors


class MatrixNormalTransform(shared.MatrixTransform, Transform):
    arrays = TensorFunctions
    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True


class AutoMatrixNormal(shared.MatrixGuide, AutoContinuous):
    """Normal guide whose covariance is a Kronecker product for each matrix-shaped site.

    The covariance over the flat unconstrained vector is block diagonal by site. A site whose
    unconstrained value has at least two axes longer than one is taken as a matrix W: its first
    axis (axes of length one aside) is the n rows, the remaining ones together are the p columns.
    It is ``W = M + A E B^T`` with standard Normal E, hence its entries, row by row, have the
    covariance ``A A^T (x) B B^T``. Every other site is diagonal.

    A and B are lower triangular with a positive diagonal. They share one scale, as (c A, B / c) is
    the same guide; at the start, and after ``MatrixNormalDensity.set_factors``, it is divided
    evenly.

    Parameters
    ----------
    model : callable
        The host's model.
    prefix : str
        Prefix of the parameters' names, in NumPyro alone; the host's default.
    init_loc_fn : callable
        Initial values by site; the host's default.
    init_scale : float
        Initial standard deviation of each unconstrained coordinate; the host's default.

    Notes
    -----
    Parameters in Pyro, by the names of ``named_parameters()``: ``loc`` (D,);
    ``scale_unconstrained`` (R,), where R > 0 coordinates belong to no matrix; and for each
    matrix-shaped site ``row_scale.<site>_unconstrained`` (n,) and
    ``row_tril.<site>_unconstrained`` (n, n), whose product is A, with ``column_scale`` (p,) and
    ``column_tril`` (p, p) likewise for B. In NumPyro: ``auto_loc`` (D,); ``auto_scale`` (R,), where
    R > 0; and for each matrix-shaped site A as ``auto_<site>_row_tril`` (n, n) and B as
    ``auto_<site>_column_tril`` (p, p).

    Raises
    ------
    ArgumentError
        ``init_scale`` is not a positive number.

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(x, y):
    ...     w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 2]).to_event(2))
    ...     with pyro.plate("rows", len(x)):
    ...         pyro.sample("y", dist.Normal(x @ w, 0.1).to_event(1), obs=y)
    >>> x = torch.eye(2).repeat(10, 1)
    >>> y = x @ torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    >>> guide = px.AutoMatrixNormal(model)
    >>> engine = px.ProximalScoreVI(model, guide, seed=0)
    >>> result = engine.run(100, x, y)
    >>> print(guide.median()["w"].round(decimals=1).abs().tolist())
    [[1.0, 0.0], [0.0, 1.0]]
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
                # The standard deviation of an entry is the product of that of its row and that of
                # its column.
                scale = self.loc.new_full((length,), math.sqrt(self._init_scale))
                unit = torch.eye(length, dtype=self.loc.dtype, device=self.loc.device)
                _set_by_site(scales, block.name, PyroParam(scale, self.scale_constraint))
                _set_by_site(trils, block.name, PyroParam(unit, self.scale_tril_constraint))

    def _factor(self, side: str, name: str) -> Tensor:
        scale, unit = attrgetter(f"{side}_scale.{name}", f"{side}_tril.{name}")(self)
        return scale.unsqueeze(-1) * unit

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
        return factors.mean, factors.deviations(TensorFunctions, self.blocks)


@register_flat_density(AutoMatrixNormal)
class MatrixNormalDensity(shared.MatrixDensity, NormalDensity):
    covariance_structure = "matrix_normal"

    def factors(self, parameters: Parameters) -> Factors:
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
        result = {"loc": factors.mean.clone()}
        if self.guide.blocks.num_rest:
            result["scale_unconstrained"] = self._unconstrained_scale(factors.scale)
        unit_lower = transform_to(self.guide.scale_tril_constraint)
        for name, pair in factors.matrices.items():
            for side, factor in zip(("row", "column"), self._balanced(pair), strict=True):
                scale = factor.diagonal()
                unit = factor / scale.unsqueeze(-1)
                unconstrained = self._unconstrained_scale(scale)
                result[f"{side}_scale.{name}_unconstrained"] = unconstrained
                result[f"{side}_tril.{name}_unconstrained"] = unit_lower.inv(unit).clone()
        return {name: result[name] for name in parameters}

    @torch.no_grad()
    def sample(self, parameters: Parameters, generator: Generator, num: int) -> Draws:
        noise = self.noise(parameters, generator, (num, self.dim))
        draws: Tensor = self.factors(parameters).scaled(self.arrays, noise, self.blocks())
        return draws.add_(parameters["loc"])


def _set_by_site(module: Any, name: str, value: Any) -> None:
    """Set a parameter under the name of a site, whose dots are nested modules as in the host."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(module, part):
            setattr(module, part, PyroModule())
        module = getattr(module, part)
    setattr(module, last, value)
