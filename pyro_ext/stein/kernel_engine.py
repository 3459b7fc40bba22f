"""Particles that follow a direction that a kernel gives, with what the kernel remembers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Generator, Tensor

from ppl_ext.options import describe
from pyro_ext.density import Data, LogDensity
from pyro_ext.engine import Plan
from pyro_ext.kernels import Kernel, KernelState
from pyro_ext.optim import OptimizerLike
from pyro_ext.stein.direction import DirectionEngine


@dataclass(frozen=True)
class KernelPlan(Plan):
    """As :class:`~pyro_ext.engine.Plan`, with the kernel for the sites of the target."""

    kernel: Kernel = field(repr=False, compare=False)


class KernelEngine(DirectionEngine):
    """Base of the engines whose direction comes from a kernel.

    Parameters
    ----------
    model : callable
        Pyro model, used as it is.
    optim : PyroOptim or callable
        See :class:`~pyro_ext.stein.DirectionEngine`.
    kernel : Kernel
    num_particles : int, default 32
        Number P of particles.
    **options
        Options of every engine; see :class:`~pyro_ext.engine.Engine`.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        optim: OptimizerLike,
        kernel: Kernel,
        num_particles: int = 32,
        **options: Any,
    ) -> None:
        super().__init__(model, optim, num_particles, **options)
        self.kernel = kernel

    def _undivided(self) -> str | None:
        if self.kernel.divides_coordinates:
            return None
        return (
            "Expected a kernel whose coordinates can be divided among processes, as "
            f"exchange='all-to-all' does, found {self.kernel!r}. Use RBF, IMQ, Linear, "
            "Additive, Dilation or sums and multiples of them, with a named rule or a number for "
            "the bandwidth and without arrays or functions, or exchange='all-gather'."
        )

    def _plan(self, target: LogDensity, generator: Generator, data: Data) -> KernelPlan:
        found = super()._plan(target, generator, data)
        kernel = self.kernel.with_sites(target.layout.slices)
        kernel = kernel.for_shape(self.num_particles, target.layout.dim)
        return KernelPlan(target, found.estimator, kernel)

    def _init_direction(self, plan: KernelPlan, particles: Tensor) -> KernelState:
        return plan.kernel.init(particles.clone())

    def _settings(self) -> dict[str, str]:
        return {**super()._settings(), "kernel": describe(self.kernel)}
