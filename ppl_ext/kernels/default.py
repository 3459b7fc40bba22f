"""The kernel of particle engines, unless told otherwise: by the number of particles.

With P > D + 1 particles it is half a linear kernel, a quarter of a wide inverse multiquadric one in
units of the particles' spread, and a quarter of an additive one. The linear term brings the Stein
equations of mean and covariance near, which a radial kernel with the median rule misses by an
eighth of the covariance of a Normal in five dimensions with 100 particles. Near, not exact: at a
fixed point Stein's identity holds for the P functions k(., z_i) and what they span, and a sum of
kernels spans no affine functions although the linear one alone does. The covariance equation of a
standard Normal is off by 0.004 in five dimensions and by 0.04 in fifty
(``tests/stein/test_svgd.py``), and by more where the target is correlated. The wide term sees what
coordinates do together, and the additive one spreads particles in every coordinate, so that
marginals are smooth.

With fewer particles than that, half is linear and half the inverse multiquadric: what the additive
term computes grows with D, and marginals of so few are rough with any kernel.

With a tenth as many particles as dimensions or fewer, as for networks, it is ``RBF()``. The
spread is lost then with any kernel, and each particle has a mode of its own, where the scores
of the others, which a wide kernel mixes in, are of no use to it.

No term but the last takes a median. The weights sum to one, so that one particle follows its score.
Chosen on the targets of ``python -m benchmarks kernels`` and ``python -m benchmarks semi-exact``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from jaxtyping import Float

from ppl_ext.kernels.base import Interactions, Kernel, KernelState
from ppl_ext.kernels.coordinates import CoordinatesByMetric
from ppl_ext.kernels.rules import ProductMetric, are_few


@dataclass(frozen=True, repr=False)
class ByParticleCount(Kernel):
    """One kernel for more particles than dimensions, one for fewer, one for a tenth or less.

    Parameters
    ----------
    most : Kernel
        For more than D + 1 particles.
    many : Kernel
        For more than D / 10 of all others.
    few : Kernel
        For D / 10 particles or fewer.
    """

    most: Any
    many: Any
    few: Any

    def chosen(self, particles: Float[Any, "P D"]) -> Any:
        """The kernel for particles (P, D)."""
        number, dim = particles.shape
        if number > dim + 1:
            return self.most
        return self.few if are_few(number, dim) else self.many

    def init(self, particles: Float[Any, "P D"]) -> KernelState:
        """State of the kernel for these particles."""
        return self.chosen(particles).init(particles)

    @property
    def _kernels(self) -> tuple[Any, Any, Any]:
        return self.most, self.many, self.few

    @property
    def translation_invariant(self) -> bool:
        """Whether all kernels are."""
        return all(kernel.translation_invariant for kernel in self._kernels)

    def with_sites(self, sites: Mapping[str, slice]) -> Self:
        """All kernels for these sites."""
        return type(self)(*(kernel.with_sites(sites) for kernel in self._kernels))

    def with_curvature(self, metric: ProductMetric) -> Self:
        """All kernels with the present curvature."""
        return type(self)(*(kernel.with_curvature(metric) for kernel in self._kernels))

    def direction(
        self, state: KernelState, particles: Float[Any, "P D"], scores: Float[Any, "P D"]
    ) -> tuple[Float[Any, "P D"], KernelState]:
        return self.chosen(particles).direction(state, particles, scores)

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        return self.chosen(points.particles).interactions_at(points)

    def gram(self, state: KernelState, particles: Float[Any, "P D"]) -> Float[Any, "P P"]:
        return self.chosen(particles).gram(state, particles)
