"""Sum of kernels of one coordinate each, which looks at every marginal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ppl_ext.kernels.base import Interactions, Kernel, KernelState
from ppl_ext.kernels.coordinates import Coordinates, CoordinatesByMetric, coordinates
from ppl_ext.options import check_number

#: Standard deviations from the mean between which the features lie.
REACH = 3.0


@dataclass(frozen=True, repr=False)
class OfOneCoordinate(Kernel):
    """Kernels made of bumps in one coordinate each, at equal distances.

    Parameters
    ----------
    bandwidth : float
        h, in units of a coordinate's variance; bumps are sqrt(h) / 2 wide, and as far apart.

    Raises
    ------
    ArgumentError
        The bandwidth is not positive and finite.
    """

    bandwidth: float

    def __post_init__(self) -> None:
        check_number("bandwidth", self.bandwidth)

    @property
    def divides_coordinates(self) -> bool:
        """Yes: bumps are of one coordinate, and their products are summed over coordinates."""
        return True

    def _features(self, particles: Float[Any, "P D"]) -> tuple[Any, Any, Coordinates]:
        """Bumps at all knots, their derivatives, (P, D, M) each, and the coordinates u."""
        functions = self.arrays.functions
        frame = coordinates(self.arrays, "variance", particles)
        width = 0.5 * math.sqrt(self.bandwidth)
        number = math.ceil(REACH / width)
        knots = self.arrays.as_array(width * np.arange(-number, number + 1.0), frame.points)
        apart = (frame.points[:, :, None] - knots) / width
        weight = (math.sqrt(math.pi) * self.arrays.num_coordinates(particles)) ** -0.5
        values = weight * functions.exp(-0.5 * apart**2)
        if filled := self.arrays.num_filled(particles):
            own = np.arange(particles.shape[1]) < particles.shape[1] - filled
            values = values * self.arrays.as_array(own, values)[:, None]
        return values, -apart / width * values, frame

    def _smoothed(
        self, values: Float[Any, "P D M"], vectors: Float[Any, "P D"]
    ) -> Float[Any, "P D"]:
        """The matrix of the kernel at all pairs times vectors."""
        num, dim, _ = values.shape
        flat = values.reshape(num, -1)
        # The smaller of both middle matrices; the first holds products of coordinates, of which
        # other processes may have some.
        if flat.shape[1] < num and dim == self.arrays.num_coordinates(vectors):
            product: Float[Any, "P D"] = flat @ (flat.T @ vectors)
            return product
        return self.arrays.over_coordinates(flat @ flat.T) @ vectors


@dataclass(frozen=True, repr=False)
class Additive(OfOneCoordinate):
    """Mean over coordinates of a Gaussian kernel of that coordinate alone, by features.

    k(x, y) = 1/D sum_d k_1(u_d, v_d), an additive kernel (Duvenaud, Nickisch and Rasmussen 2011,
    https://arxiv.org/abs/1112.4394, with interactions of first order), where u and v are x and y in
    units of the particles' deviations, from their mean, and

        k_1(u, v) = pi^(-1/2) sum_m f((u - t_m) / w) f((v - t_m) / w),    f(r) = exp(-r^2 / 2),

    with knots t_m at distances w = sqrt(h) / 2 from -3 to 3. Between them this is
    exp(-(u - v)^2 / h) to within a hundredth of a per cent; further out it falls to zero.

    In many dimensions a kernel of distances sees all particles equally far apart, and particles may
    crowd in one coordinate while they are apart in the others. This kernel spreads them in every
    coordinate, so that marginals come out smooth. On what several coordinates do together it asks
    little by itself: take it in a sum, and in :class:`~ppl_ext.kernels.semi_exact.SemiExact`, which
    takes care of mean and covariance.

    A step costs O(M D P^2), most of it one product of matrices, and makes an array of shape
    (P, M D), with M the number of knots, nine by default.

    Parameters
    ----------
    bandwidth : float, default 2.0
        h, in units of a coordinate's variance.

    Raises
    ------
    ArgumentError
        The bandwidth is not positive and finite.

    Examples
    --------
    >>> Additive().bandwidth
    2.0
    """

    bandwidth: float = 2.0

    def direction(
        self, state: KernelState, particles: Float[Any, "P D"], scores: Float[Any, "P D"]
    ) -> tuple[Float[Any, "P D"], KernelState]:
        values, slopes, frame = self._features(particles)
        drift = self._smoothed(values, scores)
        away = (slopes.sum(axis=0) * values).sum(axis=-1)
        return (drift + frame.pulled_back(away)) / len(particles), state

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        """Values and gradients at all pairs; the gradients take (P, P, D)."""
        functions = self.arrays.functions
        values, slopes, frame = self._features(points.particles)
        coefficients = functions.einsum("jdm,idm->jid", slopes, values)
        identity = self.arrays.identity(values.shape[1], frame.points)
        flat = values.reshape(len(values), -1)
        return Interactions(flat @ flat.T, coefficients, frame.pulled_back(identity))

    def gram(self, state: KernelState, particles: Float[Any, "P D"]) -> Float[Any, "P P"]:
        flat = self._features(particles)[0].reshape(len(particles), -1)
        return flat @ flat.T
