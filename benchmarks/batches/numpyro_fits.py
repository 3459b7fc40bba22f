"""The regression in NumPyro, its rows from a loader or in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.optim import Adam

import numpyro_ext as nx


def regression(rows: int, batch: int | None) -> Callable[..., None]:
    """The model; it draws ``batch`` of its rows itself, or gets them as arguments."""

    def model(x: jax.Array, y: jax.Array) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(x.shape[-1]), 1.0).to_event(1))
        with numpyro.plate("rows", rows, subsample_size=batch or len(x)) as index:
            x, y = (x[index], y[index]) if batch else (x, y)
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    return model


class Fit:
    """A fit that goes on with every run."""

    def __init__(self, rows: int, batch: int | None, particles: int, rate: float) -> None:
        model = regression(rows, batch)
        self.engine = nx.SVGD(model, Adam(rate), num_particles=particles)
        self.state: Any = None

    def run(self, steps: int, *arrays: np.ndarray, batches: Any = None) -> None:
        """Take so many steps more."""
        given = {} if batches is None else {"batches": batches}
        start = {"start": "host"} if self.state is None else {"init_state": self.state}
        options = {"progress_bar": False, "keep_best": False, **start, **given}
        self.state = self.engine.run(jax.random.key(0), steps, *arrays, **options).state

    def mean(self) -> np.ndarray:
        """Mean of the particles."""
        return np.asarray(self.engine.get_samples(self.state)["w"].mean(0))
