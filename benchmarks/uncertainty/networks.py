"""The networks, written once for both hosts, and their fits by a package."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from benchmarks.hosts import Host, falling_adam, host_of

HIDDEN, PARTICLES, RATE = 30, 20, 0.05


def _network(h: Host, x: Any, outputs: int) -> Any:
    """Outputs (n, outputs) of one hidden layer with Normal weights, scaled by the fan-in."""
    features = x.shape[1]
    spread = (features**-0.5, 1.0, HIDDEN**-0.5, 1.0)
    shapes = ([features, HIDDEN], [HIDDEN], [HIDDEN, outputs], [outputs])
    w1, b1, w2, b2 = (
        h.sample(name, h.dist.Normal(0.0, 2.0 * scale).expand(shape).to_event(len(shape)))
        for name, scale, shape in zip(("w1", "b1", "w2", "b2"), spread, shapes, strict=True)
    )
    return h.xp.tanh(x @ w1 + b1) @ w2 + b2


def curve(h: Host, x: Any, y: Any = None) -> None:
    """A number for each row, with Normal noise of unknown size."""
    mean = _network(h, x, 1)[:, 0]
    noise = h.sample("noise", h.dist.LogNormal(-1.0, 1.0))
    with h.plate("rows", len(x)):
        h.sample("y", h.dist.Normal(mean, noise), obs=y)


def digits(h: Host, x: Any, y: Any = None) -> None:
    """One of eight classes for each row."""
    logits = _network(h, x, 8)
    with h.plate("rows", len(x)):
        h.sample("y", h.dist.Categorical(logits=logits), obs=y)


PROGRAMS = {"curve": curve, "digits": digits}


def fit(backend: str, program: str, engine: str, x: Any, y: Any, steps: int) -> Any:
    """Draws of the weights, from particles of an engine."""
    host, optim = host_of(backend), falling_adam(backend, RATE, steps)
    model, rows = partial(PROGRAMS[program], host), (host.array(x), host.array(y))
    kind = getattr(importlib.import_module(f"{backend}_ext"), engine)
    if backend == "pyro":
        made = kind(model, optim, num_particles=PARTICLES, seed=0)
        made.run(steps, *rows, progress_bar=False)
        return made.get_samples()
    import jax

    made = kind(model, optim, num_particles=PARTICLES)
    result = made.run(jax.random.key(0), steps, *rows, progress_bar=False)
    return made.get_samples(result.state)


def predict(backend: str, program: str, draws: Any, x: Any, y: Any = None) -> Any:
    """Predictive distributions of rows."""
    host = host_of(backend)
    predicted = importlib.import_module(f"{backend}_ext").predictive_distribution
    observed = None if y is None else host.array(y)
    return predicted(partial(PROGRAMS[program], host), draws, host.array(x), observed)
