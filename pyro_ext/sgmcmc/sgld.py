"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from torch import Tensor

from ppl_ext.sgmcmc.kernels import SGLDShell
from pyro_ext.sgmcmc.dynamics import langevin_step
from pyro_ext.sgmcmc.kernel import StochasticGradientKernel


class SGLD(SGLDShell, StochasticGradientKernel):
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
    >>> mcmc = px.MCMC(px.SGLD(model, 0.02), num_samples=500, warmup_steps=100, num_chains=10)
    >>> mcmc.run(y)
    >>> print(round(mcmc.get_samples()["mean"].mean().item()))
    2
    """

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
