"""Stochastic gradient Langevin dynamics of replicas at several temperatures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ppl_ext.sgmcmc_kernels import Exchanges, ReplicaExchangeSGLDShell
from pyro_ext.sgmcmc.kernel import KernelState
from pyro_ext.sgmcmc.sgld import SGLD


class ReplicaExchangeSGLD(ReplicaExchangeSGLDShell, SGLD):
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
