"""The forecaster in Pyro; see :mod:`benchmarks.forecasting` for what it does."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor

from benchmarks.forecasting.problem import SEGMENTS, SMALL_VARIANCE, Problem
from benchmarks.forecasting.sizes import RIDGE, Sizes
from benchmarks.images.pyro_training import PyroTrainer, make_bayesian, release_programs

BACKEND = "Pyro"
Trainer = PyroTrainer
release = release_programs


def local_dynamics(latent: Tensor, steps: int) -> Tensor:
    """Continue a sequence by the linear map that fits it best; the arguments are NumPyro's."""
    before, after = latent[..., :-1, :], latent[..., 1:, :]
    gram = before @ before.mT + RIDGE * torch.eye(before.shape[-2], dtype=latent.dtype)
    weights = torch.linalg.solve(gram, after)
    present, found = latent[..., -1:, :], []
    for _ in range(steps):
        present = present @ before.mT @ weights
        found.append(present)
    return torch.cat(found, -2)


class Perceptron(PyroModule):
    """One hidden layer of tanh units."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = PyroModule[torch.nn.Linear](inputs, hidden)
        self.second = PyroModule[torch.nn.Linear](hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(torch.tanh(self.first(x)))
        return found


class Forecaster(PyroModule):
    """Bayesian forecaster.

    Parameters
    ----------
    problem : Problem
    sizes : Sizes
    temperature : float
        The log likelihood, Normal with standard deviation 1, is divided by it.
    """

    def __init__(self, problem: Problem, sizes: Sizes, temperature: float) -> None:
        super().__init__()
        self.num_rows, self.temperature = len(problem.x_train), temperature
        self.segment = problem.window // SEGMENTS
        self.steps = problem.horizon // self.segment
        filtering = torch.as_tensor(problem.invariant, dtype=torch.get_default_dtype())
        self.register_buffer("filter", filtering)
        window, horizon = problem.window, problem.horizon
        self.invariant_encoder = Perceptron(window, sizes.hidden, sizes.latent)
        self.koopman = PyroModule[torch.nn.Linear](sizes.latent, sizes.latent, bias=False)
        self.invariant_decoder = Perceptron(sizes.latent, sizes.hidden, horizon)
        self.variant_encoder = Perceptron(self.segment, sizes.local_hidden, sizes.local_latent)
        self.variant_decoder = Perceptron(sizes.local_latent, sizes.local_hidden, self.segment)
        make_bayesian(self, gain=1.0)

    def forecast(self, x: Tensor) -> Tensor:
        """Forecast (..., horizon, channels) for windows (..., window, channels)."""
        last = x[..., -1:, :]
        scale = (x.var(-2, correction=0, keepdim=True) + SMALL_VARIANCE).sqrt()
        standard = (x - last) / scale
        invariant = self.filter @ standard
        variant = (standard - invariant).mT
        latent = self.koopman(self.invariant_encoder(invariant.mT))
        segments = variant.reshape(*variant.shape[:-1], SEGMENTS, self.segment)
        later = local_dynamics(self.variant_encoder(segments), self.steps)
        local = self.variant_decoder(later).flatten(-2)
        return (self.invariant_decoder(latent) + local).mT * scale + last

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        forecast = self.forecast(x)
        if y is None:
            pyro.deterministic("prediction", forecast, event_dim=2)
            return
        rows = pyro.plate("rows", self.num_rows, subsample_size=len(x))
        with rows, poutine.scale(scale=1.0 / self.temperature):
            pyro.sample("y", dist.Normal(forecast, 1.0).to_event(2), obs=y)
