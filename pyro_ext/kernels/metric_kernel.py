"""What kernels of distances or inner products in a metric share."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import Any, cast

import torch
from torch import Tensor

from ppl_ext.kernels import ProductMetric
from pyro_ext.kernels.base import Interactions, Kernel
from pyro_ext.kernels.metric import CoordinatesByMetric, Metric


class MetricKernel(Kernel):
    """Base of the kernels that have a metric: dataclasses with a field ``metric``."""

    metric: Metric

    def with_curvature(self, metric: ProductMetric) -> Kernel:
        """The kernel with the present curvature for the metric ``"curvature"``."""
        if not (isinstance(self.metric, str) and self.metric == "curvature"):
            return self
        found: Kernel = dataclasses.replace(cast(Any, self), metric=metric)
        return found

    @abstractmethod
    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        """Values and gradients at all pairs; see :meth:`Kernel.interactions`."""


def radial_interactions(
    values: Tensor, slopes: Tensor, bandwidth: Tensor, points: CoordinatesByMetric, metric: Metric
) -> Interactions:
    """Interactions where grad_{z_j} k(z_j, z_i) = -(2 / h) slope_ji W (z_j - z_i)."""
    number = len(values)
    identity = torch.eye(number, dtype=values.dtype, device=values.device)
    coefficients = slopes[:, :, None] * (identity[None, :, :] - identity[:, None, :])
    frame, basis = points.of(metric)
    if bandwidth.dim():
        return Interactions(values, coefficients, frame.gradients(2.0 / bandwidth))
    return Interactions(values, 2.0 / bandwidth * coefficients, basis)
