"""The regression network in Pyro, by PyroModule."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule, PyroSample
from torch import Tensor

from benchmarks.variance_reduction.methods import Arguments, Floats, Method, Schedule
from benchmarks.variance_reduction.pyro_trainer import PyroTrainer

#: Shape and rate of both precisions' Gamma priors.
PRIOR = (1.0, 0.1)


class Network(PyroModule):
    """Normal responses and weights, the precisions of both unknown; one layer of ReLU units."""

    def __init__(self, features: int, hidden: int, schedule: Schedule) -> None:
        super().__init__()
        self.schedule = schedule
        self.noise_precision = PyroSample(dist.Gamma(*PRIOR))
        self.weight_precision = PyroSample(dist.Gamma(*PRIOR))
        self.first = PyroModule[torch.nn.Linear](features, hidden)
        self.second = PyroModule[torch.nn.Linear](hidden, 1)
        for layer in (self.first, self.second):
            for name, value in list(layer.named_parameters()):
                setattr(layer, name, PyroSample(self._prior(value.shape)))

    def _prior(self, shape: torch.Size) -> Any:
        # A function of the layer, which does not know the precision; the network does.
        def prior(_layer: Any) -> Any:
            scale = self.weight_precision.rsqrt()
            return dist.Normal(torch.zeros(shape), scale).to_event(len(shape))

        return prior

    def forward(self, x: Tensor, y: Tensor) -> None:
        scale = self.noise_precision.rsqrt()
        plate = pyro.plate("rows", self.schedule.rows, subsample_size=self.schedule.batch)
        rows = plate.indices
        mean = self.second(torch.relu(self.first(x[rows]))).squeeze(-1)
        with plate:
            pyro.sample("y", dist.Normal(mean, scale), obs=y[rows])


def start(site: dict[str, Any]) -> Tensor:
    """Weights of variance 1 / (inputs + 1), biases 0, precisions 1."""
    shape = site["fn"].shape()
    if site["name"].endswith("weight"):
        return torch.randn(shape) * (shape[1] + 1) ** -0.5
    return torch.zeros(shape) if site["name"].endswith("bias") else torch.ones(shape)


class Trainer(PyroTrainer):
    """A run on standardised rows."""

    def __init__(
        self,
        data: Arguments,
        hidden: int,
        schedule: Schedule,
        method: Method,
        rate: float,
        seed: int,
    ) -> None:
        model = Network(data[0].shape[1], hidden, schedule)
        super().__init__(model, data, schedule, method, rate, seed, init_strategy=start)

    def draws(self) -> dict[str, Floats]:
        """Draws by the names that ``benchmarks.predictive`` knows."""
        found = super().draws()
        return {
            "w1": found["first.weight"].swapaxes(1, 2),
            "b1": found["first.bias"],
            "w2": found["second.weight"][:, 0],
            "b2": found["second.bias"][:, 0],
            "noise": found["noise_precision"] ** -0.5,
        }
