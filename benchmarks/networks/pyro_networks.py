"""Networks and their fits in Pyro."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.infer.autoguide.initialization import init_to_sample
from torch import nn

from benchmarks.hosts import falling_adam
from benchmarks.images.lenet import CHANNELS, CLASSES, UNITS
from benchmarks.networks import horseshoe
from benchmarks.networks.horseshoe import INPUTS, NOISE, RELEVANT, start
from benchmarks.networks.linearized import BATCH, HIDDEN
from pyro_ext import (
    LaplaceGGN,
    ProximalScoreVI,
    predictive_distribution,
    predictive_metrics,
    priors,
    random_module,
)


def table(
    x: Any, y: Any, x_test: Any, y_test: Any, steps: int, draws: int, every: int, seed: int
) -> dict[str, Any]:
    """Predictions of a regression network; see :mod:`benchmarks.networks.linearized`.

    ``every`` is 0 where nothing is found from the marginal likelihood.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return _table(x, y, x_test, y_test, steps, draws, every, seed)
    finally:
        torch.set_default_dtype(before)


def _table(
    x: Any, y: Any, x_test: Any, y_test: Any, steps: int, draws: int, every: int, seed: int
) -> dict[str, Any]:
    module = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def regression(x: Any, y: Any = None) -> None:
        scale = 1.0
        if every:
            scale = pyro.sample("prior_scale", dist.LogNormal(torch.tensor(0.0), 1.0))
        noise = pyro.sample("noise", dist.LogNormal(torch.tensor(-1.0), 1.0))
        net = random_module("net", module, priors.ScaledNormal(scale))
        with pyro.plate("rows", len(x), subsample_size=min(BATCH, len(x))) as rows:
            observed = None if y is None else y[rows]
            pyro.sample("y", dist.Normal(net(x[rows])[:, 0], noise), obs=observed)

    engine = LaplaceGGN(
        regression,
        falling_adam("pyro", 0.01, steps),
        hyperparameters=["prior_scale", "noise"] if every else None,
        hyperparameters_every=every or 1,
        init_strategy=init_to_sample,
        seed=seed,
    )
    return fitted(engine, regression, (x, y), (x_test, y_test), steps, draws)


class LeNet(nn.Module):
    """Two convolutions and three linear layers with ReLU units, for images of 28 x 28 pixels."""

    def __init__(self) -> None:
        super().__init__()
        first, second = CHANNELS
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, first, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.dense = nn.Sequential(
            nn.Linear(25 * second, UNITS[0]),
            nn.ReLU(),
            nn.Linear(*UNITS),
            nn.ReLU(),
            nn.Linear(UNITS[1], CLASSES),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, classes) of images (n, height, width)."""
        return torch.as_tensor(self.dense(self.convolutions(x[:, None]).flatten(1)))


def images(
    x: Any, y: Any, x_test: Any, y_test: Any, steps: int, draws: int, scale: float, seed: int = 0
) -> dict[str, Any]:
    """Predictions of LeNet with a prior of this scale."""
    module = LeNet()

    def classes(x: Any, y: Any = None) -> None:
        net = random_module("net", module, priors.ScaledNormal(scale))
        with pyro.plate("images", len(x), subsample_size=min(64, len(x))) as rows:
            observed = None if y is None else y[rows]
            pyro.sample("y", dist.Categorical(logits=net(x[rows])), obs=observed)

    engine = LaplaceGGN(
        classes,
        falling_adam("pyro", 0.002, steps),
        curvature="kfac",
        init_strategy=init_to_sample,
        data_chunk=64,
        seed=seed,
    )
    return fitted(engine, classes, (x, y), (x_test, y_test), steps, draws, data_chunk=200)


def sparse(x: Any, y: Any, x_test: Any, y_test: Any, steps: int, seed: int) -> tuple[Any, Any]:
    """Scales of the inputs in draws (S, inputs), and figures of the predictions."""
    sizes = ((INPUTS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 1))
    first, second, last = (nn.Linear(*size) for size in sizes)
    module = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)
    scale = priors.global_scale(RELEVANT, INPUTS, len(x), NOISE)
    prior = {"0.weight": priors.Horseshoe(scale), "*": priors.ScaledNormal()}

    def regression(x: Any, y: Any = None) -> None:
        net = random_module("net", module, prior)
        noise = pyro.sample("noise", dist.LogNormal(torch.tensor(-1.0), 1.0))
        batch = min(horseshoe.BATCH, len(x))
        with pyro.plate("rows", len(x), subsample_size=batch) as rows:
            observed = None if y is None else y[rows]
            pyro.sample("y", dist.Normal(net(x[rows])[:, 0], noise), obs=observed)

    engine = ProximalScoreVI(regression, AutoDiagonalNormal, solver="gradient", seed=seed)
    layers = {f"net.{layer}.weight": True for layer in (0, 2, 4)}
    begin = {name: torch.from_numpy(value) for name, value in start(seed, scale, layers).items()}
    engine.run(steps, torch.from_numpy(x), torch.from_numpy(y), start=begin, progress_bar=False)
    draws = engine.get_samples(200)
    held_out = torch.from_numpy(x_test), torch.from_numpy(y_test)
    metrics = predictive_metrics(predictive_distribution(regression, draws, *held_out))
    return priors.group_scales(draws, "net.0.weight"), metrics


def fitted(
    engine: LaplaceGGN,
    model: Callable[..., None],
    rows: tuple[Any, ...],
    test: tuple[Any, ...],
    steps: int,
    draws: int,
    **chunks: Any,
) -> dict[str, Any]:
    """The three predictions of an engine after its run."""
    engine.run(steps, *map(torch.from_numpy, map(np.ascontiguousarray, rows)), progress_bar=False)
    held_out = tuple(map(torch.from_numpy, map(np.ascontiguousarray, test)))
    at = engine.mode()
    mode = {name: value[None] for name, value in at.items()}
    # The same draws for both.
    drawn = engine.get_samples(draws)
    return {
        "mode": predictive_distribution(model, mode, *held_out, **chunks),
        "all weights": predictive_distribution(model, drawn, *held_out, **chunks),
        "linearised": predictive_distribution(model, drawn, *held_out, linearize=at, **chunks),
    }
