"""Particles that follow a direction that a kernel gives, with what the kernel remembers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ppl_ext.options import describe
from pyro_ext.density import Data
from pyro_ext.kernels import Kernel, KernelState
from pyro_ext.optim import OptimizerLike
from pyro_ext.stein.direction import DirectionEngine


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
        self._sited_kernel = kernel
        self._kernel_state: KernelState = {}

    def _initialize(self, data: Data) -> None:
        super()._initialize(data)
        self._sited_kernel = self.kernel.with_sites(self.target.layout.slices)
        self._kernel_state = self._sited_kernel.init(self.particles)

    def _accept(self, result: KernelState) -> None:
        self._kernel_state = result

    def _settings(self) -> dict[str, str]:
        return {**super()._settings(), "kernel": describe(self.kernel)}

    def _algorithm_state(self) -> dict[str, Any]:
        return {**super()._algorithm_state(), "kernel": self._kernel_state}

    def _load_algorithm_state(self, state: dict[str, Any]) -> None:
        super()._load_algorithm_state(state)
        self._kernel_state = state["kernel"]
