"""Particles that follow a direction that a kernel gives, with what the kernel remembers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jax import Array

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.engine import Plan
from numpyro_ext.kernels import Kernel, KernelState
from numpyro_ext.stein.direction import DirectionEngine
from ppl_ext.options import describe


@dataclass(frozen=True)
class KernelPlan(Plan):
    """As :class:`~numpyro_ext.engine.Plan`, with the kernel for the sites of the target."""

    kernel: Kernel = field(repr=False, compare=False)


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

    def _plan(self, target: LogDensity, rng_key: Array, data: Data) -> KernelPlan:
        found = super()._plan(target, rng_key, data)
        kernel = self.kernel.with_sites(target.layout.slices)
        kernel = kernel.for_shape(self.num_particles, target.layout.dim)
        return KernelPlan(target, found.estimator, kernel)

    def _init_direction(self, plan: KernelPlan, particles: Array) -> KernelState:
        return plan.kernel.init(particles)
