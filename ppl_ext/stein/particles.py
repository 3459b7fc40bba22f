"""What engines of particles do without knowing their arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Float

from ppl_ext.engines.base import EngineShell
from ppl_ext.errors import ArgumentError
from ppl_ext.options import describe


def annealed(
    scores: Float[Any, "P D"], annealing: Callable[[Any], Any] | None, step: Any
) -> Float[Any, "P D"]:
    """Scores (P, D) times the annealing factor of a step, counted from 0.

    The repulsion of the direction is left as it is (D'Angelo and Fortuin 2021, "Annealed Stein
    variational gradient descent", https://arxiv.org/abs/2101.09815).
    """
    return scores if annealing is None else scores * annealing(step)


def without_neighbours(
    kernel: Any, state: Any, particles: Float[Any, "P D"], scores: Float[Any, "P D"]
) -> tuple[Float[Any, "P D"], Any]:
    """Scores minus those of a kernel density estimate of the particles, and the kernel's state.

    D'Angelo and Fortuin 2021, https://arxiv.org/abs/2106.11642, equation 14.
    """
    density = kernel.gram(state, particles).sum(axis=1, keepdims=True)
    # Without scores the Stein direction is 1/P sum_j grad_{z_j} k(z_j, z_i), which is minus
    # the gradient by z_i where k depends on the difference alone.
    nothing = kernel.arrays.functions.zeros_like(scores)
    away, state = kernel.direction(state, particles, nothing)
    # The direction is a mean over particles and the density a sum, hence the number.
    return scores + len(particles) * away / density, state


def check_annealing(annealing: Any) -> None:
    """See that an annealing is a function of the step, or None."""
    if annealing is not None and not callable(annealing):
        raise ArgumentError(
            "Expected annealing to be a callable from the step number to a factor, found "
            f"{type(annealing).__name__}."
        )


def check_all_particles(num_samples: int | None, num_particles: int) -> None:
    """See that all particles are asked for, which are the draws."""
    if num_samples not in (None, num_particles):
        raise ArgumentError(
            f"Expected num_samples to be None or the number of particles, {num_particles}, found "
            f"{num_samples}: the particles are the draws."
        )


def check_translation_invariant(kernel: Any) -> None:
    """See that a kernel can estimate a density."""
    if not kernel.translation_invariant:
        raise ArgumentError(
            "Expected a kernel that is a function of the difference of two particles, as a "
            f"density estimate needs, found {kernel!r}. Use RBF, IMQ, or sums and multiples of "
            "them."
        )


def check_no_estimator(options: Mapping[str, Any]) -> None:
    """See that ``SVGDVR`` is given no estimator, which it has."""
    if "estimator" in options:
        raise ArgumentError(
            "Expected no estimator with SVGDVR, which is SVGD with estimator=SVRG(...). Use "
            "SVGD for another one."
        )


class ParticlePart(EngineShell):
    """What engines of particles of both packages do alike, before their ``Engine``."""

    num_particles: int
    # Whether the direction is a kernel's, and what it comes from then.
    _has_kernel = False
    kernel: Any
    annealing: Callable[[Any], Any] | None = None

    def _set_kernel(self, kernel: Any, annealing: Callable[[Any], Any] | None = None) -> None:
        """Follow the Stein direction of a kernel, with scores times a factor of the step."""
        check_annealing(annealing)
        self._has_kernel, self.kernel, self.annealing = True, kernel, annealing

    def _settings(self) -> dict[str, str]:
        own = {"num_particles": repr(self.num_particles), **super()._settings()}
        return {**own, "kernel": describe(self.kernel)} if self._has_kernel else own

    def _kernel_for(self, layout: Any) -> Any:
        """The kernel for the sites of a layout, and for so many particles."""
        return self.kernel.with_sites(layout.slices).for_shape(self.num_particles, layout.dim)
