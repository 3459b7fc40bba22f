"""Particles that follow a direction that a kernel gives, with what the kernel remembers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array

from numpyro_ext.density import LogDensity
from numpyro_ext.kernels import Kernel, KernelState
from numpyro_ext.stein.direction import DirectionEngine
from ppl_ext.options import describe


class KernelEngine(DirectionEngine):
    """Base of the engines whose direction comes from a kernel.

    Parameters
    ----------
    model : callable
        NumPyro model, used as it is.
    optim : optimizer
        NumPyro or optax optimizer.
    kernel : Kernel
    num_particles : int, default 32
        Number P of particles.
    **options
        Options of every engine; see :class:`~numpyro_ext.engine.Engine`.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        optim: Any,
        kernel: Kernel,
        num_particles: int = 32,
        **options: Any,
    ) -> None:
        super().__init__(model, optim, num_particles, **options)
        self.kernel = kernel

    def _settings(self) -> dict[str, str]:
        return {"kernel": describe(self.kernel), **super()._settings()}

    def _init_direction(self, target: LogDensity, particles: Array) -> KernelState:
        return self._sited(target).init(particles)

    def _sited(self, target: LogDensity) -> Kernel:
        """The kernel for the sites of the target."""
        return self.kernel.with_sites(target.layout.slices)
