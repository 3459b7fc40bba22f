"""NumPyro's Normal guides; see :mod:`ppl_ext.guides.normal`."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int
from numpyro.distributions.transforms import ExpTransform, SoftplusTransform
from numpyro.infer import autoguide

from numpyro_ext.draws import standard_normal
from numpyro_ext.guides.flat_density import (
    Draws,
    FlatDensity,
    Moments,
    Parameters,
    register_flat_density,
)
from numpyro_ext.guides.softplus import softplus_and_slope
from numpyro_ext.guides.threefry import is_threefry, threefry_normal
from ppl_ext.guides import normal as shared

#: Longer vectors are worked on in pieces of this length where entries do not depend on each
#: other, so that what is computed on the way is not long and stays in the processor's cache.
LONG = 2**18


class NormalDensity(FlatDensity):
    def _check_evaluable(self) -> None:
        """The closed forms can always be evaluated."""

    def _get(self, parameters: Parameters, name: str) -> Array:
        name = f"{self.guide.prefix}_{name}"
        return self._transforms[name](parameters[name])

    def mean(self, parameters: Parameters) -> Float[Array, " D"]:
        """Mean of the guide, in the unconstrained space."""
        return self._get(parameters, "loc")

    def noise(self, parameters: Parameters, rng_key: Array, shape: tuple[int, ...]) -> Any:
        """Standard normal numbers of the guide's kind, or those given in place of a key."""
        if jnp.issubdtype(rng_key.dtype, jnp.floating):
            return rng_key
        return standard_normal(rng_key, shape, self._get(parameters, "loc").dtype)

    def _set(self, **values: Array) -> Parameters:
        return self.from_host(
            {f"{self.guide.prefix}_{name}": value for name, value in values.items()}
        )

    def set_parts(self, loc: Array, scale: Array, factor: Array) -> Parameters:
        """Parameters of a guide with a low-rank factor: its mean, the diagonal of S, and W."""
        return self._set(loc=loc, scale=scale, cov_factor=factor)


