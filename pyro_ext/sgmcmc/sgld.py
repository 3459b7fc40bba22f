"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from torch import Tensor

from ppl_ext.sgmcmc_kernels import SGLDShell
from pyro_ext.sgmcmc.dynamics import langevin_step
from pyro_ext.sgmcmc.kernel import StochasticGradientKernel


class SGLD(SGLDShell, StochasticGradientKernel):
    def _init_dynamics(self, num_chains: int) -> dict[str, Tensor]:
        return {}

    def _move(
        self,
        dynamics: dict[str, Tensor],
        z: Tensor,
        score: Tensor,
        noise: Tensor,
        step_size: float,
        warmup: bool,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return langevin_step(z, score, noise, step_size), dynamics
