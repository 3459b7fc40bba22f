"""Stochastic gradient Hamiltonian Monte Carlo with friction."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.sgmcmc import diagonal_of_mass
from ppl_ext.sgmcmc_kernels import SGHMCShell
from pyro_ext.sgmcmc.dynamics import hamiltonian_step
from pyro_ext.sgmcmc.kernel import StochasticGradientKernel


class SGHMC(SGHMCShell, StochasticGradientKernel):
    def setup_chains(self, num_chains: int, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Start chains that are run as one; see the base class."""
        super().setup_chains(num_chains, warmup_steps, *args, **kwargs)
        self._diagonal = self._mass()

    def _mass(self) -> Float[Tensor, " D"]:
        target = self.target
        mass = diagonal_of_mass(self.mass, target.layout.shapes)
        return torch.tensor(mass, dtype=target.dtype, device=target.device)

    def _init_dynamics(self, num_chains: int) -> dict[str, Tensor]:
        target = self.target
        shape = (num_chains, target.dim)
        return {"momentum": torch.zeros(shape, dtype=target.dtype, device=target.device)}

    def _move(
        self,
        dynamics: dict[str, Tensor],
        z: Tensor,
        score: Tensor,
        noise: Tensor,
        step_size: float,
        warmup: bool,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        moved, momentum = hamiltonian_step(
            z, dynamics["momentum"], score, noise, step_size, self.friction, self._diagonal
        )
        return moved, {"momentum": momentum}
