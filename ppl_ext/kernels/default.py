"""The kernel of particle engines, unless told otherwise: by how many particles and dimensions.

With a quarter as many particles as pairs of coordinates or fewer it is a wide inverse multiquadric
kernel in units of the particles' spread, and a linear one. The wide radial term gives the shape.
The linear term brings the Stein equations of mean and covariance near, which a radial kernel with
the median rule misses by an eighth of the covariance of a Normal in five dimensions with 100
particles. Near, not exact: at a fixed point Stein's identity holds for the P functions k(., z_i)
and what they span, and the sum of two kernels spans no affine functions although the linear one
alone does. The covariance equation of a standard Normal is off by 0.004 in five dimensions and by
0.04 in fifty (``tests/stein/test_svgd.py``), and by more where the target is correlated. Neither
term takes a median. They count half each, so that one particle follows its score. Chosen on the
targets of ``python -m benchmarks kernels``.

With more particles there are enough to see marginals, and how widths of coordinates depend on one
another: terms for these are added. Chosen on the targets of ``python -m benchmarks semi-exact``.
One coordinate has no pairs, and keeps the first kernel.

With a tenth as many particles as dimensions or fewer, as for networks, it is ``RBF()``. The
spread is lost then with any kernel, and each particle has a mode of its own, where the scores
of the others, which a wide kernel mixes in, are of no use to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from jaxtyping import Float

from ppl_ext.kernels.base import Interactions, KernelState, OfKernels
from ppl_ext.kernels.coordinates import CoordinatesByMetric
from ppl_ext.kernels.rules import are_few, are_many


@dataclass(frozen=True, repr=False)
class ByParticleCount(OfKernels):
    """A kernel for P particles in D dimensions, by these numbers.

    Parameters
    ----------
    many : Kernel
        For more than D^2 / 4 particles, where D > 1.
    some : Kernel
        For fewer, but more than D / 10.
    few : Kernel
        For D / 10 particles or fewer.
    """

    many: Any
    some: Any
    few: Any

    @property
    def parts(self) -> tuple[Any, ...]:
        return self.many, self.some, self.few

    def chosen(self, particles: Float[Any, "P D"]) -> Any:
        """The kernel for particles (P, D)."""
        return self.for_shape(len(particles), self.arrays.num_coordinates(particles))

    def for_shape(self, num: int, dim: int) -> Any:
        """The kernel for ``num`` particles in ``dim`` dimensions."""
        if are_few(num, dim):
            return self.few
        return self.many if are_many(num, dim) else self.some

    def init(self, particles: Float[Any, "P D"]) -> KernelState:
        """State of the kernel for these particles."""
        return self.chosen(particles).init(particles)

    def direction(
        self, state: KernelState, particles: Float[Any, "P D"], scores: Float[Any, "P D"]
    ) -> tuple[Float[Any, "P D"], KernelState]:
        return self.chosen(particles).direction(state, particles, scores)

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        return self.chosen(points.particles).interactions_at(points)

    def gram(self, state: KernelState, particles: Float[Any, "P D"]) -> Float[Any, "P P"]:
        return self.chosen(particles).gram(state, particles)

    def _each(self, change: Callable[[Any], Any]) -> Self:
        return type(self)(*map(change, self.parts))
