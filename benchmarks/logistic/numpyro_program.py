"""The logistic regression in NumPyro."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array

from benchmarks.variance_reduction.methods import Arguments, Method, Schedule
from benchmarks.variance_reduction.numpyro_trainer import NumPyroTrainer

#: Shape and rate of the precision's Gamma prior.
PRIOR = (1.0, 0.01)


def program(features: int, schedule: Schedule, point: bool) -> Callable[[Array, Array], None]:
    """The regression; without a prior for the point estimate."""

    def model(x: Array, y: Array) -> None:
        if point:
            prior = dist.Normal(jnp.zeros(features), 1.0).mask(False)
        else:
            precision = numpyro.sample("precision", dist.Gamma(*PRIOR))
            prior = dist.Normal(jnp.zeros(features), precision**-0.5)
        weights = numpyro.sample("weights", prior.to_event(1))
        with numpyro.plate("rows", schedule.rows, subsample_size=schedule.batch) as rows:
            numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ weights), obs=y[rows])

    return model


class Trainer(NumPyroTrainer):
    """A run on features with a column of ones, and labels of 0 and 1."""

    def __init__(
        self, data: Arguments, schedule: Schedule, method: Method, rate: float, seed: int
    ) -> None:
        model = program(data[0].shape[1], schedule, method.point)
        super().__init__(model, data, schedule, method, rate, seed)
