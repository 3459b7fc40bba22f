"""The networks in Pyro, and their fits by `pyro_ext`."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_ext as px

HIDDEN, PARTICLES, RATE = 30, 20, 0.05


def _network(x: Tensor, outputs: int) -> Tensor:
    """Outputs (n, outputs) of one hidden layer with Normal weights, scaled by the fan-in."""
    features = x.shape[1]
    spread = (features**-0.5, 1.0, HIDDEN**-0.5, 1.0)
    shapes = ([features, HIDDEN], [HIDDEN], [HIDDEN, outputs], [outputs])
    w1, b1, w2, b2 = (
        pyro.sample(name, dist.Normal(0.0, 2.0 * scale).expand(shape).to_event(len(shape)))
        for name, scale, shape in zip(("w1", "b1", "w2", "b2"), spread, shapes, strict=True)
    )
    return torch.tanh(x @ w1 + b1) @ w2 + b2


def curve(x: Tensor, y: Tensor | None = None) -> None:
    """A number for each row, with Normal noise of unknown size."""
    mean = _network(x, 1)[:, 0]
    noise = pyro.sample("noise", dist.LogNormal(-1.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(mean, noise), obs=y)


def digits(x: Tensor, y: Tensor | None = None) -> None:
    """One of eight classes for each row."""
    logits = _network(x, 8)
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Categorical(logits=logits), obs=y)


PROGRAMS = {"curve": curve, "digits": digits}


def fit(program: str, engine: str, x: Any, y: Any, steps: int) -> Any:
    """Draws of the weights, from particles of an engine."""
    optim = pyro.optim.CosineAnnealingLR(
        {"optimizer": torch.optim.Adam, "optim_args": {"lr": RATE}, "T_max": steps}
    )
    made = getattr(px, engine)(PROGRAMS[program], optim, num_particles=PARTICLES, seed=0)
    made.run(steps, _tensor(x), _tensor(y), progress_bar=False)
    return made.get_samples()


def predict(program: str, draws: Any, x: Any, y: Any = None) -> Any:
    """Predictive distributions of rows."""
    observed = None if y is None else _tensor(y)
    return px.predictive_distribution(PROGRAMS[program], draws, _tensor(x), observed)


def _tensor(values: Any) -> Tensor:
    tensor = torch.as_tensor(values)
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor
