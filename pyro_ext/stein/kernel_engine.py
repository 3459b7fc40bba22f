"""Particles that follow the direction of any kernel: the base of engines of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyro_ext.kernels import Kernel
from pyro_ext.optim import OptimizerLike
from pyro_ext.stein.particles import ParticleEngine


class KernelEngine(ParticleEngine):
    """Base of engines of one's own whose direction comes from a kernel.

    Unless ``_direction`` says otherwise it is the kernel's Stein direction.

    Parameters
    ----------
    model : callable
        Pyro model, used as it is.
    optim : PyroOptim or callable
        Such as ``pyro.optim.Adam({"lr": 0.05})``, or a callable from a list of tensors to a torch
        optimizer.
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
        self._set_kernel(kernel)
        super().__init__(model, optim, num_particles, **options)
