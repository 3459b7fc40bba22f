"""The regression in Pyro, its rows from a loader or in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.optim import Adam

import pyro_ext as px


def regression(rows: int, batch: int | None) -> Callable[..., None]:
    """The model; it draws ``batch`` of its rows itself, or gets them as arguments."""

    def model(x: torch.Tensor, y: torch.Tensor) -> None:
        width = x.shape[-1]
        w = pyro.sample("w", dist.Normal(torch.zeros(width), 1.0).to_event(1))
        with pyro.plate("rows", rows, subsample_size=batch or len(x)) as index:
            x, y = (x[index], y[index]) if batch else (x, y)
            pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    return model


class Fit:
    """A fit that goes on with every run."""

    def __init__(self, rows: int, batch: int | None, particles: int, rate: float) -> None:
        model = regression(rows, batch)
        self.engine = px.SVGD(model, Adam({"lr": rate}), num_particles=particles, seed=0)

    def run(self, steps: int, *arrays: np.ndarray, batches: Any = None) -> None:
        """Take so many steps more."""
        tensors = [torch.as_tensor(each, dtype=torch.float32) for each in arrays]
        start = "host" if self.engine.num_steps_taken == 0 else None
        given = {} if batches is None else {"batches": batches}
        self.engine.run(steps, *tensors, start=start, progress_bar=False, keep_best=False, **given)

    def mean(self) -> np.ndarray:
        """Mean of the particles."""
        found: np.ndarray = self.engine.get_samples()["w"].mean(0).numpy()
        return found
