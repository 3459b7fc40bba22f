"""Radial basis function kernel, k(x, y) = exp(-(x - y)' W (x - y) / h)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.kernels import check_bandwidth, check_metric
from pyro_ext.kernels.bandwidth import Bandwidth, scaled_pairs
from pyro_ext.kernels.base import Interactions, KernelState
from pyro_ext.kernels.metric import Coordinates, CoordinatesByMetric, Metric, coordinates
from pyro_ext.kernels.metric_kernel import MetricKernel, radial_interactions


@dataclass(frozen=True, eq=False, repr=False)
class RBF(MetricKernel):
    """Gaussian kernel exp(-(x - y)' W (x - y) / h) (Liu and Wang 2016, https://arxiv.org/abs/1608.04471).

    Parameters
    ----------
    bandwidth : str, float or callable, default "median"
        h, in units of a squared distance; see :mod:`ppl_ext.kernels`. With a
        vector of bandwidths, k = exp(-sum_d (x_d - y_d)^2 / h_d).
    metric : str, Tensor, callable or None, default None
        W; see :mod:`ppl_ext.kernels`. The bandwidth is found in its coordinates.
    """

    bandwidth: Bandwidth = "median"
    metric: Metric = None

    def __post_init__(self) -> None:
        check_bandwidth(self.bandwidth)
        check_metric(self.metric)

    def direction(
        self, state: KernelState, particles: Float[Tensor, "P D"], scores: Float[Tensor, "P D"]
    ) -> tuple[Float[Tensor, "P D"], KernelState]:
        """Direction phi, shape (P, D); see :meth:`Kernel.direction`."""
        frame = coordinates(self.metric, particles)
        values, bandwidth = self._values(frame)
        pull = frame.gradients(2.0 / bandwidth)
        # sum_j grad_{z_j} k(z_j, z_i) = (2 / h) W (z_i sum_j k_ij - sum_j k_ij z_j): one Gram
        # matrix and one product serve both terms.
        total = values @ (scores - pull) + values.sum(dim=1, keepdim=True) * pull
        return total / len(particles), state

    def _values(self, frame: Coordinates) -> tuple[Tensor, Tensor]:
        """k at all pairs (P, P), and the bandwidth h."""
        pairs = scaled_pairs(self.bandwidth, frame)
        return torch.exp(-pairs.ratios), pairs.bandwidth

    @property
    def translation_invariant(self) -> bool:
        """Yes."""
        return True

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        """Values and gradients at all pairs; see :meth:`Kernel.interactions`."""
        values, bandwidth = self._values(points.of(self.metric)[0])
        return radial_interactions(values, values, bandwidth, points, self.metric)

    def gram(self, state: KernelState, particles: Float[Tensor, "P D"]) -> Float[Tensor, "P P"]:
        """Kernel values at all pairs of particles, shape (P, P)."""
        return self._values(coordinates(self.metric, particles))[0]