class DiagonalNormalDensity(shared.DiagonalFormulas, NormalDensity):
    covariance_structure = "diagonal"
    takes_noise = True

    def __init__(self, guide: autoguide.AutoContinuous, rng_key: Array) -> None:
        super().__init__(guide, rng_key)
        # A subclass may read the values that are let go of.
        known = type(guide) is autoguide.AutoDiagonalNormal
        if known and self.dim > LONG and not isinstance(guide._init_latent, jax.core.Tracer):
            _release_prototype(guide)

    def sample(self, parameters: Parameters, rng_key: Array, num: int) -> Draws:
        loc, scale = self.moments(parameters)
        if self.dim <= LONG:
            draws = loc + scale * self.noise(parameters, rng_key, (num, self.dim))
            return lax.stop_gradient(draws)
        if is_threefry(rng_key) and loc.dtype == jnp.float32 and num * self.dim < 2**32:
            # One operation, which the compiler divides among cores.
            row, column = (lax.broadcasted_iota(jnp.uint32, (num, self.dim), k) for k in (0, 1))
            noise = threefry_normal(rng_key, row * np.uint32(self.dim) + column)
            scale, _ = self.scale_and_slope(parameters)  # faster than the host's transform
            return lax.stop_gradient(loc + scale * noise)

        def fill(number: int, draws: Array) -> Array:
            # The last piece goes over some of the one before it again.
            start = jnp.minimum(number * LONG, self.dim - LONG)
            key = jax.random.fold_in(rng_key, number)
            noise = self.noise(parameters, key, (num, LONG))
            mean, deviation = self.moments(part_of(parameters, start, LONG))
            return lax.dynamic_update_slice(draws, mean + deviation * noise, (0, start))

        empty = jnp.zeros((num, self.dim), loc.dtype)
        return lax.stop_gradient(lax.fori_loop(0, -(-self.dim // LONG), fill, empty))

    def mean_square_residual(
        self, parameters: Parameters, theta: Float[Array, "S D"], target: Float[Array, "S D"]
    ) -> tuple[Float[Array, ""], Parameters]:
        prefix = self.guide.prefix
        loc, pull_loc = jax.vjp(self._transforms[f"{prefix}_loc"], parameters[f"{prefix}_loc"])
        scale, slope_of_scale = self.scale_and_slope(parameters)
        # One division only: it takes longer than all the rest.
        inverse = 1.0 / scale
        standard = (loc - theta) * inverse
        residual = standard * inverse - target
        slope = (2.0 / len(theta)) * jnp.square(inverse) * residual
        (loc_gradient,) = pull_loc(slope.sum(0))
        scale_gradient = -2.0 * (slope * standard).sum(0) * slope_of_scale
        gradient = {f"{prefix}_loc": loc_gradient, f"{prefix}_scale": scale_gradient}
        return jnp.square(residual).sum(-1).mean(), gradient

    def scale_and_slope(
        self, parameters: Parameters
    ) -> tuple[Float[Array, " D"], Float[Array, " D"]]:
        """Standard deviations, and their derivative in the unconstrained scale.

        Written out for the hosts' usual supports: the compiler takes twice as long for the
        derivative of its own softplus.
        """
        transform = self._transforms[f"{self.guide.prefix}_scale"]
        unconstrained = parameters[f"{self.guide.prefix}_scale"]
        if isinstance(transform, ExpTransform):
            scale = jnp.exp(unconstrained)
            return scale, scale
        if isinstance(transform, SoftplusTransform):
            return softplus_and_slope(unconstrained)
        scale, pull = jax.vjp(transform, unconstrained)
        return scale, pull(jnp.ones_like(scale))[0]

    def largest_gradient(
        self,
        parameters: Parameters,
        theta: Float[Array, "S D"],
        score: Float[Array, "S D"],
        reach: Float[Array, ""] | float,
    ) -> Float[Array, ""]:
        transform = self._transforms[f"{self.guide.prefix}_scale"]
        # The bound below is derived for these two transforms. Infinity says that nothing is known.
        if not isinstance(transform, SoftplusTransform | ExpTransform):
            return jnp.asarray(jnp.inf, theta.dtype)
        distance = jnp.abs(theta - self._get(parameters, "loc")).max() + reach
        least = parameters[f"{self.guide.prefix}_scale"].min() - reach
        precision = 1.0 / jnp.square(transform(least))
        residual = 2.0 * (distance * precision + jnp.abs(score).max())
        # Both transforms have a derivative of at most their value, which cancels a division.
        slope = jnp.maximum(2.0 * precision, 4.0 * distance * precision)
        return residual * jnp.maximum(slope, 1.0)

    def moments(self, parameters: Parameters) -> Moments:
        return Moments(self._get(parameters, "loc"), self._get(parameters, "scale"))

    def set_moments(self, parameters: Parameters, moments: Moments) -> Parameters:
        return self._set(loc=moments.mean, scale=moments.scale)


class MultivariateNormalDensity(shared.FullFormulas, NormalDensity):
    covariance_structure = "full"
    takes_noise = True

    def sample(self, parameters: Parameters, rng_key: Array, num: int) -> Draws:
        loc, scale_tril = self.moments(parameters)
        draws = loc + self.noise(parameters, rng_key, (num, self.dim)) @ scale_tril.T
        return jax.lax.stop_gradient(draws)

    def moments(self, parameters: Parameters) -> Moments:
        return Moments(self._get(parameters, "loc"), self._get(parameters, "scale_tril"))

    def set_moments(self, parameters: Parameters, moments: Moments) -> Parameters:
        return self._set(loc=moments.mean, scale_tril=moments.scale)


class LowRankNormalDensity(shared.LowRankFormulas, NormalDensity):
    covariance_structure = "low_rank"

    def _host_start(self, arrays: dict[str, Any], rng_key: Array) -> Parameters:
        # The host starts at W = 0. The score depends on W through W W^T, so no gradient would
        # ever leave there; Pyro's random start, with the same marginal scale, is taken instead.
        host, prefix = super()._host_start(arrays, rng_key), self.guide.prefix
        factor, scale = host[f"{prefix}_cov_factor"], host[f"{prefix}_scale"]
        draws = jax.random.normal(rng_key, factor.shape, factor.dtype)
        is_zero = ~factor.any()
        return {
            **host,
            f"{prefix}_cov_factor": jnp.where(is_zero, draws / math.sqrt(factor.shape[-1]), factor),
            f"{prefix}_scale": jnp.where(is_zero, scale * math.sqrt(0.5), scale),
        }

    def parts(self, parameters: Parameters) -> tuple[Array, Array, Array]:
        loc, scale = self._get(parameters, "loc"), self._get(parameters, "scale")
        return loc, scale, self._get(parameters, "cov_factor")

    def sample(self, parameters: Parameters, rng_key: Array, num: int) -> Draws:
        loc, scale, factor = self.parts(parameters)
        key_diagonal, key_factor = jax.random.split(rng_key)
        noise = self.noise(parameters, key_diagonal, (num, self.dim))
        noise += self.noise(parameters, key_factor, (num, factor.shape[-1])) @ factor.T
        return jax.lax.stop_gradient(loc + scale * noise)


def _release_prototype(guide: autoguide.AutoContinuous) -> None:
    """Let go of large values that the host keeps of the guide's set-up more than once.

    The initial values by site become views of the flat vector that the host keeps too. Of the
    values in the prototype trace, other ones than these, the host reads shapes alone.
    """
    flat, start = np.asarray(guide._init_latent), 0
    if not flat.any():
        # Not drawn; zeros that take no memory.
        flat = guide._init_latent = np.broadcast_to(np.zeros((), flat.dtype), flat.shape)
    for name, value in guide._init_locs.items():
        guide._init_locs[name] = flat[start : start + value.size].reshape(value.shape)
        start += value.size
    for site in guide.prototype_trace.values():
        if site["type"] == "sample" and not site["is_observed"] and jnp.size(site["value"]) > LONG:
            value = site["value"]
            site["value"] = np.broadcast_to(np.zeros((), value.dtype), value.shape)


def part_of(tree: Any, start: Int[Array, ""] | int, length: int) -> Any:
    """Coordinates ``start`` to ``start + length`` of every vector in a tree of arrays."""
    return jax.tree.map(
        lambda leaf: lax.dynamic_slice_in_dim(leaf, start, length) if jnp.ndim(leaf) else leaf, tree
    )


register_flat_density(autoguide.AutoDiagonalNormal)(DiagonalNormalDensity)
register_flat_density(autoguide.AutoMultivariateNormal)(MultivariateNormalDensity)
register_flat_density(autoguide.AutoLowRankMultivariateNormal)(LowRankNormalDensity)
