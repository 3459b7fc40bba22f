"""Radial basis function kernel, k(x, y) = exp(-(x - y)' W (x - y) / h)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float

from ppl_ext.kernels.bandwidth import scaled_pairs
from ppl_ext.kernels.base import Interactions, KernelState
from ppl_ext.kernels.coordinates import CoordinatesByMetric
from ppl_ext.kernels.metric_kernel import MetricKernel, radial_interactions
from ppl_ext.kernels.rules import check_bandwidth, check_metric


@dataclass(frozen=True, eq=False, repr=False)
class RBF(MetricKernel):
    """Gaussian kernel exp(-(x - y)' W (x - y) / h) (Liu and Wang 2016, https://arxiv.org/abs/1608.04471).

    Parameters
    ----------
    bandwidth : str, float or callable, default "median"
        h, in units of a squared distance; see :mod:`ppl_ext.kernels.rules`. With a
        vector of bandwidths, k = exp(-sum_d (x_d - y_d)^2 / h_d).
    metric : str, array, callable or None, default None
        W; see :mod:`ppl_ext.kernels.rules`. The bandwidth is found in its coordinates.

    Examples
    --------
    >>> RBF(bandwidth=2.0)
    RBF(bandwidth=2.0, metric=None)
    """

    bandwidth: Any = "median"
    metric: Any = None

    def __post_init__(self) -> None:
        check_bandwidth(self.bandwidth)
        check_metric(self.metric)

    def direction_at(
        self, state: KernelState, points: CoordinatesByMetric, scores: Float[Any, "P D"]
    ) -> tuple[Float[Any, "P D"], KernelState]:
        frame = points.frame(self.metric)
        pairs = scaled_pairs(self.bandwidth, frame)
        values = self.arrays.functions.exp(-pairs.ratios)
        pull = frame.gradients(2.0 / pairs.bandwidth)
        # sum_j grad_{z_j} k(z_j, z_i) = (2 / h) W (z_i sum_j k_ij - sum_j k_ij z_j): one Gram
        # matrix and one product serve both terms.
        total = values @ (scores - pull) + values.sum(axis=1, keepdims=True) * pull
        return total / len(scores), state

    @property
    def translation_invariant(self) -> bool:
        """Yes."""
        return True

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        pairs = scaled_pairs(self.bandwidth, points.frame(self.metric))
        values = self.arrays.functions.exp(-pairs.ratios)
        return radial_interactions(values, values, pairs.bandwidth, points, self.metric)

    def gram(self, state: KernelState, particles: Float[Any, "P D"]) -> Float[Any, "P P"]:
        pairs = scaled_pairs(self.bandwidth, self.coordinates(particles))
        return self.arrays.functions.exp(-pairs.ratios)
