"""Stochastic gradient Langevin dynamics with a diagonal preconditioner."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ppl_ext.sgmcmc import check_warmup
from ppl_ext.sgmcmc_kernels import PSGLDShell
from pyro_ext.sgmcmc.dynamics import langevin_step
from pyro_ext.sgmcmc.kernel import StochasticGradientKernel


class PSGLD(PSGLDShell, StochasticGradientKernel):
    def setup_chains(self, num_chains: int, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Start chains that are run as one; see the base class.

        Raises
        ------
        ArgumentError
            There is no warm-up, in which alone the preconditioner adapts.
        """
        if self._pending is None:
            check_warmup(self.adapt, "warmup_steps", warmup_steps)
        super().setup_chains(num_chains, warmup_steps, *args, **kwargs)

    def _init_dynamics(self, num_chains: int) -> dict[str, Tensor]:
        target = self.target
        zero = torch.zeros(num_chains, target.dim, dtype=target.dtype, device=target.device)
        # The running mean of squared scores, and the weight that it has so far.
        return {"squares": zero, "weight": zero[:, :1].clone()}

    def _move(
        self,
        dynamics: dict[str, Tensor],
        z: Tensor,
        score: Tensor,
        noise: Tensor,
        step_size: float,
        temperature: float,
        warmup: bool,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if warmup or self.adapt == "always":
            kept = self.decay
            dynamics = {
                "squares": kept * dynamics["squares"] + (1.0 - kept) * score**2,
                "weight": kept * dynamics["weight"] + (1.0 - kept),
            }
        # Divided by its weight the mean is right from the first step on.
        root = (dynamics["squares"] / dynamics["weight"]).sqrt()
        preconditioner = 1.0 / (self.damping + root)
        return langevin_step(z, score, noise, step_size, preconditioner, temperature), dynamics
