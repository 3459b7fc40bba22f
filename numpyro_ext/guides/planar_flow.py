"""A guide by planar flows with an exact inverse (``AutoPlanarFlow``).

A draw is made by K planar maps, a scale and a shift::

    theta = loc + scale * (f_K o ... o f_1)(z),   z ~ N(0, I),
    f(z) = z + u_hat tanh(w . z + b),   w . u_hat > -1.

A planar map stretches or bends space along one direction u_hat, depending on the coordinate
w . z alone, and has 2 D + 1 parameters. Score-based inference needs the density at points that it
did not draw, hence the inverse. It has no closed form, but only one scalar is unknown: with
a = w . z, taking the product of w and y = f(z) gives ::

    a + (w . u_hat) tanh(a + b) = w . y,

whose left side grows with a; then z = y - u_hat tanh(a + b).

Source: D. J. Rezende and S. Mohamed, "Variational inference with normalizing flows", ICML 2015,
equations 10 to 12 and appendix A.1. Two things differ. There u_hat is u with its part along w
replaced such that w . u_hat = -1 + softplus(w . u); here softplus(w . u + log(e - 1)), which is
the same family of maps, but u = 0 is the identity, and u_hat stays finite as w goes to zero. And
there the inverse is not computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import lax
from jax.nn import softplus
from jax.scipy.linalg import solve_triangular
from numpyro.distributions import constraints
from numpyro.distributions.transforms import AffineTransform, Transform
from numpyro.infer.autoguide import AutoContinuous
from numpyro.infer.initialization import init_to_median

from numpyro_ext.draws import standard_normal
from numpyro_ext.guides.flat_density import FlatDensity, Parameters, register_flat_density
from numpyro_ext.guides.normal import LOG_TWO_PI
from ppl_ext.options import check_count, check_number

#: softplus(SHIFT) = 1, so that u = 0 gives the identity.
SHIFT = math.log(math.expm1(1.0))
#: Length of u at the start, where w has length one: the first draws are Normal to a few per cent.
INITIAL_DIRECTION = 0.1
#: Newton steps of the inverse at most; two to eight are usual, about 50 are needed where the map
#: is nearly singular.
MAX_STEPS = 100


class PlanarTransform(Transform):
    """The planar map ``f(z) = z + u_hat tanh(w . z + b)`` and its exact inverse.

    Values and the first three derivatives are exact to rounding, amplified by
    1 / (1 + w . u_hat) where the map is nearly singular.

    Parameters
    ----------
    weight, direction : arrays (D,)
        w, and u, from which u_hat is made.
    bias : scalar array
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector

    def __init__(self, weight: jax.Array, direction: jax.Array, bias: jax.Array) -> None:
        self.weight = weight
        self.bias = bias
        self.direction, self.slope = invertible_direction(weight, direction)

    def __call__(self, x: jax.Array) -> jax.Array:
        bend = jnp.tanh(x @ self.weight + self.bias)
        return x + bend[..., None] * self.direction

    def _inverse(self, y: jax.Array) -> jax.Array:
        bend = jnp.tanh(solve_planar(y @ self.weight + self.bias, self.slope))
        return y - bend[..., None] * self.direction

    def log_abs_det_jacobian(self, x: jax.Array, y: jax.Array, intermediates: Any = None) -> Any:
        return jnp.log(_derivative(jnp.tanh(x @ self.weight + self.bias), self.slope))

    def tree_flatten(self) -> Any:
        names = ("weight", "bias", "direction", "slope")
        return tuple(getattr(self, name) for name in names), (names, {})


def invertible_direction(weight: jax.Array, direction: jax.Array) -> tuple[jax.Array, jax.Array]:
    """u_hat (..., D), and 1 + w . u_hat > 0 (...,), for w and u (..., D).

    The second is returned apart because adding one to w . u_hat would round it away near zero.
    """
    inner = (weight * direction).sum(-1)
    slope = softplus(inner + SHIFT)
    # A weight of zero is a translation, not a division of zero by zero; the bound leaves room for
    # its square, by which the derivative is divided.
    square = jnp.maximum(jnp.square(weight).sum(-1), jnp.finfo(weight.dtype).tiny ** 0.5)
    change = (slope - 1.0 - inner) / square
    return direction + change[..., None] * weight, slope


def solve_planar(shifted: jax.Array, slope: jax.Array) -> jax.Array:
    """The x with ``x + (slope - 1) tanh(x) = shifted``, elementwise, for slope > 0.

    The first three derivatives with respect to both arguments are right.
    """
    x = _find_root(shifted, slope)
    # The root itself is found without gradients. A Newton step from it leaves its value alone and
    # makes its first derivative right, because the step divides the change of the equation by the
    # slope; but it takes that slope at a point that does not move, so the second derivative is
    # wrong. Newton's method doubles the order: a point right to order k of the arguments' change
    # gives one right to order 2 k + 1. From the fixed root (order 0) two steps reach order 3.
    for _ in range(2):
        bend = jnp.tanh(x)
        x = x - _residual(x, bend, slope, shifted) / _derivative(bend, slope)
    return x


