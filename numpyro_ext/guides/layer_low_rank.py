"""A Normal guide with low-rank covariances by layer; see :mod:`ppl_ext.guides.layer_low_rank`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array, lax
from jaxtyping import Float
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer.autoguide import AutoContinuous
from numpyro.infer.initialization import init_to_uniform

from numpyro_ext.density.handlers import alone
from numpyro_ext.draws import standard_normal
from numpyro_ext.guides.arrays import JaxFunctions
from numpyro_ext.guides.flat_density import Draws, Parameters, register_flat_density
from numpyro_ext.guides.normal import NormalDensity
from ppl_ext.guides import layer_low_rank as shared
from ppl_ext.guides.layouts import find_layers


class LayerLowRankNormal(shared.LayerFormulas, dist.Distribution):
    arrays = JaxFunctions
    arg_constraints: ClassVar[dict[str, Any]] = {
        "loc": constraints.real_vector,
        "scale": constraints.independent(constraints.positive, 1),
        "cov_factor": constraints.independent(constraints.real, 2),
    }
    support = constraints.real_vector
    reparametrized_params: ClassVar[list[str]] = ["loc", "scale", "cov_factor"]
    pytree_data_fields = ("loc", "scale", "cov_factor")
    pytree_aux_fields = ("layers",)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Float[Array, "*S D"]:
        key_diagonal, key_factor = jax.random.split(key)
        dtype = jnp.result_type(self.loc)
        shape = (*sample_shape, len(self.layers), self.cov_factor.shape[-1])
        noise = standard_normal(key_diagonal, (*sample_shape, *self.event_shape), dtype)
        return self._draw(noise, standard_normal(key_factor, shape, dtype))


class AutoLayerLowRankNormal(shared.LayerGuide, AutoContinuous):
    """Normal guide with a low-rank plus diagonal covariance for each layer of a network.

    Within a layer the covariance is ``S (I + W W^T) S``, S a diagonal of scales and W of ``rank``
    columns; layers are independent. Sites whose names are the same up to the last dot are one
    layer: "net.0.weight" and "net.0.bias", or "net/Dense_0.kernel" and "net/Dense_0.bias". A site
    without a dot is a layer of its own.

    Parameters
    ----------
    model : callable
        The host's model.
    rank : int
        Columns of W in each layer.
    layers : mapping of str to str, optional
        Names of layers by site, for sites that belong to another one than their name says.
    prefix : str
        Prefix of the parameters' names, in NumPyro alone; the host's default.
    init_loc_fn : callable
        Initial values by site; the host's default.
    init_scale : float
        Initial standard deviation of each unconstrained coordinate, on average; the host's default.

    Notes
    -----
    Parameters in Pyro, by the names of ``named_parameters()``: ``loc`` (D,),
    ``scale_unconstrained`` (D,) and ``cov_factor`` (D, rank), the rows of W for all layers; in
    NumPyro ``auto_loc`` (D,), ``auto_scale`` (D,) and ``auto_cov_factor`` (D, rank). W starts at
    random, since the gradient in W is zero at W = 0.

    Raises
    ------
    ArgumentError
        An option is out of range; when the guide first sees its model, ``layers`` names a site
        that there is not.

    Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(x, y=None):
    ...     w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 1]).to_event(2))
    ...     with numpyro.plate("rows", len(x)):
    ...         numpyro.sample("y", dist.Normal((x @ w)[:, 0], 0.1), obs=y)
    >>> x = jnp.tile(jnp.eye(2), (10, 1))
    >>> y = x @ jnp.array([1.0, -1.0])
    >>> guide = nx.AutoLayerLowRankNormal(model, rank=1)
    >>> engine = nx.ProximalScoreVI(model, guide)
    >>> result = engine.run(jax.random.key(0), 50, x, y)
    >>> print(guide.median(result.params)["w"][:, 0].round())
    [ 1. -1.]
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
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn)
        self._set_options(rank, layers, init_scale)

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        shapes = {name: jnp.shape(value) for name, value in self._init_locs.items()}
        self.layers = find_layers(shapes, self._given_layers)

    def _get_posterior(self) -> LayerLowRankNormal:
        dtype, shape = self._init_latent.dtype, (self.latent_dim, self.rank)
        loc = numpyro.param(f"{self.prefix}_loc", self._init_latent)
        scale = numpyro.param(
            f"{self.prefix}_scale",
            # A row of the factor has squares that sum to one in expectation. The variance, scale^2
            # (1 + 1), is then init_scale^2.
            jnp.full(self.latent_dim, math.sqrt(0.5) * self._init_scale, dtype),
            constraint=self.scale_constraint,
        )
        factor = numpyro.param(
            f"{self.prefix}_cov_factor",
            lambda key: jax.random.normal(key, shape, dtype) / math.sqrt(self.rank),
        )
        return LayerLowRankNormal(loc, scale, factor, self.layers)

    @alone
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
class LayerLowRankNormalDensity(shared.LayerDensity, NormalDensity):
    covariance_structure = "layer_low_rank"

    def _posterior(self, parameters: Parameters) -> LayerLowRankNormal:
        names = ("loc", "scale", "cov_factor")
        loc, scale, factor = (self._get(parameters, name) for name in names)
        return LayerLowRankNormal(loc, scale, factor, self.guide.layers)

    def sample(self, parameters: Parameters, rng_key: Array, num: int) -> Draws:
        return lax.stop_gradient(self._posterior(parameters).sample(rng_key, (num,)))
