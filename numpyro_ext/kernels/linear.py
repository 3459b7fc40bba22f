"""Linear kernel about the particle mean, k(x, y) = 1 + (x - c)' W (y - c) / D."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from numpyro_ext.kernels.base import Interactions, KernelState
from numpyro_ext.kernels.metric import CoordinatesByMetric, Metric, coordinates
from numpyro_ext.kernels.metric_kernel import MetricKernel
from ppl_ext.kernels import check_metric


@dataclass(frozen=True, eq=False, repr=False)
class Linear(MetricKernel):
    """Linear kernel, which matches moments (Liu and Wang 2018, https://arxiv.org/abs/1810.11693).

    c is the particle mean and W a metric; both are constants of a step. At a fixed
    point the mean score is zero and the mean of score times deviation is minus the identity:
    the Stein equations for mean and covariance hold exactly. On a Gaussian target with more
    particles than dimensions these are the target's mean and covariance. Added to a radial
    kernel it repairs the spread that such a kernel loses.

    Parameters
    ----------
    metric : str, Array, callable or None, default "variance"
        W; see :mod:`ppl_ext.kernels`. The default makes the kernel the same in any
        units of the coordinates.
    """

    metric: Metric = "variance"

    def __post_init__(self) -> None:
        check_metric(self.metric)

    def direction(
        self, state: KernelState, particles: Float[Array, "P D"], scores: Float[Array, "P D"]
    ) -> tuple[Float[Array, "P D"], KernelState]:
        """Direction phi, shape (P, D); see :meth:`Kernel.direction`."""
        num, dim = particles.shape
        frame = coordinates(self.metric, particles)
        weighted = frame.gradients(1.0 / dim)
        # Associate the product so that the middle matrix is the smaller of (D, D) and (P, P).
        if dim <= num:
            drift = frame.points @ (frame.partners.T @ scores)
        else:
            drift = frame.inner_products() @ scores
        # grad_{z_j} k(z_j, z_i) = W (z_i - c) / D, the same for every j.
        return scores.mean(axis=0) + drift / (num * dim) + weighted, state

    def gram(self, state: KernelState, particles: Float[Array, "P D"]) -> Float[Array, "P P"]:
        """Kernel values at all pairs of particles, shape (P, P)."""
        return 1.0 + coordinates(self.metric, particles).inner_products() / particles.shape[1]

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        """Values and gradients at all pairs; see :meth:`Kernel.interactions`."""
        frame, basis = points.of(self.metric)
        num, dim = basis.shape
        # grad_{z_j} k(z_j, z_i) = W (z_i - c) / D, the same for every j.
        identity = jnp.eye(num, dtype=basis.dtype)
        coefficients = jnp.broadcast_to(identity / dim, (num, num, num))
        return Interactions(1.0 + frame.inner_products() / dim, coefficients, basis)
