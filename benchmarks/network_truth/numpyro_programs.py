"""The networks as programs of NumPyro."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from flax import nnx
from jax import Array

from benchmarks.network_truth.networks import NOISE_PRIOR, POOL, WINDOW, Network
from numpyro_ext import priors, random_module


def _pooled(x: Array) -> Array:
    """Means of windows (n, side, side, channels), flat, channels first as torch has them."""
    means = nnx.avg_pool(x, (POOL, POOL), (POOL, POOL))
    return jnp.moveaxis(means, -1, 1).reshape(len(x), -1)


def module(network: Network) -> nnx.Sequential:
    """The network's layers."""
    rngs, layers = nnx.Rngs(0), list[Any]()
    if network.channels:
        windows = (WINDOW, WINDOW)
        layers += [nnx.Conv(1, network.channels, windows, padding="VALID", rngs=rngs), jax.nn.relu]
        layers += [_pooled]
    for inputs, units in pairwise(network.widths):
        layers += [nnx.Linear(inputs, units, rngs=rngs), jnp.tanh]
    return nnx.Sequential(*layers[:-1])


def program(network: Network, batch: int | None = None) -> Callable[..., None]:
    """A model of rows x (n, inputs), or images (n, side, side), and responses y (n,).

    It draws minibatches of so many rows where ``batch`` says so.
    """
    layers = module(network)

    def model(x: Array, y: Array | None = None) -> None:
        net = random_module("net", layers, priors.ScaledNormal())
        if network.head == "noise":
            noise = numpyro.sample("noise", dist.LogNormal(*NOISE_PRIOR))
        size = None if batch is None else min(batch, len(x))
        with numpyro.plate("rows", len(x), subsample_size=size) as rows:
            if batch is not None:
                x, y = x[rows], None if y is None else y[rows]
            found = net(x[..., None] if network.channels else x)
            observed: Any
            if network.head == "noise":
                observed = dist.Normal(found[:, 0], noise)
            elif network.head == "spread":
                observed = dist.Normal(found[:, 0], jnp.exp(found[:, 1] + NOISE_PRIOR[0]))
            elif network.widths[-1] == 1:
                observed = dist.Bernoulli(logits=found[:, 0])
            else:
                observed = dist.Categorical(logits=found)
            numpyro.sample("y", observed, obs=y)

    return model
