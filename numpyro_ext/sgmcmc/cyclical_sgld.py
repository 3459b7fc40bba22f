"""Stochastic gradient Langevin dynamics with a step size that rises and falls in cycles."""

from __future__ import annotations

from numpyro_ext.sgmcmc.kernel import StochasticGradientKernel
from numpyro_ext.sgmcmc.sgld import SGLD
from ppl_ext.sgmcmc.kernels import CyclicalSGLDShell


class CyclicalFields(StochasticGradientKernel):
    """What ``MCMC`` collects of a kernel in cycles."""

    @property
    def default_fields(self) -> tuple[str, ...]:
        """Fields that ``MCMC`` collects: the draw, whether it diverged, and its cycle."""
        return (*super().default_fields, "cycle")


class CyclicalSGLD(CyclicalSGLDShell, CyclicalFields, SGLD):
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
    >>> kernel = nx.CyclicalSGLD(model, 0.1, cycle_length=20)
    >>> print(kernel.draws_per_cycle)
    5
    >>> mcmc = MCMC(kernel, num_warmup=20, num_samples=1000)
    >>> mcmc.run(jax.random.key(0), y)
    >>> print(f"{mcmc.get_samples()['mean'].mean():.0f}")
    2
    """
