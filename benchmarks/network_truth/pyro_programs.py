"""The networks as programs of Pyro."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from benchmarks.network_truth.networks import NOISE_PRIOR, POOL, WINDOW, Network
from pyro_ext import priors, random_module

#: Where networks and rows are.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def module(network: Network) -> nn.Sequential:
    """The network's layers."""
    layers = list[nn.Module]()
    if network.channels:
        layers += [nn.Conv2d(1, network.channels, WINDOW), nn.ReLU()]
        layers += [nn.AvgPool2d(POOL), nn.Flatten()]
    for inputs, units in pairwise(network.widths):
        layers += [nn.Linear(inputs, units), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).to(DEVICE)


def program(network: Network, batch: int | None = None) -> Callable[..., None]:
    """A model of rows x (n, inputs), or images (n, side, side), and responses y (n,).

    It draws minibatches of so many rows where ``batch`` says so.
    """
    with torch.random.fork_rng():
        layers = module(network)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        net = random_module("net", layers, priors.ScaledNormal())
        if network.head == "noise":
            noise = pyro.sample("noise", dist.LogNormal(*map(x.new_tensor, NOISE_PRIOR)))
        size = None if batch is None else min(batch, len(x))
        with pyro.plate("rows", len(x), subsample_size=size) as rows:
            if batch is not None:
                x, y = x[rows], None if y is None else y[rows]
            found = net(x[:, None] if network.channels else x)
            observed: Any
            if network.head == "noise":
                observed = dist.Normal(found[:, 0], noise)
            elif network.head == "spread":
                observed = dist.Normal(found[:, 0], (found[:, 1] + NOISE_PRIOR[0]).exp())
            elif network.widths[-1] == 1:
                observed = dist.Bernoulli(logits=found[:, 0])
            else:
                observed = dist.Categorical(logits=found)
            pyro.sample("y", observed, obs=y)

    return model
