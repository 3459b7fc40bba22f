"""A Normal guide with a low-rank covariance for each layer of a network.

Weights and biases of one layer are jointly Normal with covariance ``S (I + W W^T) S``, S a
diagonal of scales and W a factor with few columns; layers are independent of each other. For the
same number of columns this describes correlations within every layer, where one low-rank
covariance over all weights shares its few directions between them, at the same cost.

Source of the covariance: V. M.-H. Ong, D. J. Nott and M. S. Smith, "Gaussian variational
approximation with a factor covariance structure", Journal of Computational and Graphical
Statistics 27 (2018). For the layers of networks: M. Tomczak, S. Swaroop and R. Turner, "Efficient
low rank Gaussian variational inference for neural networks", NeurIPS 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import lax
from jax.scipy.linalg import solve_triangular
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer.autoguide import AutoContinuous
from numpyro.infer.initialization import init_to_uniform

from numpyro_ext.draws import standard_normal
from numpyro_ext.guides.flat_density import Moments, Parameters, register_flat_density
from numpyro_ext.guides.normal import LOG_TWO_PI, NormalDensity
from ppl_ext.guides.layouts import Layer, find_layers
from ppl_ext.options import check_count, check_number


class LayerLowRankNormal(dist.Distribution):
    """Normal over a flat vector, of covariance ``S (I + W W^T) S`` within each layer.

    Parameters
    ----------
    loc : array (D,)
    scale : array (D,)
        The diagonal of S, positive.
    cov_factor : array (D, r)
        The rows of W, layer by layer independent of each other.
    layers : tuple of Layer
        Together they are the whole vector.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {
        "loc": constraints.real_vector,
        "scale": constraints.independent(constraints.positive, 1),
        "cov_factor": constraints.independent(constraints.real, 2),
    }
    support = constraints.real_vector
    reparametrized_params: ClassVar[list[str]] = ["loc", "scale", "cov_factor"]
    pytree_data_fields = ("loc", "scale", "cov_factor")
    pytree_aux_fields = ("layers",)

    def __init__(
        self,
        loc: jax.Array,
        scale: jax.Array,
        cov_factor: jax.Array,
        layers: tuple[Layer, ...],
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.loc, self.scale, self.cov_factor, self.layers = loc, scale, cov_factor, layers
        super().__init__((), jnp.shape(loc)[-1:], validate_args=validate_args)

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        key_diagonal, key_factor = jax.random.split(key)
        dtype = jnp.result_type(self.loc)
        shape = (*sample_shape, len(self.layers), self.cov_factor.shape[-1])
        noise = standard_normal(key_diagonal, (*sample_shape, *self.event_shape), dtype)
        noise += _lifted(standard_normal(key_factor, shape, dtype), self.cov_factor, self.layers)
        return self.loc + self.scale * noise

    def log_prob(self, value: jax.Array) -> jax.Array:
        standard = (value - self.loc) / self.scale
        root = _roots(self.cov_factor, self.layers)
        inner = _solved(root, _projected(standard, self.cov_factor, self.layers))
        square = jnp.square(standard).sum(-1) - jnp.square(inner).sum((-2, -1))
        log_determinant = jnp.log(self.scale).sum()
        log_determinant += jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)).sum()
        return -0.5 * (square + self.event_shape[0] * LOG_TWO_PI) - log_determinant

    def score(self, value: jax.Array) -> jax.Array:
        """Gradient of the log density, (..., D)."""
        standard = (value - self.loc) / self.scale
        root = _roots(self.cov_factor, self.layers)
        inner = _solved(root, _projected(standard, self.cov_factor, self.layers))
        inner = _solved(root, inner, transpose=True)
        return (_lifted(inner, self.cov_factor, self.layers) - standard) / self.scale

    @property
    def mean(self) -> jax.Array:
        return self.loc

    @property
    def variance(self) -> jax.Array:
        return jnp.square(self.scale) * (1.0 + jnp.square(self.cov_factor).sum(-1))

    def covariance_matrix(self) -> jax.Array:
        """Dense covariance (D, D): for small D only."""
        scaled = self.scale[:, None] * self.cov_factor
        member = jnp.zeros((len(self.layers), *self.event_shape), scaled.dtype)
        for number, layer in enumerate(self.layers):
            for start, stop in layer.places:
                member = member.at[number, start:stop].set(1.0)
        return (member.T @ member) * (scaled @ scaled.T) + jnp.diag(jnp.square(self.scale))


