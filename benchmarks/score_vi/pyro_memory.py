"""The large network and its training steps in Pyro."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from torch import Tensor

import pyro_ext as px
from benchmarks.score_vi.memory import BATCH

SCALE = 1e-2


def program(layers: tuple[int, ...]) -> Callable[[Tensor, Tensor], None]:
    """A network with a Normal prior on each of its weights and biases."""

    def model(x: Tensor, y: Tensor) -> None:
        weights = []
        for k, (rows, columns) in enumerate(itertools.pairwise(layers)):
            shape = (rows, columns)
            w = pyro.sample(f"w{k}", dist.Normal(0.0, rows**-0.5).expand(shape).to_event(2))
            b = pyro.sample(f"b{k}", dist.Normal(0.0, 1.0).expand([columns]).to_event(1))
            weights.append((w, b))
        with pyro.plate("rows", len(x), subsample_size=BATCH) as rows:
            hidden = x[rows]
            for w, b in weights[:-1]:
                hidden = torch.relu(torch.addmm(b, hidden, w))
            logits = torch.addmm(weights[-1][1], hidden, weights[-1][0])
            pyro.sample("y", dist.Categorical(logits=logits), obs=y[rows])

    return model


def _ours(layers: tuple[int, ...], x: Any, y: Any) -> Callable[[], Any]:
    model = program(layers)
    guide = AutoDiagonalNormal(model, init_scale=SCALE)
    engine = px.ProximalScoreVI(
        model, guide, solver=px.GradientSteps(num_inner_steps=2), total_steps=1000, seed=0
    )
    data = torch.tensor(x), torch.tensor(y)
    return lambda: engine.step(*data)


def _advi(layers: tuple[int, ...], x: Any, y: Any) -> Callable[[], Any]:
    model = program(layers)
    guide = AutoDiagonalNormal(model, init_scale=SCALE)
    pyro.clear_param_store()
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO())
    data = torch.tensor(x), torch.tensor(y)
    return lambda: svi.step(*data)


def _adam(layers: tuple[int, ...], x: Any, y: Any) -> Callable[[], Any]:
    steps: list[torch.nn.Module] = []
    for rows, columns in itertools.pairwise(layers):
        steps += [torch.nn.Linear(rows, columns), torch.nn.ReLU()]
    network = torch.nn.Sequential(*steps[:-1])
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    features, labels = torch.tensor(x), torch.tensor(y)

    def step() -> None:
        rows = torch.randint(len(features), (BATCH,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(features[rows]), labels[rows]).backward()
        optimizer.step()

    return step


CASES = {"ours": _ours, "ADVI": _advi, "Adam": _adam}
