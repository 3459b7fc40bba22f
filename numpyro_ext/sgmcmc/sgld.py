"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from typing import Any

from jax import Array

from numpyro_ext.sgmcmc.dynamics import langevin_step
from numpyro_ext.sgmcmc.kernel import StochasticGradientKernel
from ppl_ext.sgmcmc.kernels import SGLDShell


class SGLD(SGLDShell, StochasticGradientKernel):
    """Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y), subsample_size=2) as rows:
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> from numpyro.infer import MCMC
    >>> mcmc = MCMC(nx.SGLD(model, 0.02), num_warmup=100, num_samples=2000)
    >>> mcmc.run(jax.random.key(0), y)
    >>> print(f"{mcmc.get_samples()['mean'].mean():.0f}")
    2
    """

    def _init_dynamics(self, num_chains: int, dim: int, dtype: Any) -> Any:
        return ()

    def _move(
        self,
        dynamics: Any,
        z: Array,
        score: Array,
        noise: Array,
        step_size: Array,
        step: Array,
        warmup: Array,
    ) -> tuple[Array, Any]:
        return langevin_step(z, score, noise, step_size), dynamics
