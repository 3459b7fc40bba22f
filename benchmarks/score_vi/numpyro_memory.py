"""The large network and its training steps in NumPyro."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal

import numpyro_ext as nx
from benchmarks.score_vi.memory import BATCH

SCALE = 1e-2


def program(layers: tuple[int, ...]) -> Callable[[Any, Any], None]:
    """A network with a Normal prior on each of its weights and biases."""

    def model(x: Any, y: Any) -> None:
        weights = []
        for k, (rows, columns) in enumerate(itertools.pairwise(layers)):
            shape = (rows, columns)
            w = numpyro.sample(f"w{k}", dist.Normal(0.0, rows**-0.5).expand(shape).to_event(2))
            b = numpyro.sample(f"b{k}", dist.Normal(0.0, 1.0).expand([columns]).to_event(1))
            weights.append((w, b))
        with numpyro.plate("rows", len(x), subsample_size=BATCH) as rows:
            hidden = x[rows]
            for w, b in weights[:-1]:
                hidden = jax.nn.relu(hidden @ w + b)
            logits = hidden @ weights[-1][0] + weights[-1][1]
            numpyro.sample("y", dist.Categorical(logits=logits), obs=y[rows])

    return model


class Stepper:
    """A compiled step, which takes over the state and keeps the next one.

    Parameters
    ----------
    update : callable
        Under ``jax.jit``: a state to the next.
    state : pytree of arrays
    """

    def __init__(self, update: Any, state: Any) -> None:
        self.update, self.state = update, state

    def __call__(self) -> None:
        """Take the step."""
        self.state = jax.block_until_ready(self.update(self.state))


def _ours(layers: tuple[int, ...], x: Any, y: Any) -> Stepper:
    model = program(layers)
    guide = AutoDiagonalNormal(model, init_scale=SCALE)
    engine = nx.ProximalScoreVI(
        model, guide, solver=nx.GradientSteps(num_inner_steps=2), total_steps=1000
    )
    data = jnp.asarray(x), jnp.asarray(y)
    # As ``engine.run`` does it, the old state's memory is given to the new one, here and below.
    update = jax.jit(lambda state: engine.update(state, *data)[0], donate_argnums=0)
    return Stepper(update, engine.init(jax.random.key(0), *data))


def _advi(layers: tuple[int, ...], x: Any, y: Any) -> Stepper:
    model = program(layers)
    guide = AutoDiagonalNormal(model, init_scale=SCALE)
    svi = SVI(model, guide, numpyro.optim.Adam(1e-3), Trace_ELBO())
    data = jnp.asarray(x), jnp.asarray(y)
    state = svi.init(jax.random.key(0), *data)
    update = jax.jit(lambda state: svi.update(state, *data)[0], donate_argnums=0)
    return Stepper(update, jax.tree.map(jnp.copy, state))


def _adam(layers: tuple[int, ...], x: Any, y: Any) -> Stepper:
    features, labels = jnp.asarray(x), jnp.asarray(y)
    optimizer = optax.adam(1e-3)

    @jax.jit
    def start() -> Any:
        keys = jax.random.split(jax.random.key(0), len(layers))
        weights = [
            (jax.random.normal(key, (rows, columns)) * rows**-0.5, jnp.zeros(columns))
            for key, rows, columns in zip(keys, layers, layers[1:], strict=False)
        ]
        return weights, optimizer.init(weights), keys[-1]

    @functools.partial(jax.jit, donate_argnums=0)
    def update(state: Any) -> Any:
        weights, moments, key = state
        key, chosen = jax.random.split(key)
        rows = jax.random.randint(chosen, (BATCH,), 0, len(features))

        def loss(weights: Any) -> Any:
            hidden = features[rows]
            for w, b in weights[:-1]:
                hidden = jax.nn.relu(hidden @ w + b)
            logits = hidden @ weights[-1][0] + weights[-1][1]
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels[rows]).mean()

        change, moments = optimizer.update(jax.grad(loss)(weights), moments)
        return optax.apply_updates(weights, change), moments, key

    return Stepper(update, start())


CASES = {"ours": _ours, "ADVI": _advi, "Adam": _adam}
