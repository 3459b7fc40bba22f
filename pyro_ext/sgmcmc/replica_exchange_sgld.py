"""Stochastic gradient Langevin dynamics of replicas at several temperatures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ppl_ext.sgmcmc.kernels import Exchanges, ReplicaExchangeSGLDShell
from pyro_ext.sgmcmc.kernel import KernelState
from pyro_ext.sgmcmc.sgld import SGLD


class ReplicaExchangeSGLD(ReplicaExchangeSGLDShell, SGLD):
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
    >>> kernel = px.ReplicaExchangeSGLD(model, 0.05, (1.0, 2.0, 4.0))
    >>> print(kernel.num_replicas)
    3
    >>> mcmc = px.MCMC(kernel, num_samples=100, warmup_steps=20, num_chains=10)
    >>> mcmc.run(y)
    >>> print(round(mcmc.get_samples()["mean"].mean().item()))
    2
    >>> print(kernel.exchange_rates(kernel.state).shape)
    (10, 2)
    """

    def _init_replicas(self, z: Tensor) -> dict[str, Any]:
        assert self._data is not None
        num_chains, pairs = len(z), self.num_replicas - 1
        due = z.new_zeros(num_chains, pairs)
        due[:, ::2] = 1.0
        exchanges = Exchanges(
            variance=z.new_zeros(num_chains, pairs + 1),
            number=z.new_zeros(num_chains, 1),
            due=due,
            tried=torch.zeros_like(due),
            accepted=torch.zeros_like(due),
        )
        return {
            "z": z[:, None].repeat(1, pairs, 1),
            # An order of rows of its own: two minibatches of one order are not independent.
            "estimator": self._score_estimator.init(self.target, self._data, self._generator),
            **exchanges._asdict(),
        }

    def _after_steps(self, state: KernelState) -> KernelState:
        assert self._data is not None
        num_chains, kept = len(state.z), state.replicas
        z = self._positions(state)
        energies, states = [], []
        for before in (state.estimator, kept["estimator"]):
            estimate, after = self._score_estimator.estimate(
                self.target, before, z, self._data, self._generator
            )
            energy = -estimate.log_density(self.target.likelihood_temperature)
            energies.append(energy.view(num_chains, -1))
            states.append(after)
        exchanges = Exchanges(*(kept[name] for name in Exchanges._fields))
        uniform = torch.rand(exchanges.due.shape, generator=self._generator, dtype=z.dtype)
        gaps = torch.as_tensor(self._gaps, dtype=z.dtype, device=z.device)
        log_uniform = uniform.log().to(z.device)
        exchanges, exchanged = exchanges.after(energies[0], energies[1], log_uniform, gaps, torch)
        order = torch.arange(self.num_replicas, device=z.device).repeat(num_chains, 1)
        order += pad(exchanged.long(), (0, 1)) - pad(exchanged.long(), (1, 0))
        by_chain = z.unflatten(0, (num_chains, -1))
        z = by_chain.take_along_dim(order[:, :, None], 1).flatten(0, 1)
        following = kept | {"estimator": states[1], **exchanges._asdict()}
        return self._with_positions(state._replace(estimator=states[0], replicas=following), z)
