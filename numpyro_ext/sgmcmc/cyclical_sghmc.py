"""Stochastic gradient Hamiltonian Monte Carlo with steps that rise and fall in cycles."""

from __future__ import annotations

from numpyro_ext.sgmcmc.cyclical_sgld import CyclicalFields
from numpyro_ext.sgmcmc.sghmc import SGHMC
from ppl_ext.sgmcmc.kernels import CyclicalSGHMCShell


class CyclicalSGHMC(CyclicalSGHMCShell, CyclicalFields, SGHMC):
    """Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> from numpyro.infer import MCMC
    >>> kernel = nx.CyclicalSGHMC(model, 0.3, cycle_length=20)
    >>> print(kernel.draws_per_cycle)
    5
    >>> mcmc = MCMC(kernel, num_warmup=20, num_samples=1000)
    >>> mcmc.run(jax.random.key(0), y)
    >>> print(f"{mcmc.get_samples()['mean'].mean():.0f}")
    2
    """
