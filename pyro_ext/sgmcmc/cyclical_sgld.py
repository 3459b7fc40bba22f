"""Stochastic gradient Langevin dynamics with a step size that rises and falls in cycles."""

from __future__ import annotations

from ppl_ext.sgmcmc.kernels import CyclicalSGLDShell
from pyro_ext.sgmcmc.sgld import SGLD


class CyclicalSGLD(CyclicalSGLDShell, SGLD):
    """Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> _ = torch.manual_seed(0)
    >>> kernel = px.CyclicalSGLD(model, 0.1, cycle_length=20)
    >>> print(kernel.draws_per_cycle)
    5
    >>> mcmc = px.MCMC(kernel, num_samples=100, warmup_steps=20, num_chains=10)
    >>> mcmc.run(y)
    >>> print(round(mcmc.get_samples()["mean"].mean().item()))
    2
    """