def _derivative(bend: jax.Array, slope: jax.Array) -> jax.Array:
    """Derivative of x + (slope - 1) tanh(x), from tanh(x): a sum of positive terms."""
    square = jnp.square(bend)
    return slope * (1.0 - square) + square


def _residual(x: jax.Array, bend: jax.Array, slope: jax.Array, shifted: jax.Array) -> jax.Array:
    # Not x + (slope - 1) tanh(x): a slope far below one would be lost against the one.
    return (x - bend) + slope * bend - shifted


def _find_root(shifted: jax.Array, slope: jax.Array) -> jax.Array:
    """The root of :func:`solve_planar` to rounding, without gradients.

    The equation is odd, so let ``shifted`` be positive; then so is x. There the left side is
    concave for slope > 1 and convex for slope < 1, and Newton's method goes to the root from one
    side, from below in the first case and from above in the second, without a bracket. Bounds to
    start from: tanh(x) is below x and below one. A step the other way is rounding and ends the
    search.
    """
    shifted, slope = lax.stop_gradient((shifted, slope))
    size, slope = jnp.abs(shifted), jnp.maximum(slope, jnp.finfo(shifted.dtype).tiny)
    side = jnp.where(slope > 1.0, 1.0, -1.0).astype(size.dtype)
    first = side * jnp.maximum(side * size / slope, side * (size - (slope - 1.0)))
    smallest = jnp.finfo(size.dtype).eps

    State = tuple[jax.Array, jax.Array, jax.Array]

    def unfinished(state: State) -> jax.Array:
        _, moving, count = state
        return moving & (count < MAX_STEPS)

    def advance(state: State) -> State:
        x, _, count = state
        bend = jnp.tanh(x)
        step = _residual(x, bend, slope, size) / _derivative(bend, slope)
        moving = step * side < -smallest * x
        return jnp.where(moving, x - step, x), moving.any(), count + 1

    x, _, _ = lax.while_loop(unfinished, advance, (first, jnp.array(True), jnp.array(0)))
    return jnp.copysign(x, shifted)


NO_QUANTILES = (
    "AutoPlanarFlow has no medians and quantiles in closed form. Take those of draws, from "
    "sample_posterior, Predictive or an engine's get_samples."
)


class AutoPlanarFlow(AutoContinuous):
    """Guide by planar flows: ``theta = loc + scale * (f_K o ... o f_1)(z)``, z standard Normal.

    Each of the K maps ``f(z) = z + u_hat tanh(w . z + b)`` bends the Normal along one direction.
    At the start the guide is close to a Normal about the initial values with standard deviations
    ``init_scale``. Its density can be evaluated, and differentiated, at any point.

    Parameters
    ----------
    model : callable
        NumPyro model.
    num_flows : int
        Number K of planar maps, at least one.
    prefix : str
        Prefix of the parameters' names; NumPyro's default.
    init_loc_fn : callable
        Initial values by site. Default: the prior's median, from which a flow has less far to go
        than from the random point of NumPyro's other guides.
    init_scale : float
        Initial standard deviation of each unconstrained coordinate; NumPyro's default.

    Notes
    -----
    Parameters: ``auto_loc`` and ``auto_scale`` (D,); ``auto_weight`` (w) and ``auto_direction``
    (u), (K, D); ``auto_bias`` (b), (K,). The first w and u are random. As for the host's flows
    there are no closed-form medians and quantiles.

    Raises
    ------
    ArgumentError
        ``num_flows`` is not a positive whole number, or ``init_scale`` not a positive number.
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
        check_count("num_flows", num_flows)
        check_number("init_scale", init_scale)
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn)
        self.num_flows = num_flows
        self._init_scale = float(init_scale)

    def _get_posterior(self) -> dist.TransformedDistribution:
        dtype = self._init_latent.dtype
        shape, length = (self.num_flows, self.latent_dim), self.latent_dim**-0.5

        def normal(size: float) -> Callable[[jax.Array], jax.Array]:
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

    def median(self, params: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Not defined."""
        raise NotImplementedError(NO_QUANTILES)

    def quantiles(self, params: Mapping[str, Any], quantiles: Any) -> dict[str, jax.Array]:
        """Not defined."""
        raise NotImplementedError(NO_QUANTILES)


class _Flow(NamedTuple):
    """The parameters, ready for use, and the products of vectors that the scalars need."""

    loc: jax.Array
    scale: jax.Array
    weight: jax.Array
    bias: jax.Array
    direction: jax.Array  # u_hat (K, D)
    slope: jax.Array  # 1 + w . u_hat (K,)
    products: jax.Array  # w_k . u_hat_j (K, K)


