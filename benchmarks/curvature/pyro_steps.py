"""Steps of engines on the network in Pyro."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_ext as px
from benchmarks.curvature import network


def model(x: Tensor, y: Tensor) -> None:
    """Normal responses with an unknown scale."""
    w = {}
    for name, shape in network.SHAPES.items():
        prior = dist.Normal(torch.zeros(shape), network.scale(name)).to_event(len(shape))
        w[name] = pyro.sample(name, prior)
    noise = pyro.sample("noise", dist.LogNormal(-1.0, 1.0))
    with pyro.plate("rows", network.ROWS, subsample_size=network.BATCH) as rows:
        hidden = torch.relu(x[rows] @ w["w1"] + w["b1"])
        hidden = torch.relu(hidden @ w["w2"] + w["b2"])
        mean = (hidden @ w["w3"] + w["b3"])[..., 0]
        pyro.sample("y", dist.Normal(mean, noise), obs=y[rows])


def cases() -> dict[str, Callable[[], object]]:
    """One step of each engine."""
    x, y = (torch.from_numpy(array) for array in network.data())
    shared: dict[str, Any] = {"num_particles": network.PARTICLES, "estimator": px.Minibatch()}

    def adam() -> Any:
        return pyro.optim.Adam({"lr": 1e-3})

    engines: dict[str, Any] = {"SVGD": px.SVGD(model, adam(), **shared)}
    for name, options in network.STEPS.items():
        optim = adam() if name == network.LAST else None
        engines[name] = px.SVN(model, optim, **shared, **options)

    def case(engine: Any) -> Callable[[], object]:
        return lambda: engine.step(x, y)

    return {name: case(engine) for name, engine in engines.items()}


def small_model(x: Tensor, y: Tensor) -> None:
    """A network of one hidden layer, its responses Normal with an unknown scale."""
    inputs, hidden = network.SMALL_FEATURES, network.SMALL_HIDDEN
    shapes = {"w1": (inputs, hidden), "b1": (hidden,), "w2": (hidden,)}
    w = {
        name: pyro.sample(name, dist.Normal(torch.zeros(shape), 0.3).to_event(len(shape)))
        for name, shape in shapes.items()
    }
    noise = pyro.sample("noise", dist.LogNormal(-1.0, 1.0))
    with pyro.plate("rows", len(x)):
        mean = torch.tanh(x @ w["w1"] + w["b1"]) @ w["w2"]
        pyro.sample("y", dist.Normal(mean, noise), obs=y)


def small_run() -> float:
    """A first run of SVN over all rows of the small network; minus its last log density."""
    engine = px.SVN(small_model, num_particles=network.SMALL_PARTICLES, seed=0)
    x, y = map(torch.from_numpy, network.small_data())
    return float(engine.run(network.SMALL_STEPS, x, y, progress_bar=False).losses[-1])
