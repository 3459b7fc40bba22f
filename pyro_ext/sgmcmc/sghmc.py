"""Stochastic gradient Hamiltonian Monte Carlo with friction."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.sgmcmc.kernels import SGHMCShell
from ppl_ext.sgmcmc.schedules import diagonal_of_mass
from pyro_ext.sgmcmc.dynamics import hamiltonian_step
from pyro_ext.sgmcmc.kernel import StochasticGradientKernel


class SGHMC(SGHMCShell, StochasticGradientKernel):
    """Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y), subsample_size=2) as rows:
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> _ = torch.manual_seed(0)
    >>> kernel = px.SGHMC(model, 0.1, friction=5.0)
    >>> mcmc = px.MCMC(kernel, num_samples=500, warmup_steps=100, num_chains=10)
    >>> mcmc.run(y)
    >>> print(round(mcmc.get_samples()["mean"].mean().item()))
    2
    """

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
