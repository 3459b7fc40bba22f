"""Repulsive ensembles in weight space (``WGD``), a discretized Wasserstein gradient descent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_ext.errors import ArgumentError
from pyro_ext.kernels import RBF, Kernel, KernelState, as_kernel
from pyro_ext.optim import OptimizerLike
from pyro_ext.options import describe
from pyro_ext.stein.direction import DirectionEngine
from pyro_ext.target import Data


class WGD(DirectionEngine):
    """Repulsive deep ensembles: each particle follows its score and leaves the others.

    The direction is phi(z_i) = s(z_i) - sum_j grad_{z_i} k(z_i, z_j) / sum_j k(z_i, z_j), the
    score of the target minus that of a kernel density estimate of the particles (D'Angelo and
    Fortuin 2021, "Repulsive deep ensembles are Bayesian", equation 14). Unlike SVGD, particles do
    not share their scores.

    Parameters
    ----------
    model : callable
        Pyro model, used as it is.
    optim : PyroOptim or callable
        See :class:`~pyro_ext.stein.DirectionEngine`.
    kernel : Kernel, optional
        A function of z_i - z_j: ``RBF``, ``IMQ``, or sums and multiples of them; default
        ``RBF()``, the Gaussian kernel with the median rule of the paper.
    num_particles : int, default 32
        Number P of particles.
    **options
        Options of every engine; see :class:`~pyro_ext.engine.Engine`.

    Raises
    ------
    ArgumentError
        The kernel is not a function of the difference of its arguments.

    Notes
    -----
    The loss is minus the mean log density of the particles before the step, an estimate where
    the score is one. ``info["force_norm"]`` is the root mean square over particles of |phi|.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        optim: OptimizerLike,
        kernel: Kernel | None = None,
        num_particles: int = 32,
        **options: Any,
    ) -> None:
        super().__init__(model, optim, num_particles, **options)
        self.kernel = RBF() if kernel is None else as_kernel(kernel)
        if not self.kernel.translation_invariant:
            raise ArgumentError(
                "Expected a kernel that is a function of the difference of two particles, as a "
                f"density estimate needs, found {self.kernel!r}. Use RBF, IMQ, or sums and "
                "multiples of them."
            )
        self._sited_kernel = self.kernel
        self._kernel_state: KernelState = {}

    def _initialize(self, data: Data) -> None:
        super()._initialize(data)
        self._sited_kernel = self.kernel.with_sites(self.target.layout.slices)
        self._kernel_state = self._sited_kernel.init(self.particles)

    def _direction(self, particles: Tensor, scores: Tensor) -> tuple[Tensor, KernelState]:
        state = self._kernel_state
        density = self._sited_kernel.gram(state, particles).sum(dim=1, keepdim=True)
        # Without scores the Stein direction is 1/P sum_j grad_{z_j} k(z_j, z_i), which is minus
        # the gradient by z_i where k depends on the difference alone.
        away, state = self._sited_kernel.direction(state, particles, torch.zeros_like(scores))
        return scores + len(particles) * away / density, state

    def _accept(self, result: KernelState) -> None:
        self._kernel_state = result

    def _settings(self) -> dict[str, str]:
        return {**super()._settings(), "kernel": describe(self.kernel)}

    def _algorithm_state(self) -> dict[str, Any]:
        return {**super()._algorithm_state(), "kernel": self._kernel_state}

    def _load_algorithm_state(self, state: dict[str, Any]) -> None:
        super()._load_algorithm_state(state)
        self._kernel_state = state["kernel"]
