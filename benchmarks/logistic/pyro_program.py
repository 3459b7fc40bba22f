"""The logistic regression in Pyro."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from benchmarks.variance_reduction.methods import Arguments, Method, Schedule
from benchmarks.variance_reduction.pyro_trainer import PyroTrainer

#: Shape and rate of the precision's Gamma prior.
PRIOR = (1.0, 0.01)


def program(features: int, schedule: Schedule, point: bool) -> Callable[[Tensor, Tensor], None]:
    """The regression; without a prior for the point estimate."""

    def model(x: Tensor, y: Tensor) -> None:
        if point:
            prior = dist.Normal(torch.zeros(features), 1.0).mask(False)
        else:
            precision = pyro.sample("precision", dist.Gamma(*PRIOR))
            prior = dist.Normal(torch.zeros(features), precision.rsqrt())
        weights = pyro.sample("weights", prior.to_event(1))
        with pyro.plate("rows", schedule.rows, subsample_size=schedule.batch) as rows:
            pyro.sample("y", dist.Bernoulli(logits=x[rows] @ weights), obs=y[rows])

    return model


class Trainer(PyroTrainer):
    """A run on features with a column of ones, and labels of 0 and 1."""

    def __init__(
        self, data: Arguments, schedule: Schedule, method: Method, rate: float, seed: int
    ) -> None:
        model = program(data[0].shape[1], schedule, method.point)
        super().__init__(model, data, schedule, method, rate, seed)
