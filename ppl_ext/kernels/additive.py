"""Sum of kernels of one coordinate each, which looks at every marginal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float

from ppl_ext.kernels.base import Interactions, Kernel, KernelState
from ppl_ext.kernels.coordinates import Coordinates, CoordinatesByMetric, coordinates
from ppl_ext.kernels.rules import check_exponent
from ppl_ext.options import check_number


@dataclass(frozen=True, repr=False)
class Additive(Kernel):
    """Mean over coordinates of an inverse multiquadric kernel of that coordinate alone.

    k(x, y) = 1/D sum_d (1 + (x_d - y_d)^2 / (v_d h))^exponent, with v_d the particles' variance: an
    additive kernel (Duvenaud, Nickisch and Rasmussen 2011, https://arxiv.org/abs/1112.4394, with
    interactions of first order). In many dimensions a kernel of distances sees all particles
    equally far apart, and particles may crowd in one coordinate while they are apart in the others.
    This kernel spreads them in every coordinate, so that marginals come out smooth. On what several
    coordinates do together it asks little by itself: take it in a sum, or in
    :class:`~ppl_ext.kernels.semi_exact.SemiExact`, which takes care of the covariance.

    A step costs O(D P^2).

    Parameters
    ----------
    bandwidth : float, default 2.0
        h, in units of a coordinate's variance.
    exponent : float, default -0.5
        Between -1 and 0, both excluded.

    Raises
    ------
    ArgumentError
        The bandwidth is not positive and finite, or the exponent lies outside (-1, 0).
    """

    bandwidth: float = 2.0
    exponent: float = -0.5

    def __post_init__(self) -> None:
        check_number("bandwidth", self.bandwidth)
        check_exponent(self.exponent)

    def _pairs(self, column: Float[Any, "P C"]) -> tuple[Any, Any, Any]:
        """Values, slopes and differences of all pairs in some coordinates, (P, P, C) each.

        The gradient of the value with respect to the first point is -(2 / h) slope difference.
        """
        apart = column[:, None] - column
        base = 1.0 + apart**2 / self.bandwidth
        # A power of any other exponent takes a logarithm and an exponential.
        usual = self.exponent == -0.5
        values = self.arrays.inverse_root(base) if usual else base**self.exponent
        return values, values / base * (-self.exponent), apart

    def _sums(self, particles: Float[Any, "P D"]) -> tuple[Any, Any, Coordinates]:
        """The Gram matrix (P, P), and sum_j grad_{z_j} k(z_j, z_i) in units of deviations."""
        frame = coordinates(self.arrays, "variance", particles)
        dim = particles.shape[1]

        def one(column: Float[Any, "P C"]) -> tuple[Any, Any]:
            values, slopes, apart = self._pairs(column)
            return values.sum(axis=-1), (slopes * apart).sum(axis=0)

        gram, away = self.arrays.sum_over_coordinates(one, frame.points)
        return gram / dim, away * (-2.0 / (self.bandwidth * dim)), frame

    def direction(
        self, state: KernelState, particles: Float[Any, "P D"], scores: Float[Any, "P D"]
    ) -> tuple[Float[Any, "P D"], KernelState]:
        gram, away, frame = self._sums(particles)
        return (gram @ scores + frame.pulled_back(away)) / len(particles), state

    @property
    def translation_invariant(self) -> bool:
        """Yes."""
        return True

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        """Values and gradients at all pairs; the gradients take (P, P, D)."""
        frame, _ = points.of("variance")
        dim = frame.points.shape[1]
        values, slopes, apart = self._pairs(frame.points)
        coefficients = slopes * apart * (-2.0 / (self.bandwidth * dim))
        identity = self.arrays.identity(dim, frame.points)
        return Interactions(values.sum(axis=-1) / dim, coefficients, frame.pulled_back(identity))

    def gram(self, state: KernelState, particles: Float[Any, "P D"]) -> Float[Any, "P P"]:
        return self._sums(particles)[0]
