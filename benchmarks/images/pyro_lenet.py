"""LeNet in Pyro, by PyroModule, and its particles in training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from numpy.typing import NDArray
from pyro.infer import Predictive
from pyro.nn import PyroModule, PyroSample
from torch import Tensor
from torch.nn.functional import max_pool2d

import pyro_ext as px
from benchmarks.hosts import falling_adam
from benchmarks.images.lenet import (
    CHANNELS,
    CLASSES,
    PRIOR_SCALE,
    UNITS,
    Method,
    Plan,
)
from benchmarks.images.pyro_training import release_programs
from benchmarks.images.training import Array, in_chunks, spread_seed
from pyro_ext.stein import curvature_kernel

BACKEND = "Pyro"
#: Images that are predicted at once.
CHUNK = 500
LAST_LAYER = ("output.weight", "output.bias")
release = release_programs


def device() -> torch.device:
    """An accelerator where torch finds one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class LeNet(PyroModule):
    """Bayesian LeNet: ``model(x, y)`` draws its own minibatch, ``model(x)`` predicts.

    Two convolutions and three linear layers with ReLU units; images are (n, 28, 28). Weights and
    biases are Normal(0, PRIOR_SCALE^2).
    """

    def __init__(self, num_rows: int, batch_size: int) -> None:
        super().__init__()
        self.num_rows, self.batch_size = num_rows, batch_size
        first, second = CHANNELS
        self.convolution1 = PyroModule[torch.nn.Conv2d](1, first, 5, padding=2)
        self.convolution2 = PyroModule[torch.nn.Conv2d](first, second, 5)
        self.dense1 = PyroModule[torch.nn.Linear](25 * second, UNITS[0])
        self.dense2 = PyroModule[torch.nn.Linear](*UNITS)
        self.output = PyroModule[torch.nn.Linear](UNITS[1], CLASSES)
        for layer in list(self.children()):
            for name, value in list(layer.named_parameters(recurse=False)):
                zeros = torch.zeros(value.shape, device=device())
                setattr(
                    layer, name, PyroSample(dist.Normal(zeros, PRIOR_SCALE).to_event(value.dim()))
                )

    def network(self, x: Tensor) -> Tensor:
        """Logits (n, classes)."""
        x = max_pool2d(torch.relu(self.convolution1(x[:, None])), 2)
        x = max_pool2d(torch.relu(self.convolution2(x)), 2)
        x = torch.relu(self.dense1(x.flatten(1)))
        x = torch.relu(self.dense2(x))
        return torch.as_tensor(self.output(x))

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        if y is None:
            pyro.deterministic("prediction", self.network(x), event_dim=1)
            return
        plate = pyro.plate("images", self.num_rows, subsample_size=self.batch_size)
        rows = plate.indices.to(x.device)
        logits = self.network(x[rows])
        with plate:
            pyro.sample("y", dist.Categorical(logits=logits), obs=y[rows])


def start(site: dict[str, Any]) -> Tensor:
    """Weights of variance 1 / inputs of a unit, biases 0."""
    shape = site["fn"].shape()
    if site["name"].endswith("bias"):
        return torch.zeros(shape, device=device())
    return torch.randn(shape, device=device()) * math.prod(shape[1:]) ** -0.5


def make_engine(
    model: Callable[..., Any], method: Method, plan: Plan, rate: float, seed: int
) -> Any:
    """The engine of a method; ``rate`` is Adam's, or the share of Newton's move at the start."""

    def falling(size: float) -> Callable[[int], float]:
        return lambda step: size * 0.5 * (1.0 + math.cos(math.pi * min(step / plan.steps, 1.0)))

    options: dict[str, Any] = {
        "num_particles": plan.particles,
        "init_strategy": start,
        "seed": spread_seed(seed, 3),
    }
    optim = falling_adam("pyro", rate, plan.steps)
    if method.engine == "SVN":
        taken: dict[str, Any] = {"optim": optim} if method.adam else {"step_size": falling(rate)}
        return px.SVN(
            model,
            **taken,
            kernel=curvature_kernel(),  # of the full system, as published
            **method.newton_options(plan.curvature_every),
            **options,
        )
    if method.engine == "LL-SVN":
        return px.SVN(
            model,
            optim,
            step_size=falling(plan.newton_share),
            kernel=curvature_kernel(),  # of the full system, as published
            **method.newton_options(sites=LAST_LAYER),
            **options,
        )
    engines: dict[str, Any] = {"DeepEnsemble": px.DeepEnsemble, "WGD": px.WGD, "SVGD": px.SVGD}
    return engines[method.engine](model, optim, **options)


class Trainer:
    """See :class:`~benchmarks.images.lenet.Trainer`."""

    def __init__(
        self, method: Method, x: Array, y: Array, plan: Plan, rate: float, seed: int
    ) -> None:
        self._model = LeNet(len(x), plan.batch_size)
        self._data = torch.as_tensor(x, device=device()), torch.as_tensor(y, device=device())
        pyro.set_rng_seed(spread_seed(seed, 2))
        self._engine = make_engine(self._model, method, plan, rate, seed)
        self._engine.setup(*self._data)
        self.num_weights = self._engine.particles.shape[1]
        self._kept = self._draws()

    def _draws(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self._engine.get_samples().items()}

    def advance(self, steps: int) -> dict[str, NDArray[Any]]:
        """Take so many steps."""
        found = self._engine.run(steps, *self._data, progress_bar=False).info
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return dict(found)

    def predict(self, x: Array) -> Array:
        """Logits (particles, n, classes) of the present particles."""
        return self._logits(self._draws(), x)

    def predict_kept(self, x: Array) -> Array:
        """The same by the particles that were kept last."""
        return self._logits(self._kept, x)

    def _logits(self, draws: dict[str, Tensor], x: Array) -> Array:
        predictive = Predictive(self._model, posterior_samples=draws, return_sites=["prediction"])
        pieces = []
        with torch.no_grad():
            for piece in in_chunks(torch.as_tensor(x), CHUNK):
                found = predictive(piece.to(device()))["prediction"]
                pieces.append(found.reshape(-1, len(piece), CLASSES).cpu().numpy())
        return np.concatenate(pieces, axis=1)

    def keep(self) -> None:
        """Remember the present particles."""
        self._kept = self._draws()