class AutoLayerLowRankNormal(AutoContinuous):
    """Normal guide with a low-rank plus diagonal covariance for each layer of a network.

    Within a layer the covariance is ``S (I + W W^T) S``, S a diagonal of scales and W of ``rank``
    columns; layers are independent. Which sites are one layer is read from their names, all
    before the last dot: "net/Dense_0.kernel" and "net/Dense_0.bias" are. A site without a dot is
    a layer of its own.

    Parameters
    ----------
    model : callable
        NumPyro model.
    rank : int
        Columns of W in each layer.
    layers : mapping of str to str, optional
        Names of layers by site, for sites that belong to another one than their name says.
    prefix : str
        Prefix of the parameters' names; NumPyro's default.
    init_loc_fn : callable
        Initial values by site; NumPyro's default.
    init_scale : float
        Initial standard deviation of each unconstrained coordinate, on average; NumPyro's default.

    Notes
    -----
    Parameters: ``auto_loc`` (D,), ``auto_scale`` (D,) and ``auto_cov_factor`` (D, rank), the rows
    of W for all layers. W starts at random, since nothing would leave W = 0.

    Raises
    ------
    ArgumentError
        An option is out of range; when the guide first sees its model, ``layers`` names a site
        that there is not.
    """

    scale_constraint = constraints.softplus_positive

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        rank: int = 5,
        layers: Mapping[str, str] | None = None,
        prefix: str = "auto",
        init_loc_fn: Callable[..., Any] = init_to_uniform,
        init_scale: float = 0.1,
    ) -> None:
        check_count("rank", rank)
        check_number("init_scale", init_scale)
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn)
        self.rank = rank
        self._init_scale = float(init_scale)
        self._given_layers = None if layers is None else dict(layers)

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        shapes = {name: jnp.shape(value) for name, value in self._init_locs.items()}
        self.layers = find_layers(shapes, self._given_layers)

    def _get_posterior(self) -> LayerLowRankNormal:
        dtype, shape = self._init_latent.dtype, (self.latent_dim, self.rank)
        loc = numpyro.param(f"{self.prefix}_loc", self._init_latent)
        scale = numpyro.param(
            f"{self.prefix}_scale",
            jnp.full(self.latent_dim, math.sqrt(0.5) * self._init_scale, dtype),
            constraint=self.scale_constraint,
        )
        factor = numpyro.param(
            f"{self.prefix}_cov_factor",
            lambda key: jax.random.normal(key, shape, dtype) / math.sqrt(self.rank),
        )
        return LayerLowRankNormal(loc, scale, factor, self.layers)

    def get_posterior(self, params: dict[str, Any]) -> LayerLowRankNormal:
        """The posterior over the flat vector under these parameters."""
        return handlers.substitute(self._get_posterior, data=params)()

    def median(self, params: dict[str, Any]) -> dict[str, Any]:
        """Median of each latent site under these parameters."""
        return self._unpack_and_constrain(params[f"{self.prefix}_loc"], params)

    def quantiles(self, params: dict[str, Any], quantiles: Any) -> dict[str, Any]:
        """Quantiles of each latent site, coordinate by coordinate, under these parameters."""
        posterior = self.get_posterior(params)
        marginal = dist.Normal(posterior.mean, jnp.sqrt(posterior.variance))
        latent = marginal.icdf(jnp.asarray(quantiles)[..., None])
        return self._unpack_and_constrain(latent, params)


@register_flat_density(AutoLayerLowRankNormal)
class LayerLowRankNormalDensity(NormalDensity):
    """``AutoLayerLowRankNormal``: closed forms by Woodbury's identity in each layer.

    O(D r) operations per draw, and a Cholesky factor of size r for each layer.
    """

    covariance_structure = "layer_low_rank"

    def _posterior(self, parameters: Parameters) -> LayerLowRankNormal:
        names = ("loc", "scale", "cov_factor")
        loc, scale, factor = (self._get(parameters, name) for name in names)
        return LayerLowRankNormal(loc, scale, factor, self.guide.layers)

    def sample(self, parameters: Parameters, rng_key: jax.Array, num: int) -> jax.Array:
        return lax.stop_gradient(self._posterior(parameters).sample(rng_key, (num,)))

    def log_prob(self, parameters: Parameters, theta: jax.Array) -> jax.Array:
        return self._posterior(parameters).log_prob(theta)

    def score(self, parameters: Parameters, theta: jax.Array) -> jax.Array:
        return self._posterior(parameters).score(theta)

    def set_scale(self, parameters: Parameters, scale: float) -> Parameters:
        """New parameters with this standard deviation everywhere, and the same mean and W."""
        posterior = self._posterior(parameters)
        factor = posterior.cov_factor
        deviations = scale * lax.rsqrt(1.0 + jnp.square(factor).sum(-1))
        return self._set(loc=posterior.loc, cov_factor=factor, scale=deviations)

    def moments(self, parameters: Parameters) -> Moments:
        """Mean (D,) and dense Cholesky factor (D, D): for small D only."""
        posterior = self._posterior(parameters)
        return Moments(posterior.loc, jnp.linalg.cholesky(posterior.covariance_matrix()))


def _projected(x: jax.Array, factor: jax.Array, layers: Sequence[Layer]) -> jax.Array:
    """``x^T W`` in each layer, (..., layers, r), of vectors (..., D)."""
    return jnp.stack(
        [
            sum(x[..., start:stop] @ factor[start:stop] for start, stop in layer.places)
            for layer in layers
        ],
        -2,
    )


def _lifted(inner: jax.Array, factor: jax.Array, layers: Sequence[Layer]) -> jax.Array:
    """``W z`` in each layer, (..., D), of vectors (..., layers, r)."""
    parts = {
        start: inner[..., number, :] @ factor[start:stop].T
        for number, layer in enumerate(layers)
        for start, stop in layer.places
    }
    return jnp.concatenate([parts[start] for start in sorted(parts)], -1)


def _roots(factor: jax.Array, layers: Sequence[Layer]) -> jax.Array:
    """Cholesky factor of I + W^T W in each layer, (layers, r, r)."""
    products = [
        sum(factor[start:stop].T @ factor[start:stop] for start, stop in layer.places)
        for layer in layers
    ]
    return jnp.linalg.cholesky(jnp.eye(factor.shape[-1], dtype=factor.dtype) + jnp.stack(products))


def _solved(root: jax.Array, inner: jax.Array, transpose: bool = False) -> jax.Array:
    """Solve L x = v, or L^T x = v, in each layer, for vectors (..., layers, r)."""
    # Layers first, and the vectors of all draws as columns.
    columns = jnp.moveaxis(jnp.reshape(inner, (-1, *root.shape[:2])), 0, -1)
    solved = solve_triangular(root, columns, trans=1 if transpose else 0, lower=True)
    return jnp.reshape(jnp.moveaxis(solved, -1, 0), inner.shape)