@register_flat_density(AutoPlanarFlow)
class PlanarFlowDensity(FlatDensity):
    """``AutoPlanarFlow``: closed form of the score, given the K scalars of the inverse.

    The maps meet the flat vector through the products with w alone. With y the standardised theta
    and t_k = tanh(x_k) the value of tanh in map k::

        z = y - sum_k t_k u_hat_k,
        w_k . y + b_k = x_k + (w_k . u_hat_k) t_k + sum_{j > k} (w_k . u_hat_j) t_j,

    a triangular system in the K unknowns x_k. So vectors of length D are read a few times per point
    however many steps the root finding takes, and all of the inverse's derivatives are solutions
    of triangular K x K systems.
    """

    def _check_evaluable(self) -> None:
        """The guide can always be inverted."""

    def _flow(self, parameters: Parameters) -> _Flow:
        host, prefix = self.to_host(parameters), self.guide.prefix
        weight = host[f"{prefix}_weight"]
        direction, slope = invertible_direction(weight, host[f"{prefix}_direction"])
        products = weight @ direction.T
        loc, scale, bias = (host[f"{prefix}_{name}"] for name in ("loc", "scale", "bias"))
        return _Flow(loc, scale, weight, bias, direction, slope, products)

    def sample(self, parameters: Parameters, rng_key: jax.Array, num: int) -> jax.Array:
        flow = self._flow(parameters)
        y = standard_normal(rng_key, (num, self.dim), flow.loc.dtype)
        argument = y @ flow.weight.T + flow.bias
        earlier = jnp.tril(flow.products, -1)

        def apply(k: jax.Array, bends: jax.Array) -> jax.Array:
            return bends.at[:, k].set(jnp.tanh(argument[:, k] + bends @ earlier[k]))

        bends = lax.fori_loop(0, len(flow.bias), apply, jnp.zeros_like(argument))
        return lax.stop_gradient(flow.loc + flow.scale * (y + bends @ flow.direction))

    def log_prob(self, parameters: Parameters, theta: jax.Array) -> jax.Array:
        flow = self._flow(parameters)
        z, bends, _ = _inverted(flow, (theta - flow.loc) / flow.scale)
        log_determinant = jnp.log(_derivative(bends, flow.slope)).sum(-1)
        log_determinant += jnp.log(flow.scale).sum()
        return -0.5 * (jnp.square(z).sum(-1) + self.dim * LOG_TWO_PI) - log_determinant

    def score(self, parameters: Parameters, theta: jax.Array) -> jax.Array:
        flow = self._flow(parameters)
        z, bends, jacobian = _inverted(flow, (theta - flow.loc) / flow.scale)
        # Derivatives of -|z|^2 / 2 and of the log determinants by x, then by w . y.
        pull = z @ flow.direction.T
        pull += 2.0 * (flow.slope - 1.0) * bends / _derivative(bends, flow.slope)
        pull *= 1.0 - jnp.square(bends)
        pull = solve_triangular(jacobian.mT, pull[..., None], lower=True)[..., 0]
        return (pull @ flow.weight - z) / flow.scale


def _inverted(flow: _Flow, y: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """z (..., D), t (..., K), and the Jacobian of the triangular system (..., K, K) in x."""
    shifted = y @ flow.weight.T + flow.bias
    later = jnp.triu(flow.products, 1)
    x = _find_roots(shifted, flow.slope, later)
    bends, jacobian = _linearised(x, flow.slope, later)
    # As in solve_planar, for all K unknowns at once.
    for _ in range(2):
        residual = _residual(x, bends, flow.slope, shifted) + bends @ later.T
        x -= solve_triangular(jacobian, residual[..., None], lower=False)[..., 0]
        bends, jacobian = _linearised(x, flow.slope, later)
    return y - bends @ flow.direction, bends, jacobian


def _linearised(x: jax.Array, slope: jax.Array, later: jax.Array) -> tuple[jax.Array, jax.Array]:
    bends = jnp.tanh(x)
    diagonal = _derivative(bends, slope)[..., None] * jnp.eye(len(slope), dtype=x.dtype)
    return bends, diagonal + later * (1.0 - jnp.square(bends))[..., None, :]


def _find_roots(shifted: jax.Array, slope: jax.Array, later: jax.Array) -> jax.Array:
    """The unknowns x (..., K), from the last map to the first, without gradients."""
    shifted, slope, later = lax.stop_gradient((shifted, slope, later))

    def solve(i: jax.Array, x: jax.Array) -> jax.Array:
        k = len(slope) - 1 - i
        # Unknowns not found yet have no part in the equation: their products are zero.
        return x.at[..., k].set(_find_root(shifted[..., k] - jnp.tanh(x) @ later[k], slope[k]))

    return lax.fori_loop(0, len(slope), solve, jnp.zeros_like(shifted))
