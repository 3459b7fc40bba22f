"""Stochastic gradient Langevin dynamics of replicas at several temperatures."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, random

from numpyro_ext.density import Data
from numpyro_ext.sgmcmc.kernel import KernelState
from numpyro_ext.sgmcmc.sgld import SGLD
from ppl_ext.sgmcmc.kernels import Exchanges, ReplicaExchangeSGLDShell


class ReplicaExchangeSGLD(ReplicaExchangeSGLDShell, SGLD):
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
    >>> kernel = nx.ReplicaExchangeSGLD(model, 0.05, (1.0, 2.0, 4.0))
    >>> print(kernel.num_replicas)
    3
    >>> mcmc = MCMC(kernel, num_warmup=20, num_samples=1000)
    >>> mcmc.run(jax.random.key(0), y)
    >>> print(f"{mcmc.get_samples()['mean'].mean():.0f}")
    2
    >>> print(kernel.exchange_rates(mcmc.last_state).shape)
    (1, 2)
    """

    def _init_replicas(self, z: Array, data: Data, key: Array) -> dict[str, Any]:
        num_chains, pairs = len(z), self.num_replicas - 1
        by_pair = jnp.zeros((num_chains, pairs), z.dtype)
        exchanges = Exchanges(
            variance=jnp.zeros((num_chains, pairs + 1), z.dtype),
            number=jnp.zeros((num_chains, 1), z.dtype),
            due=by_pair.at[:, ::2].set(1.0),
            tried=by_pair,
            accepted=by_pair,
        )
        positions = num_chains * self.num_replicas
        return {
            "z": jnp.repeat(z[:, None], pairs, 1),
            # An order of rows of its own: two minibatches of one order are not independent.
            "estimator": self._estimator_for(positions).init(self.target, data, key, positions),
            **exchanges._asdict(),
        }

    def _after_steps(self, state: KernelState, data: Data, single: bool) -> KernelState:
        keys = state.rng_key[None] if single else state.rng_key
        num_chains, kept = len(keys), state.replicas
        z = self._positions(state, num_chains)
        score_estimator, energies, states = self._estimator_for(len(z)), [], []
        for before in (state.estimator, kept["estimator"]):
            estimate, after = score_estimator.estimate(self.target, before, z, data)
            energy = -estimate.log_density(self.target.likelihood_temperature)
            energies.append(energy.reshape(num_chains, -1))
            states.append(jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, before))
        both = jax.vmap(random.split)(keys)
        exchanges = Exchanges(*(kept[name] for name in Exchanges._fields))
        shape = (self.num_replicas - 1,)
        log_uniform = jnp.log(jax.vmap(lambda key: random.uniform(key, shape, z.dtype))(both[:, 1]))
        exchanges, exchanged = exchanges.after(
            energies[0], energies[1], log_uniform, jnp.asarray(self._gaps, z.dtype), jnp
        )
        up, down = (jnp.pad(exchanged, ((0, 0), sides)) for sides in ((0, 1), (1, 0)))
        order = jnp.arange(self.num_replicas) + up.astype(int) - down.astype(int)
        by_chain = z.reshape(num_chains, self.num_replicas, -1)
        z = jnp.take_along_axis(by_chain, order[:, :, None], 1).reshape(z.shape)
        following = kept | {"estimator": states[1], **exchanges._asdict()}
        state = state._replace(
            estimator=states[0],
            replicas=following,
            rng_key=both[0, 0] if single else both[:, 0],
        )
        return self._with_positions(state, z, single)
