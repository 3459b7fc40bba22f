"""Linear kernel about the particle mean, k(x, y) = 1 + (x - c)' W (y - c) / D."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float

from ppl_ext.kernels.base import Interactions, KernelState
from ppl_ext.kernels.coordinates import CoordinatesByMetric
from ppl_ext.kernels.metric_kernel import MetricKernel
from ppl_ext.kernels.rules import check_metric


@dataclass(frozen=True, eq=False, repr=False)
class Linear(MetricKernel):
    """Linear kernel, which matches moments (Liu and Wang 2018, https://arxiv.org/abs/1810.11693).

    c is the particle mean and W a metric; both are constants of a step. With this kernel alone
    and more particles than dimensions, at a fixed point the mean score is zero and the mean of
    score times deviation is minus the identity: the Stein equations for mean and covariance hold
    exactly, and on a Normal target these are its mean and covariance. In a sum with other kernels
    only the sum of all terms is zero, so that they hold nearly: added to a radial kernel it
    repairs most of the spread that such a kernel loses.

    Parameters
    ----------
    metric : str, array, callable or None, default "variance"
        W; see :mod:`ppl_ext.kernels.rules`. The default makes the kernel the same in any
        units of the coordinates.

    Examples
    --------
    Added to a radial kernel, at half the weight:

    >>> kernel = RBF() + 0.5 * Linear()
    >>> len(kernel.kernels)
    2
    """

    metric: Any = "variance"

    def __post_init__(self) -> None:
        check_metric(self.metric)

    def direction_at(
        self, state: KernelState, points: CoordinatesByMetric, scores: Float[Any, "P D"]
    ) -> tuple[Float[Any, "P D"], KernelState]:
        num, dim = len(scores), self.arrays.num_coordinates(scores)
        frame = points.frame(self.metric)
        weighted = frame.gradients(1.0 / dim)
        # Associate the product so that the middle matrix is the smaller of (D, D) and (P, P).
        # The first holds products of coordinates, of which other processes may have some.
        if dim <= num and dim == scores.shape[1]:
            drift = frame.points @ (frame.partners.T @ scores)
        else:
            drift = frame.inner_products() @ scores
        # grad_{z_j} k(z_j, z_i) = W (z_i - c) / D, the same for every j.
        return scores.mean(axis=0) + drift / (num * dim) + weighted, state

    def gram(self, state: KernelState, particles: Float[Any, "P D"]) -> Float[Any, "P P"]:
        return 1.0 + self.coordinates(particles).inner_products() / self.arrays.num_coordinates(
            particles
        )

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        frame, basis = points.of(self.metric)
        num, dim = basis.shape
        # grad_{z_j} k(z_j, z_i) = W (z_i - c) / D, the same for every j.
        own = self.arrays.identity(num, basis) / dim
        coefficients = self.arrays.functions.broadcast_to(own, (num, num, num))
        return Interactions(1.0 + frame.inner_products() / dim, coefficients, basis)
