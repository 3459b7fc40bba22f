"""A Normal guide with Kronecker covariances for NumPyro.

See :mod:`ppl_ext.guides.matrix_normal`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform
from numpyro.infer.autoguide import AutoContinuous
from numpyro.infer.initialization import init_to_uniform

from numpyro_ext.density.handlers import alone
from numpyro_ext.guides.arrays import JaxFunctions
from numpyro_ext.guides.flat_density import Draws, Parameters, register_flat_density
from numpyro_ext.guides.normal import NormalDensity
from ppl_ext.guides import matrix_normal as shared
from ppl_ext.guides.layouts import find_blocks
from ppl_ext.options import check_number

Factors = shared.Factors


class MatrixNormalTransform(shared.MatrixTransform, Transform):
    arrays = JaxFunctions
    domain = constraints.real_vector
    codomain = constraints.real_vector
    __call__ = shared.MatrixTransform._call

    def tree_flatten(self) -> Any:
        return (self.factors,), (("factors",), {"blocks": self.blocks})


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
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(x, y):
    ...     w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 2]).to_event(2))
    ...     with numpyro.plate("rows", len(x)):
    ...         numpyro.sample("y", dist.Normal(x @ w, 0.1).to_event(1), obs=y)
    >>> x = jnp.tile(jnp.eye(2), (10, 1))
    >>> y = x @ jnp.array([[1.0, 0.0], [0.0, -1.0]])
    >>> guide = nx.AutoMatrixNormal(model)
    >>> engine = nx.ProximalScoreVI(model, guide)
    >>> result = engine.run(jax.random.key(0), 100, x, y)
    >>> print(abs(guide.median(result.params)["w"].round(1)).tolist())
    [[1.0, 0.0], [0.0, 1.0]]
    """

    scale_constraint = constraints.softplus_positive
    scale_tril_constraint = constraints.scaled_unit_lower_cholesky

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        prefix: str = "auto",
        init_loc_fn: Callable[..., Any] = init_to_uniform,
        init_scale: float = 0.1,
    ) -> None:
        check_number("init_scale", init_scale)
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn)
        self._init_scale = float(init_scale)

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        shapes = {name: jnp.shape(value) for name, value in self._init_locs.items()}
        self.blocks = find_blocks(shapes)

    def _factors(self) -> Factors:
        dtype = self._init_latent.dtype
        loc = numpyro.param(f"{self.prefix}_loc", self._init_latent)
        scale = jnp.full(self.blocks.num_rest, self._init_scale, dtype)
        if self.blocks.num_rest:
            scale = numpyro.param(f"{self.prefix}_scale", scale, constraint=self.scale_constraint)

        def factor(name: str, side: str, length: int) -> Any:
            return numpyro.param(
                f"{self.prefix}_{name}_{side}_tril",
                # The standard deviation of an entry is the product of that of its row and that of
                # its column.
                math.sqrt(self._init_scale) * jnp.identity(length, dtype),
                constraint=self.scale_tril_constraint,
            )

        matrices = {
            name: (factor(name, "row", shape[0]), factor(name, "column", shape[1]))
            for name, _, shape in self.blocks.matrices
        }
        return Factors(loc, scale, matrices)

    def _get_posterior(self) -> dist.TransformedDistribution:
        transform = MatrixNormalTransform(self._factors(), self.blocks)
        return dist.TransformedDistribution(self.get_base_dist(), transform)

    def get_base_dist(self) -> Any:
        """Standard Normal over the flat vector."""
        return dist.Normal(jnp.zeros(self.latent_dim, self._init_latent.dtype), 1).to_event(1)

    def median(self, params: dict[str, Any]) -> dict[str, Any]:
        """Median of each latent site under these parameters."""
        return self._unpack_and_constrain(params[f"{self.prefix}_loc"], params)

    @alone
    def quantiles(self, params: dict[str, Any], quantiles: Any) -> dict[str, Any]:
        """Quantiles of each latent site, coordinate by coordinate, under these parameters."""
        factors = handlers.substitute(self._factors, data=params)()
        deviations = factors.deviations(JaxFunctions, self.blocks)
        latent = dist.Normal(factors.mean, deviations).icdf(jnp.asarray(quantiles)[..., None])
        return self._unpack_and_constrain(latent, params)


@register_flat_density(AutoMatrixNormal)
class MatrixNormalDensity(shared.MatrixDensity, NormalDensity):
    covariance_structure = "matrix_normal"

    def factors(self, parameters: Parameters) -> Factors:
        loc = self._get(parameters, "loc")
        rest = self.blocks().num_rest
        scale = self._get(parameters, "scale") if rest else jnp.zeros(0, loc.dtype)
        matrices = {
            name: (
                self._get(parameters, f"{name}_row_tril"),
                self._get(parameters, f"{name}_column_tril"),
            )
            for name, _, _ in self.blocks().matrices
        }
        return Factors(loc, scale, matrices)

    def set_factors(self, parameters: Parameters, factors: Factors) -> Parameters:
        values = {"loc": factors.mean}
        if self.blocks().num_rest:
            values["scale"] = factors.scale
        for name, pair in factors.matrices.items():
            values[f"{name}_row_tril"], values[f"{name}_column_tril"] = self._balanced(pair)
        return self._set(**values)

    def sample(self, parameters: Parameters, rng_key: Array, num: int) -> Draws:
        factors = self.factors(parameters)
        noise = self.noise(parameters, rng_key, (num, self.dim))
        move = factors.scaled(self.arrays, noise, self.blocks())
        return jax.lax.stop_gradient(factors.mean + move)
