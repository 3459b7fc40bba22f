"""Random Fourier features of the Gaussian kernel, at a cost linear in the number of particles."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from numpyro_ext.kernels.bandwidth import Bandwidth, bandwidth
from numpyro_ext.kernels.base import Kernel, KernelState
from numpyro_ext.kernels.metric import Metric, coordinates
from ppl_ext.errors import ArgumentError
from ppl_ext.kernels import check_bandwidth, check_metric
from ppl_ext.options import check_count


@dataclass(frozen=True, eq=False, repr=False)
class RandomFeature(Kernel):
    """Kernel of M random features, whose mean over features is the Gaussian kernel's value.

    k(x, y) = 2/M sum_m cos(w_m . u_x + b_m) cos(w_m . u_y + b_m), with u the coordinates of the
    metric, w_m ~ N(0, 2/h I) and b_m uniform on a circle (Rahimi and Recht 2007, Algorithm 1).
    The features are drawn once, at the first step; their error in k is about 1/sqrt(M). A step
    costs O(P M D) and, with the default bandwidth, forms no (P, P) array.

    Parameters
    ----------
    num_features : int
        Number M of features.
    bandwidth : str, float or callable, default "dimension"
        h, one number; see :mod:`ppl_ext.kernels`.
    metric : str, Array, callable or None, default "variance"
        See :mod:`ppl_ext.kernels`.
    seed : int, default 0
        Seed of the features.

    Raises
    ------
    ArgumentError
        The number of features or the seed is no whole number, or bandwidth or metric are none.
    """

    num_features: int
    bandwidth: Bandwidth = "dimension"
    metric: Metric = "variance"
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("num_features", self.num_features)
        check_count("seed", self.seed, least=0)
        check_bandwidth(self.bandwidth)
        check_metric(self.metric)
        if self.bandwidth == "pyro":
            raise ArgumentError(
                'Expected a bandwidth that is one number, found "pyro", which has one for each '
                "coordinate. Use a metric instead."
            )

    def init(self, particles: Float[Array, "P D"]) -> KernelState:
        """The features: ``frequencies`` (M, D) for h = 2, standard Normal, ``offsets`` (M,)."""
        frequencies_key, offsets_key = jax.random.split(jax.random.PRNGKey(self.seed))
        shape, dtype = (self.num_features, particles.shape[1]), particles.dtype
        return {
            "frequencies": jax.random.normal(frequencies_key, shape, dtype),
            "offsets": 2.0 * math.pi * jax.random.uniform(offsets_key, shape[:1], dtype),
        }

    def _angles(self, state: KernelState, points: Array) -> tuple[Array, Array]:
        """Angles (P, M) of the features, and their gradients (M, D) in u."""
        width = jnp.sqrt(2.0 / bandwidth(self.bandwidth, points))
        slopes = state["frequencies"] * width
        return points @ slopes.T + state["offsets"], slopes

    def direction(
        self, state: KernelState, particles: Float[Array, "P D"], scores: Float[Array, "P D"]
    ) -> tuple[Float[Array, "P D"], KernelState]:
        """Direction phi, shape (P, D); see :meth:`Kernel.direction`."""
        frame = coordinates(self.metric, particles)
        angles, slopes = self._angles(state, frame.points)
        features = jnp.cos(angles)
        # sum_j grad_{z_j} cos(angle_j) of each feature.
        turned = -jnp.sin(angles).sum(axis=0)[:, None] * slopes
        total = features @ (features.T @ scores + frame.pulled_back(turned))
        return total * (2.0 / (self.num_features * len(particles))), state

    def gram(self, state: KernelState, particles: Float[Array, "P D"]) -> Float[Array, "P P"]:
        """Kernel values at all pairs of particles, shape (P, P)."""
        angles, _ = self._angles(state, coordinates(self.metric, particles).points)
        features = jnp.cos(angles)
        return features @ features.T * (2.0 / self.num_features)
