"""The networks in NumPyro, and their fits by `numpyro_ext`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax

import numpyro_ext as nx

HIDDEN, PARTICLES, RATE = 30, 20, 0.05


def _network(x: jax.Array, outputs: int) -> jax.Array:
    """Outputs (n, outputs) of one hidden layer with Normal weights, scaled by the fan-in."""
    features = x.shape[1]
    spread = (features**-0.5, 1.0, HIDDEN**-0.5, 1.0)
    shapes = ([features, HIDDEN], [HIDDEN], [HIDDEN, outputs], [outputs])
    w1, b1, w2, b2 = (
        numpyro.sample(name, dist.Normal(0.0, 2.0 * scale).expand(shape).to_event(len(shape)))
        for name, scale, shape in zip(("w1", "b1", "w2", "b2"), spread, shapes, strict=True)
    )
    return jnp.tanh(x @ w1 + b1) @ w2 + b2


def curve(x: jax.Array, y: jax.Array | None = None) -> None:
    """A number for each row, with Normal noise of unknown size."""
    mean = _network(x, 1)[:, 0]
    noise = numpyro.sample("noise", dist.LogNormal(-1.0, 1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(mean, noise), obs=y)


def digits(x: jax.Array, y: jax.Array | None = None) -> None:
    """One of eight classes for each row."""
    logits = _network(x, 8)
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)


PROGRAMS = {"curve": curve, "digits": digits}


def fit(program: str, engine: str, x: Any, y: Any, steps: int) -> Any:
    """Draws of the weights, from particles of an engine."""
    optim = optax.adam(optax.cosine_decay_schedule(RATE, steps))
    made = getattr(nx, engine)(PROGRAMS[program], optim, num_particles=PARTICLES)
    x, y = jnp.asarray(x), jnp.asarray(y)
    result = made.run(jax.random.key(0), steps, x, y, progress_bar=False)
    return made.get_samples(result.state)


def predict(program: str, draws: Any, x: Any, y: Any = None) -> Any:
    """Predictive distributions of rows."""
    observed = None if y is None else jnp.asarray(y)
    return nx.predictive_distribution(PROGRAMS[program], draws, jnp.asarray(x), observed)
