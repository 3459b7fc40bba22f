"""Random Fourier features of the Gaussian kernel, at a cost linear in the number of particles."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float

from ppl_ext.errors import ArgumentError
from ppl_ext.kernels.bandwidth import bandwidth
from ppl_ext.kernels.base import Kernel, KernelState
from ppl_ext.kernels.coordinates import coordinates
from ppl_ext.kernels.rules import check_bandwidth, check_metric
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
        h, one number; see :mod:`ppl_ext.kernels.rules`.
    metric : str, array, callable or None, default "variance"
        See :mod:`ppl_ext.kernels.rules`.
    seed : int, default 0
        Seed of the features.

    Raises
    ------
    ArgumentError
        The number of features or the seed is no whole number, or bandwidth or metric are none.

    Examples
    --------
    >>> RandomFeature(50).num_features
    50
    """

    num_features: int
    bandwidth: Any = "dimension"
    metric: Any = "variance"
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

    @abc.abstractmethod
    def init(self, particles: Float[Any, "P D"]) -> KernelState:
        """The features: ``frequencies`` (M, D) for h = 2, standard Normal, ``offsets`` (M,)."""

    def _angles(self, state: KernelState, points: Any) -> tuple[Any, Any]:
        """Angles (P, M) of the features, and their gradients (M, D) in u."""
        width = bandwidth(self.arrays, self.bandwidth, points)
        # N(0, 2 / h I) from standard Normal numbers: the spectral density of exp(-r^2 / h).
        slopes = state["frequencies"] * self.arrays.functions.sqrt(2.0 / width)
        return points @ slopes.T + state["offsets"], slopes

    def direction(
        self, state: KernelState, particles: Float[Any, "P D"], scores: Float[Any, "P D"]
    ) -> tuple[Float[Any, "P D"], KernelState]:
        frame = coordinates(self.arrays, self.metric, particles)
        angles, slopes = self._angles(state, frame.points)
        features = self.arrays.functions.cos(angles)
        # sum_j grad_{z_j} cos(angle_j) of each feature.
        turned = -self.arrays.functions.sin(angles).sum(axis=0)[:, None] * slopes
        total = features @ (features.T @ scores + frame.pulled_back(turned))
        # Over frequencies and offsets 2 cos(a) cos(b) has the kernel as its mean.
        return total * (2.0 / (self.num_features * len(particles))), state

    def gram(self, state: KernelState, particles: Float[Any, "P D"]) -> Float[Any, "P P"]:
        angles, _ = self._angles(state, coordinates(self.arrays, self.metric, particles).points)
        features = self.arrays.functions.cos(angles)
        return features @ features.T * (2.0 / self.num_features)
