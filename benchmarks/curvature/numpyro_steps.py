"""Steps of engines on the network in NumPyro."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array

import numpyro_ext as nx
from benchmarks.curvature import network


def model(x: Array, y: Array) -> None:
    """Normal responses with an unknown scale."""
    w = {
        name: numpyro.sample(name, dist.Normal(jnp.zeros(shape), network.scale(name)).to_event())
        for name, shape in network.SHAPES.items()
    }
    noise = numpyro.sample("noise", dist.LogNormal(-1.0, 1.0))
    with numpyro.plate("rows", network.ROWS, subsample_size=network.BATCH) as rows:
        hidden = jax.nn.relu(x[rows] @ w["w1"] + w["b1"])
        hidden = jax.nn.relu(hidden @ w["w2"] + w["b2"])
        mean = (hidden @ w["w3"] + w["b3"])[..., 0]
        numpyro.sample("y", dist.Normal(mean, noise), obs=y[rows])


def cases() -> dict[str, Callable[[], object]]:
    """One compiled step of each engine."""
    x, y = (jnp.asarray(array) for array in network.data())
    adam = numpyro.optim.Adam(1e-3)
    shared: dict[str, Any] = {"num_particles": network.PARTICLES, "estimator": nx.Minibatch()}
    engines: dict[str, Any] = {"SVGD": nx.SVGD(model, adam, **shared)}
    for name, options in network.STEPS.items():
        optim = adam if name == network.LAST else None
        engines[name] = nx.SVN(model, optim, **shared, **options)

    def case(engine: Any) -> Callable[[], object]:
        states = [engine.init(jax.random.key(0), x, y)]
        update = jax.jit(engine.update)

        def step() -> object:
            states[0], loss = update(states[0], x, y)
            return jax.block_until_ready(loss)

        return step

    return {name: case(engine) for name, engine in engines.items()}


def small_model(x: Array, y: Array) -> None:
    """A network of one hidden layer, its responses Normal with an unknown scale."""
    inputs, hidden = network.SMALL_FEATURES, network.SMALL_HIDDEN
    shapes = {"w1": (inputs, hidden), "b1": (hidden,), "w2": (hidden,)}
    w = {
        name: numpyro.sample(name, dist.Normal(jnp.zeros(shape), 0.3).to_event())
        for name, shape in shapes.items()
    }
    noise = numpyro.sample("noise", dist.LogNormal(-1.0, 1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(jnp.tanh(x @ w["w1"] + w["b1"]) @ w["w2"], noise), obs=y)


def small_run() -> float:
    """A first run of SVN over all rows of the small network; minus its last log density."""
    engine = nx.SVN(small_model, num_particles=network.SMALL_PARTICLES)
    x, y = map(jnp.asarray, network.small_data())
    result = engine.run(jax.random.key(0), network.SMALL_STEPS, x, y, progress_bar=False)
    return float(result.losses[-1])
