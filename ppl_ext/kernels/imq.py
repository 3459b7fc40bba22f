"""Inverse multiquadric kernel, k(x, y) = (1 + (x - y)' W (x - y) / h)^exponent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float

from ppl_ext.kernels.bandwidth import scaled_pairs
from ppl_ext.kernels.base import Interactions, KernelState
from ppl_ext.kernels.coordinates import Coordinates, CoordinatesByMetric
from ppl_ext.kernels.metric_kernel import MetricKernel, radial_interactions
from ppl_ext.kernels.rules import check_bandwidth, check_exponent, check_metric


@dataclass(frozen=True, eq=False, repr=False)
class IMQ(MetricKernel):
    """Inverse multiquadric kernel (Gorham and Mackey 2017, Theorem 8,
    https://arxiv.org/abs/1703.01717).

    Its tails are heavier than the Gaussian's, so distant particles still interact.

    Parameters
    ----------
    bandwidth : str, float or callable, default "median"
        h, in units of a squared distance; see :mod:`ppl_ext.kernels.rules`.
    exponent : float, default -0.5
        Between -1 and 0, both excluded.
    metric : str, array, callable or None, default None
        W; see :mod:`ppl_ext.kernels.rules`. The bandwidth is found in its coordinates.

    Raises
    ------
    ArgumentError
        If the exponent lies outside (-1, 0), or bandwidth or metric are no rules.

    Examples
    --------
    >>> IMQ(exponent=-0.25).bandwidth
    'median'
    """

    bandwidth: Any = "median"
    exponent: float = -0.5
    metric: Any = None

    def __post_init__(self) -> None:
        check_bandwidth(self.bandwidth)
        check_metric(self.metric)
        check_exponent(self.exponent)

    def direction_at(
        self, state: KernelState, points: CoordinatesByMetric, scores: Float[Any, "P D"]
    ) -> tuple[Float[Any, "P D"], KernelState]:
        frame = points.frame(self.metric)
        values, slopes, bandwidth = self._parts(frame)
        pull = frame.gradients(2.0 / bandwidth)
        # The repulsion sum_j (2 / h) slope_ji W (z_i - z_j), its two halves by one product.
        total = values @ scores - slopes @ pull + slopes.sum(axis=1, keepdims=True) * pull
        return total / len(scores), state

    def _parts(self, frame: Coordinates) -> tuple[Any, Any, Any]:
        """k and the slopes of its gradient at all pairs, (P, P) each, and the bandwidth h."""
        pairs = scaled_pairs(self.bandwidth, frame)
        base = 1.0 + pairs.ratios
        # A power of any other exponent takes a logarithm and an exponential.
        usual = self.exponent == -0.5
        values = self.arrays.inverse_root(base) if usual else base**self.exponent
        # grad_{z_j} k = (2 exponent / h) W (z_j - z_i) k / (1 + (z_j - z_i)' W (z_j - z_i) / h).
        slopes = values / base * (-self.exponent)
        return values, slopes, pairs.bandwidth

    @property
    def translation_invariant(self) -> bool:
        """Yes."""
        return True

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        return radial_interactions(
            *self._parts(points.frame(self.metric)), points=points, metric=self.metric
        )

    def gram(self, state: KernelState, particles: Float[Any, "P D"]) -> Float[Any, "P P"]:
        return self._parts(self.coordinates(particles))[0]
