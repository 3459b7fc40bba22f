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

Source: D. J. Rezende and S. Mohamed, "Variational inference with normalizing flows", ICML 2015
(https://arxiv.org/abs/1505.05770), equations 10 to 12 and appendix A.1. Two things differ. There
u_hat is u with its part along w replaced such that w . u_hat = -1 + softplus(w . u); here
softplus(w . u + log(e - 1)), which is the same family of maps, but u = 0 is the identity, and u_hat
stays finite as w goes to zero. And there the inverse is not computed.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Float

from ppl_ext.documented import documents_subclasses
from ppl_ext.guides.arrays import LOG_TWO_PI
from ppl_ext.guides.flat_density import FlatDensityShell
from ppl_ext.options import check_count, check_number
from ppl_ext.start.start import Start

#: softplus(SHIFT) = 1, so that u = 0 gives the identity.
SHIFT = math.log(math.expm1(1.0))
#: Length of u at the start, where w has length one: the first draws are Normal to a few per cent.
INITIAL_DIRECTION = 0.1
#: Newton steps of the inverse at most; two to eight are usual, about 50 are needed where the map
#: is nearly singular.
MAX_STEPS = 100

NO_QUANTILES = (
    "AutoPlanarFlow has no medians and quantiles in closed form. Take those of draws, from "
    "Predictive(guide, num_samples=1000), NumPyro's sample_posterior or an engine's get_samples."
)


@documents_subclasses
class PlanarFormulas:
    """The planar map's direction, and the scalar of its inverse."""

    arrays: ClassVar[Any]

    @classmethod
    def invertible_direction(cls, weight: Any, direction: Any) -> tuple[Any, Any]:
        """u_hat (..., D), and 1 + w . u_hat > 0 (...,), for w and u (..., D).

        The second is returned apart because adding one to w . u_hat would round it away near zero.
        """
        inner = (weight * direction).sum(-1)
        # 1 + w . u_hat, positive by the softplus: the map can be inverted.
        slope = cls.arrays.softplus(inner + SHIFT)
        # A weight of zero is a translation, not a division of zero by zero; the bound leaves room
        # for its square, by which the derivative is divided.
        square, least = (weight**2).sum(-1), cls.arrays.xp.finfo(weight.dtype).tiny ** 0.5
        change = (slope - 1.0 - inner) / cls.arrays.xp.where(square < least, least, square)
        return direction + change[..., None] * weight, slope

    @classmethod
    def solve_planar(cls, shifted: Any, slope: Any) -> Any:
        """The x with ``x + (slope - 1) tanh(x) = shifted``, elementwise, for slope > 0.

        The first three derivatives with respect to both arguments are right.
        """
        x = cls.find_root(shifted, slope)
        # The root itself is found without gradients. A Newton step from it leaves its value alone
        # and makes its first derivative right, because the step divides the change of the equation
        # by the slope; but it takes that slope at a point that does not move, so the second
        # derivative is wrong. Newton's method doubles the order: a point right to order k of the
        # arguments' change gives one right to order 2 k + 1. From the fixed root (order 0) two
        # steps reach order 3.
        for _ in range(2):
            bend = cls.arrays.xp.tanh(x)
            x = x - cls._residual(x, bend, slope, shifted) / cls._derivative(bend, slope)
        return x

    @staticmethod
    def _derivative(bend: Any, slope: Any) -> Any:
        """Derivative of x + (slope - 1) tanh(x), from tanh(x): a sum of positive terms."""
        square = bend**2
        return slope * (1.0 - square) + square

    @staticmethod
    def _residual(x: Any, bend: Any, slope: Any, shifted: Any) -> Any:
        # Not x + (slope - 1) tanh(x): a slope far below one would be lost against the one.
        return (x - bend) + slope * bend - shifted

    @classmethod
    def find_root(cls, shifted: Any, slope: Any) -> Any:
        """The root of :meth:`solve_planar` to rounding, without gradients.

        The equation is odd, so let ``shifted`` be positive; then so is x. There the left side is
        concave for slope > 1 and convex for slope < 1, and Newton's method goes to the root from
        one side, from below in the first case and from above in the second, without a bracket.
        Bounds to start from: tanh(x) is below x and below one. A step the other way is rounding and
        ends the search.
        """
        xp, shifted, slope = cls.arrays.xp, cls.arrays.detached(shifted), cls.arrays.detached(slope)
        size, limits = abs(shifted), xp.finfo(shifted.dtype)
        # softplus underflows to zero far below: a division by it would not be a number.
        slope = xp.where(slope < limits.tiny, limits.tiny, slope)
        side = xp.where(slope > 1.0, xp.ones_like(slope), -xp.ones_like(slope))
        # The larger lower bound, or with side = -1 the smaller upper one.
        first = side * xp.maximum(side * size / slope, side * (size - (slope - 1.0)))

        def advance(x: Any) -> tuple[Any, Any]:
            bend = xp.tanh(x)
            step = cls._residual(x, bend, slope, size) / cls._derivative(bend, slope)
            moving = step * side < -limits.eps * x
            return xp.where(moving, x - step, x), moving.any()

        return xp.copysign(cls.arrays.until_settled(MAX_STEPS, advance, first), shifted)


class PlanarMap(PlanarFormulas):
    """The planar map ``f(z) = z + u_hat tanh(w . z + b)`` and its exact inverse.

    Nothing is remembered between calls: the inverse is right at any point. Values and the first
    three derivatives are exact to rounding, amplified by 1 / (1 + w . u_hat) where the map is
    nearly singular.

    Parameters
    ----------
    weight, direction : arrays (D,)
        w, and u, from which u_hat is made.
    bias : scalar array
    """

    def __init__(
        self, weight: Float[Any, " D"], direction: Float[Any, " D"], bias: Float[Any, ""]
    ) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self.direction, self.slope = self.invertible_direction(weight, direction)

    def _call(self, x: Any) -> Any:
        bend = self.arrays.xp.tanh(x @ self.weight + self.bias)
        return x + bend[..., None] * self.direction

    def _inverse(self, y: Any) -> Any:
        bend = self.arrays.xp.tanh(self.solve_planar(y @ self.weight + self.bias, self.slope))
        return y - bend[..., None] * self.direction

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Any:
        bend = self.arrays.xp.tanh(x @ self.weight + self.bias)
        return self.arrays.xp.log(self._derivative(bend, self.slope))


@documents_subclasses
class PlanarGuide:
    """Guide by planar flows: ``theta = loc + scale * (f_K o ... o f_1)(z)``, z standard Normal.

    Each package's ``AutoPlanarFlow`` has the whole text.
    """

    def _set_options(self, num_flows: int, init_scale: float) -> None:
        check_count("num_flows", num_flows)
        check_number("init_scale", init_scale)
        self.num_flows = num_flows
        self._init_scale = float(init_scale)


class Flow(NamedTuple):
    """The parameters, ready for use, and the products of vectors that the scalars need."""

    loc: Any
    scale: Any
    weight: Any
    bias: Any
    direction: Any  # u_hat (K, D)
    slope: Any  # 1 + w . u_hat (K,)
    products: Any  # w_k . u_hat_j (K, K)


class PlanarDensity(PlanarFormulas, FlatDensityShell):
    """``AutoPlanarFlow``: closed form of the score, given the K scalars of the inverse.

    The maps meet the flat vector through the products with w alone. With y the standardised theta
    and t_k = tanh(x_k) the value of tanh in map k::

        z = y - sum_k t_k u_hat_k,
        w_k . y + b_k = x_k + (w_k . u_hat_k) t_k + sum_{j > k} (w_k . u_hat_j) t_j,

    a triangular system in the K unknowns x_k. So vectors of length D are read a few times per point
    however many steps the root finding takes, and all of the inverse's derivatives are solutions
    of triangular K x K systems.
    """

    def _flow_of(self, loc: Any, scale: Any, weight: Any, direction: Any, bias: Any) -> Flow:
        direction, slope = self.invertible_direction(weight, direction)
        return Flow(loc, scale, weight, bias, direction, slope, weight @ direction.T)

    def _flow(self, parameters: Any) -> Flow:
        """The flow with these parameters."""
        raise NotImplementedError

    def _find_roots(self, shifted: Any, slope: Any, later: Any) -> Any:
        """The unknowns x (..., K), from the last map to the first, without gradients."""
        raise NotImplementedError

    def set_location_and_scale(self, parameters: Any, loc: Any, scale: Any) -> Any:
        """New parameters with this location and these scales (D,), and the others as they are."""
        raise NotImplementedError

    def set_start(self, parameters: Any, start: Start) -> Any:
        """The start's mean, and deviations of each coordinate given the others as scales."""
        like, deviations = self._flow(parameters).loc, start.modes[0].conditional_deviations
        arrays = (self.arrays.as_array(each, like) for each in (start.mean, deviations))
        return self.set_location_and_scale(parameters, *arrays)

    def log_prob(self, parameters: Any, theta: Any) -> Any:
        flow, log = self._flow(parameters), self.arrays.xp.log
        z, bends, _ = self._inverted(flow, (theta - flow.loc) / flow.scale, 2)
        log_determinant = log(self._derivative(bends, flow.slope)).sum(-1) + log(flow.scale).sum()
        return -0.5 * ((z**2).sum(-1) + self.dim * LOG_TWO_PI) - log_determinant

    def score(self, parameters: Any, theta: Any) -> Any:
        return self._score(parameters, theta, newton_steps=2)

    def _score(self, parameters: Any, theta: Any, newton_steps: int) -> Any:
        flow = self._flow(parameters)
        y = (theta - flow.loc) / flow.scale
        z, bends, jacobian = self._inverted(flow, y, newton_steps)
        # Derivatives of -|z|^2 / 2 and of the log determinants by x, then by w . y.
        pull = z @ flow.direction.T
        pull = pull + 2.0 * (flow.slope - 1.0) * bends / self._derivative(bends, flow.slope)
        pull = (1.0 - bends**2) * pull
        # The Jacobian is upper triangular: map k meets the maps after it alone.
        pull = self.arrays.solve_lower(jacobian.mT, pull[..., None, :])[..., 0, :]
        return (pull @ flow.weight - z) / flow.scale

    def _inverted(self, flow: Flow, y: Any, newton_steps: int) -> tuple[Any, Any, Any]:
        """z (..., D), t (..., K), and the Jacobian of the triangular system (..., K, K) in x."""
        shifted, later = y @ flow.weight.T + flow.bias, self.arrays.xp.triu(flow.products, 1)
        x = self._find_roots(shifted, flow.slope, later)
        bends, jacobian = self._linearised(x, flow.slope, later)
        # As in solve_planar, for all K unknowns at once.
        for _ in range(newton_steps if self.arrays.differentiates() else 0):
            residual = self._residual(x, bends, flow.slope, shifted) + bends @ later.T
            step = self.arrays.solve_lower(jacobian.mT, residual[..., None, :], transpose=True)
            x = x - step[..., 0, :]
            bends, jacobian = self._linearised(x, flow.slope, later)
        return y - bends @ flow.direction, bends, jacobian

    def _linearised(self, x: Any, slope: Any, later: Any) -> tuple[Any, Any]:
        bends = self.arrays.xp.tanh(x)
        identity = self.arrays.identity(len(slope), slope)
        diagonal = self._derivative(bends, slope)[..., None] * identity
        return bends, diagonal + later * (1.0 - bends**2)[..., None, :]
