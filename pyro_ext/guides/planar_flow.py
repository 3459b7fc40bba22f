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
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pyro.distributions import Normal, constraints
from pyro.infer.autoguide.guides import AutoContinuous
from pyro.infer.autoguide.initialization import init_to_median
from pyro.nn.module import PyroParam
from torch import Tensor, nn
from torch.distributions import transform_to
from torch.distributions.transforms import AffineTransform, ComposeTransform, Transform
from torch.nn.functional import softplus

from ppl_ext.options import check_count, check_number
from pyro_ext.guides.flat_density import FlatDensity, Parameters, register_flat_density
from pyro_ext.guides.normal import LOG_TWO_PI

#: softplus(SHIFT) = 1, so that u = 0 gives the identity.
SHIFT = math.log(math.expm1(1.0))
#: Length of u at the start, where w has length one: the first draws are Normal to a few per cent.
INITIAL_DIRECTION = 0.1
#: Newton steps of the inverse at most; two to eight are usual, about 50 are needed where the map
#: is nearly singular.
MAX_STEPS = 100


class PlanarTransform(Transform):
    """The planar map ``f(z) = z + u_hat tanh(w . z + b)`` and its exact inverse.

    Nothing is remembered between calls: the inverse is right at any point. Values and the first
    three derivatives are exact to rounding, amplified by 1 / (1 + w . u_hat) where the map is
    nearly singular.

    Parameters
    ----------
    weight, direction : tensors (D,)
        w, and u, from which u_hat is made.
    bias : scalar tensor
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, weight: Tensor, direction: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.direction, self.slope = invertible_direction(weight, direction)

    def _call(self, x: Tensor) -> Tensor:
        bend = torch.tanh(x @ self.weight + self.bias)
        return x + bend.unsqueeze(-1) * self.direction

    def _inverse(self, y: Tensor) -> Tensor:
        bend = torch.tanh(solve_planar(y @ self.weight + self.bias, self.slope))
        return y - bend.unsqueeze(-1) * self.direction

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return _derivative(torch.tanh(x @ self.weight + self.bias), self.slope).log()


def invertible_direction(weight: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """u_hat (..., D), and 1 + w . u_hat > 0 (...,), for w and u (..., D).

    The second is returned apart because adding one to w . u_hat would round it away near zero.
    """
    inner = (weight * direction).sum(-1)
    slope = softplus(inner + SHIFT)
    # A weight of zero is a translation, not a division of zero by zero; the bound leaves room for
    # its square, by which the derivative is divided.
    square = weight.square().sum(-1).clamp_min(torch.finfo(weight.dtype).tiny ** 0.5)
    change = (slope - 1.0 - inner) / square
    return direction + change.unsqueeze(-1) * weight, slope


def solve_planar(shifted: Tensor, slope: Tensor) -> Tensor:
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
        bend = torch.tanh(x)
        x = x - _residual(x, bend, slope, shifted) / _derivative(bend, slope)
    return x


def _derivative(bend: Tensor, slope: Tensor) -> Tensor:
    """Derivative of x + (slope - 1) tanh(x), from tanh(x): a sum of positive terms."""
    square = bend.square()
    return slope * (1.0 - square) + square


def _residual(x: Tensor, bend: Tensor, slope: Tensor, shifted: Tensor) -> Tensor:
    # Not x + (slope - 1) tanh(x): a slope far below one would be lost against the one.
    return (x - bend) + slope * bend - shifted


@torch.no_grad()
def _find_root(shifted: Tensor, slope: Tensor) -> Tensor:
    """The root of :func:`solve_planar` to rounding, without gradients.

    The equation is odd, so let ``shifted`` be positive; then so is x. There the left side is
    concave for slope > 1 and convex for slope < 1, and Newton's method goes to the root from one
    side, from below in the first case and from above in the second, without a bracket. Bounds to
    start from: tanh(x) is below x and below one. A step the other way is rounding and ends the
    search.
    """
    size = shifted.abs()
    slope = slope.clamp_min(torch.finfo(size.dtype).tiny)
    side = torch.where(slope > 1.0, 1.0, -1.0).to(size.dtype)
    x = side * torch.maximum(side * size / slope, side * (size - (slope - 1.0)))
    smallest = torch.finfo(x.dtype).eps
    for _ in range(MAX_STEPS):
        bend = torch.tanh(x)
        step = _residual(x, bend, slope, size) / _derivative(bend, slope)
        moving = step * side < -smallest * x
        if not moving.any():
            break
        x = torch.where(moving, x - step, x)
    return torch.copysign(x, shifted)


class AutoPlanarFlow(AutoContinuous):
    """Guide by planar flows: ``theta = loc + scale * (f_K o ... o f_1)(z)``, z standard Normal.

    Each of the K maps ``f(z) = z + u_hat tanh(w . z + b)`` bends the Normal along one direction.
    At the start the guide is close to a Normal about the initial values with standard deviations
    ``init_scale``. Its density can be evaluated, and differentiated, at any point.

    Parameters
    ----------
    model : callable
        Pyro model.
    num_flows : int
        Number K of planar maps, at least one.
    init_loc_fn : callable
        Initial values by site; Pyro's default.
    init_scale : float
        Initial standard deviation of each unconstrained coordinate; Pyro's default.

    Notes
    -----
    Parameters, by the names of ``named_parameters()``: ``loc`` and ``scale_unconstrained`` (D,);
    ``weight`` (w) and ``direction`` (u), (K, D); ``bias`` (b), (K,). The first w and u are drawn
    from torch's global generator. As for the host's flows there are no closed-form medians and
    quantiles.

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
        init_loc_fn: Callable[..., Any] = init_to_median,
        init_scale: float = 0.1,
    ) -> None:
        check_count("num_flows", num_flows)
        check_number("init_scale", init_scale)
        super().__init__(model, init_loc_fn=init_loc_fn)
        self.num_flows = num_flows
        self._init_scale = float(init_scale)

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        self.loc = nn.Parameter(self._init_loc())
        self.scale = PyroParam(torch.full_like(self.loc, self._init_scale), self.scale_constraint)
        shape, length = (self.num_flows, self.latent_dim), self.latent_dim**-0.5
        self.weight = nn.Parameter(self.loc.new_empty(shape).normal_(0, length))
        direction = self.loc.new_empty(shape).normal_(0, INITIAL_DIRECTION * length)
        self.direction = nn.Parameter(direction)
        self.bias = nn.Parameter(self.loc.new_zeros(self.num_flows))

    def get_base_dist(self) -> Any:
        """Standard Normal over the flat vector."""
        return Normal(torch.zeros_like(self.loc), torch.ones_like(self.loc)).to_event(1)

    def get_transform(self, *args: Any, **kwargs: Any) -> Transform:
        """From the standard Normal to the posterior."""
        parts: list[Transform] = [
            PlanarTransform(weight, direction, bias)
            for weight, direction, bias in zip(self.weight, self.direction, self.bias, strict=True)
        ]
        return ComposeTransform([*parts, AffineTransform(self.loc, self.scale, event_dim=1)])

    def _loc_scale(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Not defined: what the host's ``median`` and ``quantiles`` ask for."""
        raise NotImplementedError(
            "AutoPlanarFlow has no medians and quantiles in closed form. Take those of draws, from "
            "Predictive(guide, num_samples=1000) or an engine's get_samples."
        )


class _Flow(NamedTuple):
    """The parameters, ready for use, and the products of vectors that the scalars need."""

    loc: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor
    direction: Tensor  # u_hat (K, D)
    slope: Tensor  # 1 + w . u_hat (K,)
    products: Tensor  # w_k . u_hat_j (K, K)


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

    def _prepare(self) -> None:
        """The guide creates every parameter when it is set up, and can always be inverted."""

    def _flow(self, parameters: Parameters) -> _Flow:
        weight = parameters["weight"]
        scale = transform_to(self.guide.scale_constraint)(parameters["scale_unconstrained"])
        direction, slope = invertible_direction(weight, parameters["direction"])
        products = weight @ direction.T
        return _Flow(
            parameters["loc"], scale, weight, parameters["bias"], direction, slope, products
        )

    @torch.no_grad()
    def sample(self, parameters: Parameters, generator: torch.Generator, num: int) -> Tensor:
        flow = self._flow(parameters)
        shape = (num, self.dim)
        loc = flow.loc
        noise = torch.randn(shape, generator=generator, dtype=loc.dtype, device=generator.device)
        y = noise.to(loc.device)
        argument = y @ flow.weight.T + flow.bias
        bends = torch.zeros_like(argument)
        for k in range(len(flow.bias)):
            inner = argument[:, k] + bends[:, :k] @ flow.products[k, :k]
            bends[:, k] = torch.tanh(inner)
        return y.addmm_(bends, flow.direction).mul_(flow.scale).add_(loc)

    def log_prob(self, parameters: Parameters, theta: Tensor) -> Tensor:
        flow = self._flow(parameters)
        z, bends, _ = _inverted(flow, (theta - flow.loc) / flow.scale)
        log_determinant = _derivative(bends, flow.slope).log().sum(-1) + flow.scale.log().sum()
        return -0.5 * (z.square().sum(-1) + self.dim * LOG_TWO_PI) - log_determinant

    def score(self, parameters: Parameters, theta: Tensor) -> Tensor:
        return self._score(parameters, theta, newton_steps=2)

    def _score(self, parameters: Parameters, theta: Tensor, newton_steps: int) -> Tensor:
        flow = self._flow(parameters)
        y = (theta - flow.loc) / flow.scale
        z, bends, jacobian = _inverted(flow, y, newton_steps)
        # Derivatives of -|z|^2 / 2 and of the log determinants by x, then by w . y.
        pull = z @ flow.direction.T
        pull = pull + 2.0 * (flow.slope - 1.0) * bends / _derivative(bends, flow.slope)
        pull = (1.0 - bends.square()) * pull
        pull = torch.linalg.solve_triangular(jacobian.mT, pull.unsqueeze(-1), upper=False)
        return (pull.squeeze(-1) @ flow.weight - z) / flow.scale

    def mean_square_residual(
        self, parameters: Parameters, theta: Tensor, target: Tensor
    ) -> tuple[Tensor, Parameters]:
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        with torch.enable_grad():
            # The score is differentiated once, for which one Newton step is enough.
            residual = self._score(leaves, theta, newton_steps=1) - target
            value = residual.square().sum(-1).mean()
            gradients = torch.autograd.grad(value, list(leaves.values()))
        return value.detach(), dict(zip(leaves, gradients, strict=True))


def _inverted(flow: _Flow, y: Tensor, newton_steps: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """z (..., D), t (..., K), and the Jacobian of the triangular system (..., K, K) in x."""
    shifted = y @ flow.weight.T + flow.bias
    later = flow.products.triu(1)
    x = _find_roots(shifted, flow.slope, later)
    bends, jacobian = _linearised(x, flow.slope, later)
    # As in solve_planar, for all K unknowns at once.
    for _ in range(newton_steps if torch.is_grad_enabled() else 0):
        residual = _residual(x, bends, flow.slope, shifted) + bends @ later.T
        step = torch.linalg.solve_triangular(jacobian, residual.unsqueeze(-1), upper=True)
        x = x - step.squeeze(-1)
        bends, jacobian = _linearised(x, flow.slope, later)
    return y - bends @ flow.direction, bends, jacobian


def _linearised(x: Tensor, slope: Tensor, later: Tensor) -> tuple[Tensor, Tensor]:
    bends = torch.tanh(x)
    jacobian = torch.diag_embed(_derivative(bends, slope))
    return bends, jacobian + later * (1.0 - bends.square()).unsqueeze(-2)


@torch.no_grad()
def _find_roots(shifted: Tensor, slope: Tensor, later: Tensor) -> Tensor:
    """The unknowns x (..., K), from the last map to the first."""
    x, bends = torch.empty_like(shifted), torch.zeros_like(shifted)
    for k in reversed(range(len(slope))):
        x[..., k] = _find_root(shifted[..., k] - bends @ later[k], slope[k])
        bends[..., k] = torch.tanh(x[..., k])
    return x
