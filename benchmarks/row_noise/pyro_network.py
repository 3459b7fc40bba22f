"""The network and its gradients in Pyro."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_sample

import pyro_ext as px
from benchmarks.row_noise.comparison import BATCH, LAYERS, NOISE, NUM_DATA, PLAIN, RATE, Array

WEIGHTS = tuple(f"w{layer}" for layer in range(1, len(LAYERS)))


def model(x: torch.Tensor, y: torch.Tensor) -> None:
    """A network whose prior keeps the sizes of its layers' outputs."""
    hidden = x
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(LAYERS), start=1):
        prior = dist.Normal(0.0, fan_in**-0.5).expand([fan_in, fan_out]).to_event(2)
        bias = pyro.sample(f"b{layer}", dist.Normal(0.0, 1.0).expand([fan_out]).to_event(1))
        hidden = hidden @ pyro.sample(f"w{layer}", prior) + bias
        hidden = torch.tanh(hidden) if layer < len(LAYERS) - 1 else hidden
    with pyro.plate("rows", len(x)), pyro.poutine.scale(scale=NUM_DATA / len(x)):
        pyro.sample("y", dist.Normal(hidden.squeeze(-1), NOISE), obs=y)


class Trained:
    """A guide after some steps of the host's objective."""

    def __init__(self, x: Array, y: Array, steps: int, seed: int) -> None:
        pyro.clear_param_store()
        pyro.set_rng_seed(seed)
        torch.set_num_threads(1)
        self._data = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
        self.guide = AutoNormal(model, init_loc_fn=init_to_sample, init_scale=0.05)
        svi = SVI(model, self.guide, pyro.optim.Adam({"lr": RATE}), Trace_ELBO())
        for _ in range(steps):
            svi.step(*self._first(torch.randint(NUM_DATA, (BATCH,))))

    def _first(self, rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self._data
        return x[rows], y[rows]

    @staticmethod
    def _objective(method: str) -> Any:
        return Trace_ELBO() if method == PLAIN else getattr(px, method)(Trace_ELBO())

    def gradients(self, method: str, rows: int, draws: int) -> dict[str, Array]:
        """See :class:`~benchmarks.row_noise.comparison.Network`."""
        objective, data = self._objective(method), self._first(slice(rows))
        parameters = [getattr(self.guide.locs, name) for name in WEIGHTS]
        parameters += [getattr(self.guide.scales, f"{name}_unconstrained") for name in WEIGHTS]
        found = []
        for _ in range(draws):
            loss = objective.differentiable_loss(model, self.guide, *data)
            gradient = torch.autograd.grad(loss, parameters)
            found.append([each.double().numpy().ravel() for each in gradient])
        number = len(WEIGHTS)
        return {
            "means": np.stack([np.concatenate(each[:number]) for each in found]),
            "scales": np.stack([np.concatenate(each[number:]) for each in found]),
        }

    def step(self, method: str, rows: int) -> Callable[[], object]:
        """See :class:`~benchmarks.row_noise.comparison.Network`."""
        # At a rate of nothing, so that all cases are timed at the same parameters.
        optimizer = pyro.optim.Adam({"lr": 0.0})
        svi = SVI(model, self.guide, optimizer, self._objective(method))
        data = self._first(slice(rows))
        return lambda: svi.step(*data)


def trained(x: Array, y: Array, steps: int, seed: int) -> Trained:
    """A trained network."""
    return Trained(x, y, steps, seed)
