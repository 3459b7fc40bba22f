"""What kernels of distances or inner products in a metric share."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import Any, Self, cast

from jaxtyping import Float

from ppl_ext.kernels.base import Interactions, Kernel, direction_at_points
from ppl_ext.kernels.coordinates import Coordinates, CoordinatesByMetric, coordinates
from ppl_ext.kernels.rules import ProductMetric
from ppl_ext.options import is_number


class MetricKernel(Kernel):
    """Base of the kernels that have a metric: dataclasses with a field ``metric``."""

    metric: Any

    direction = direction_at_points

    def coordinates(self, particles: Float[Any, "P D"]) -> Coordinates:
        """Particles (P, D) in the coordinates of the metric."""
        return coordinates(self.arrays, self.metric, particles)

    @property
    def divides_coordinates(self) -> bool:
        """Unless bandwidth or metric are functions, or arrays of all coordinates."""
        rule = getattr(self, "bandwidth", 1.0)
        own = self.metric is None or (isinstance(self.metric, str) and self.metric == "variance")
        return own and (isinstance(rule, str) or is_number(rule))

    def with_curvature(self, metric: ProductMetric) -> Self:
        if not (isinstance(self.metric, str) and self.metric == "curvature"):
            return self
        return dataclasses.replace(cast(Any, self), metric=metric)

    @abstractmethod
    def interactions_at(self, points: CoordinatesByMetric) -> Interactions: ...


def radial_interactions(
    values: Float[Any, "P P"],
    slopes: Float[Any, "P P"],
    bandwidth: Any,
    points: CoordinatesByMetric,
    metric: Any,
) -> Interactions:
    """Interactions where grad_{z_j} k(z_j, z_i) = -(2 / h) slope_ji W (z_j - z_i)."""
    identity = points.arrays.identity(len(values), values)
    # c_jiq = slope_ji (delta_iq - delta_jq), since the gradient is that of z_i less z_j in the
    # basis W (z_q - c).
    coefficients = slopes[:, :, None] * (identity[None, :, :] - identity[:, None, :])
    frame, basis = points.of(metric)
    # A vector of bandwidths divides the coordinates of u, before they are pulled back to z.
    if bandwidth.ndim:
        return Interactions(values, coefficients, frame.gradients(2.0 / bandwidth))
    return Interactions(values, 2.0 / bandwidth * coefficients, basis)
