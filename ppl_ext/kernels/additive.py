"""Sum of kernels of one coordinate each, which looks at every marginal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from ppl_ext.kernels.base import Interactions, Kernel, KernelState, direction_at_points
from ppl_ext.kernels.coordinates import Coordinates, CoordinatesByMetric
from ppl_ext.options import check_number

#: Standard deviations from the mean between which the features lie.
REACH = 3.0


@dataclass(frozen=True, eq=False, repr=False)
class Bumps:
    """Features of particles, each a function of one coordinate.

    Parameters
    ----------
    frame : Coordinates
        The particles in units of their deviations, u.
    values, slopes : array
        Bumps at all knots, and their derivatives with respect to u, shape (P, D, M).
    """

    frame: Coordinates
    values: Float[Any, "P D M"]
    slopes: Float[Any, "P D M"]

    @property
    def flat(self) -> Float[Any, "P DM"]:
        """All features of each particle, shape (P, D M)."""
        return self.values.reshape(len(self.values), -1)

    @cached_property
    def gram(self) -> Float[Any, "P P"]:
        """The kernel at all pairs, shape (P, P)."""
        return self.frame.arrays.over_coordinates(self.flat @ self.flat.T)

    def smoothed(self, vectors: Float[Any, "P D"]) -> Float[Any, "P D"]:
        """The matrix of the kernel at all pairs times vectors (P, D)."""
        num, dim, _ = self.values.shape
        flat = self.flat
        # The smaller of both middle matrices; the first holds products of coordinates, of which
        # other processes may have some.
        if flat.shape[1] < num and dim == self.frame.arrays.num_coordinates(vectors):
            return flat @ (flat.T @ vectors)
        return self.gram @ vectors


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

    direction = direction_at_points

    def __post_init__(self) -> None:
        check_number("bandwidth", self.bandwidth)

    @property
    def divides_coordinates(self) -> bool:
        """Yes: bumps are of one coordinate, and their products are summed over coordinates."""
        return True

    def _bumps(self, points: CoordinatesByMetric) -> Bumps:
        """The features of the particles, which kernels of one bandwidth have in common."""
        return points.once(("bumps", float(self.bandwidth)), lambda: self._made(points))

    def _made(self, points: CoordinatesByMetric) -> Bumps:
        arrays, frame = self.arrays, points.frame("variance")
        # A product of two bumps at t is exp(-(u - v)^2 / (4 w^2)) times a bump at their middle: h =
        # 4 w^2. Knots a width apart sum the latter to sqrt(pi) nearly everywhere.
        width = 0.5 * math.sqrt(self.bandwidth)
        number = math.ceil(REACH / width)
        knots = arrays.as_array(width * np.arange(-number, number + 1.0), frame.points)
        apart = (frame.points[:, :, None] - knots) / width
        # The root of 1 / D and pi^(-1/2): a product of two features has both.
        weight = (math.sqrt(math.pi) * arrays.num_coordinates(frame.points)) ** -0.5
        values = weight * arrays.functions.exp(-0.5 * apart**2)
        # Columns that fill up are 0 for all particles, where a bump is not 0.
        if filled := arrays.num_filled(frame.points):
            size = frame.points.shape[1]
            values = values * arrays.as_array(np.arange(size) < size - filled, values)[:, None]
        # f'(r) = -r f(r), and r grows by 1 / w with u.
        return Bumps(frame, values, -apart / width * values)


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

    def direction_at(
        self, state: KernelState, points: CoordinatesByMetric, scores: Float[Any, "P D"]
    ) -> tuple[Float[Any, "P D"], KernelState]:
        bumps = self._bumps(points)
        # sum_j grad_{z_j} k(z_j, z_i): only the slopes depend on j, so they are summed first.
        away = (bumps.slopes.sum(axis=0) * bumps.values).sum(axis=-1)
        total = bumps.smoothed(scores) + bumps.frame.pulled_back(away)
        return total / len(scores), state

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        """Values and gradients at all pairs; the gradients take (P, P, D)."""
        bumps = self._bumps(points)
        coefficients = self.arrays.functions.einsum("jdm,idm->jid", bumps.slopes, bumps.values)
        identity = self.arrays.identity(bumps.values.shape[1], bumps.values)
        return Interactions(bumps.gram, coefficients, bumps.frame.pulled_back(identity))

    def gram(self, state: KernelState, particles: Float[Any, "P D"]) -> Float[Any, "P P"]:
        return self._bumps(CoordinatesByMetric(self.arrays, particles)).gram
