"""A guide by planar flows, with an exact inverse; see :mod:`ppl_ext.guides.planar_flow`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array, lax
from numpyro.distributions import constraints
from numpyro.distributions.transforms import AffineTransform, Transform
from numpyro.infer.autoguide import AutoContinuous
from numpyro.infer.initialization import init_to_median

from numpyro_ext.draws import standard_normal
from numpyro_ext.guides.arrays import JaxFunctions
from numpyro_ext.guides.flat_density import Draws, FlatDensity, Parameters, register_flat_density
from ppl_ext.guides import planar_flow as shared
from ppl_ext.guides.planar_flow import INITIAL_DIRECTION


class PlanarTransform(shared.PlanarMap, Transform):
    arrays = JaxFunctions
    domain = constraints.real_vector
    codomain = constraints.real_vector
    __call__ = shared.PlanarMap._call

    def tree_flatten(self) -> Any:
        names = ("weight", "bias", "direction", "slope")
        return tuple(getattr(self, name) for name in names), (names, {})


class AutoPlanarFlow(shared.PlanarGuide, AutoContinuous):
    """Guide by planar flows: ``theta = loc + scale * (f_K o ... o f_1)(z)``, z standard Normal.

    Each of the K maps ``f(z) = z + u_hat tanh(w . z + b)`` bends the Normal along one direction.
    At the start the guide is close to a Normal about the initial values with standard deviations
    ``init_scale``. Its density can be evaluated, and differentiated, at any point.

    Parameters
    ----------
    model : callable
        The host's model.
    num_flows : int
        Number K of planar maps, at least one.
    prefix : str
        Prefix of the parameters' names, in NumPyro alone; the host's default.
    init_loc_fn : callable
        Initial values by site. Default: the prior's median, as of Pyro's other guides. In NumPyro,
        whose other guides start at a random point, a flow has less far to go from there.
    init_scale : float
        Initial standard deviation of each unconstrained coordinate; the host's default.

    Notes
    -----
    Parameters in Pyro, by the names of ``named_parameters()``: ``loc`` and ``scale_unconstrained``
    (D,); ``weight`` (w) and ``direction`` (u), (K, D); ``bias`` (b), (K,). In NumPyro:
    ``auto_loc`` and ``auto_scale`` (D,); ``auto_weight`` (w) and ``auto_direction`` (u), (K, D);
    ``auto_bias`` (b), (K,). The first w and u are random, in Pyro from torch's global generator. As
    for the hosts' flows there are no closed-form medians and quantiles.

    Raises
    ------
    ArgumentError
        ``num_flows`` is not a positive whole number, or ``init_scale`` not a positive number.

    Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> guide = nx.AutoPlanarFlow(model, num_flows=2)
    >>> engine = nx.ProximalScoreVI(model, guide)
    >>> result = engine.run(jax.random.key(0), 200, y)
    >>> draws = engine.get_samples(result.state, jax.random.key(1), 500)
    >>> print(f"{draws['mean'].mean():.0f}")
    2
    """

    scale_constraint = constraints.softplus_positive

    def __init__(
        self,
        model: Callable[..., Any],
        num_flows: int = 4,
        *,
        prefix: str = "auto",
        init_loc_fn: Callable[..., Any] = init_to_median,
        init_scale: float = 0.1,
    ) -> None:
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn)
        self._set_options(num_flows, init_scale)

    def _get_posterior(self) -> dist.TransformedDistribution:
        dtype = self._init_latent.dtype
        shape, length = (self.num_flows, self.latent_dim), self.latent_dim**-0.5

        def normal(size: float) -> Callable[[Array], Array]:
            return lambda rng_key: size * jax.random.normal(rng_key, shape, dtype)

        loc = numpyro.param(f"{self.prefix}_loc", self._init_latent)
        scale = numpyro.param(
            f"{self.prefix}_scale",
            jnp.full(self.latent_dim, self._init_scale, dtype),
            constraint=self.scale_constraint,
        )
        weight = numpyro.param(f"{self.prefix}_weight", normal(length))
        direction = numpyro.param(f"{self.prefix}_direction", normal(INITIAL_DIRECTION * length))
        bias = numpyro.param(f"{self.prefix}_bias", jnp.zeros(self.num_flows, dtype))
        parts: list[Transform] = [
            PlanarTransform(weight[k], direction[k], bias[k]) for k in range(self.num_flows)
        ]
        parts.append(AffineTransform(loc, scale))
        return dist.TransformedDistribution(self.get_base_dist(), parts)

    def get_base_dist(self) -> Any:
        """Standard Normal over the flat vector."""
        return dist.Normal(jnp.zeros(self.latent_dim, self._init_latent.dtype), 1).to_event(1)

    def median(self, params: Mapping[str, Any]) -> dict[str, Array]:
        """Not defined."""
        raise NotImplementedError(shared.NO_QUANTILES)

    def quantiles(self, params: Mapping[str, Any], quantiles: Any) -> dict[str, Array]:
        """Not defined."""
        raise NotImplementedError(shared.NO_QUANTILES)


@register_flat_density(AutoPlanarFlow)
class PlanarFlowDensity(shared.PlanarDensity, FlatDensity):
    def _check_evaluable(self) -> None:
        """The guide can always be inverted."""

    def _flow(self, parameters: Parameters) -> shared.Flow:
        host, prefix = self.to_host(parameters), self.guide.prefix
        names = ("loc", "scale", "weight", "direction", "bias")
        return self._flow_of(*(host[f"{prefix}_{name}"] for name in names))

    def set_location_and_scale(self, parameters: Parameters, loc: Any, scale: Any) -> Parameters:
        prefix = self.guide.prefix
        own = {f"{prefix}_loc": loc, f"{prefix}_scale": scale}
        return self.from_host(self.to_host(parameters) | own)

    def sample(self, parameters: Parameters, rng_key: Array, num: int) -> Draws:
        flow = self._flow(parameters)
        y = standard_normal(rng_key, (num, self.dim), flow.loc.dtype)
        # One matrix product for all flows. What the earlier flows add to a later one follows from
        # the products of their directions and weights, which are K x K numbers.
        argument = y @ flow.weight.T + flow.bias
        earlier = jnp.tril(flow.products, -1)

        def apply(k: Array, bends: Array) -> Array:
            return bends.at[:, k].set(jnp.tanh(argument[:, k] + bends @ earlier[k]))

        bends = lax.fori_loop(0, len(flow.bias), apply, jnp.zeros_like(argument))
        return lax.stop_gradient(flow.loc + flow.scale * (y + bends @ flow.direction))

    def _find_roots(self, shifted: Array, slope: Array, later: Array) -> Array:
        shifted, slope, later = lax.stop_gradient((shifted, slope, later))

        def solve(i: Array, x: Array) -> Array:
            k = len(slope) - 1 - i
            # Unknowns not found yet have no part in the equation: their products are zero.
            remaining = shifted[..., k] - jnp.tanh(x) @ later[k]
            return x.at[..., k].set(self.find_root(remaining, slope[k]))

        return lax.fori_loop(0, len(slope), solve, jnp.zeros_like(shifted))
