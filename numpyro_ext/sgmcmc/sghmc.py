"""Stochastic gradient Hamiltonian Monte Carlo with friction."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from numpyro_ext.sgmcmc.dynamics import hamiltonian_step
from numpyro_ext.sgmcmc.kernel import StochasticGradientKernel
from ppl_ext.sgmcmc.kernels import SGHMCShell
from ppl_ext.sgmcmc.schedules import diagonal_of_mass


class _Momentum(NamedTuple):
    """Momentum (C, D), zero at the start."""

    momentum: Array


class SGHMC(SGHMCShell, StochasticGradientKernel):
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
    >>> mcmc = MCMC(nx.SGHMC(model, 0.1, friction=5.0), num_warmup=100, num_samples=2000)
    >>> mcmc.run(jax.random.key(0), y)
    >>> print(f"{mcmc.get_samples()['mean'].mean():.0f}")
    2
    """

    def _mass(self) -> Float[Array, " D"]:
        mass = diagonal_of_mass(self.mass, self.target.layout.shapes)
        return jnp.asarray(mass, self.target.dtype)

    def _init_dynamics(self, num_chains: int, dim: int, dtype: Any) -> Any:
        self._mass()
        return _Momentum(jnp.zeros((num_chains, dim), dtype))

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
        moved, momentum = hamiltonian_step(
            z, dynamics.momentum, score, noise, step_size, self.friction, self._mass()
        )
        return moved, _Momentum(momentum)
