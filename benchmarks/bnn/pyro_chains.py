"""Chains of stochastic gradient MCMC in Pyro."""

from __future__ import annotations

from typing import Any

import pyro
import torch
from numpy.typing import NDArray

import pyro_ext as px
from benchmarks.bnn.chains import ChainTrainer
from benchmarks.bnn.methods import Floats, Method, Setting
from benchmarks.bnn.pyro_network import program, start


class Trainer(ChainTrainer):
    """Runs of a kernel of the package; see :class:`~benchmarks.bnn.chains.ChainTrainer`."""

    def _begin(self, x: Floats, y: NDArray[Any], seed: int, step_size: float) -> None:
        data = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
        self._kernel: Any = getattr(px, self._method.engine)(
            program(self._setting), step_size, init_strategy=start
        )
        pyro.set_rng_seed(seed)
        self._kernel.setup_chains(self._setting.particles, 0, *data)

    def _move(self, steps: int) -> None:
        for _ in range(steps):
            self._kernel.draw()

    def _networks(self) -> dict[str, Floats]:
        found = self._kernel.values(self._kernel.state.z)
        return {name: value.numpy().copy() for name, value in found.items()}

    def said(self) -> dict[str, float]:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        return {"skipped": float(self._kernel.state.num_diverging.sum())}


def trainer(method: Method, setting: Setting) -> Trainer:
    """Runs of a method."""
    return Trainer(method, setting)
