"""Training of a Pyro network by the host's SVI or by ProximalScoreVI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from numpy.typing import NDArray
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import init_to_value
from pyro.nn import PyroModule, PyroSample
from torch import Tensor

import pyro_ext as px
from benchmarks.hosts import falling_adam
from benchmarks.images.training import (
    INNER_STEPS,
    Array,
    Method,
    Schedule,
    in_chunks,
    make_guide,
    spread_seed,
)

BACKEND = "Pyro"
#: Rows that are predicted at once.
CHUNK = 2000


def release_programs() -> None:
    """Nothing is kept between trainings."""


def make_bayesian(module: PyroModule, gain: float) -> None:
    """Give every linear layer Normal(0, gain / inputs) weights and biases, in place."""
    for layer in module.modules():
        if not isinstance(layer, torch.nn.Linear):
            continue
        for name, value in list(layer.named_parameters(recurse=False)):
            scale = (gain / layer.in_features) ** 0.5
            prior = dist.Normal(torch.zeros(value.shape), scale).to_event(value.dim())
            setattr(layer, name, PyroSample(prior))


class PyroTrainer:
    """See :class:`~benchmarks.images.training.Trainer`; arguments as of ``NumPyroTrainer``."""

    def __init__(
        self,
        model: Callable[..., Any],
        method: Method,
        x: Array,
        y: Array,
        schedule: Schedule,
        rate: float | None,
        seed: int,
    ) -> None:
        self.model = model
        self.draws = 1 if method.guide == "point" else schedule.draws
        self._x, self._y = _tensor(x), _tensor(y)
        first = self._x[: schedule.batch_size], self._y[: schedule.batch_size]
        pyro.clear_param_store()
        pyro.set_rng_seed(spread_seed(seed, 2))
        values = Predictive(model, num_samples=1)(self._x[:1])
        values = {name: value[0] for name, value in values.items() if name != "prediction"}
        start = init_to_value(values=values)
        self.guide = make_guide("pyro", model, method, start, schedule.init_scale)
        self.guide(*first)
        pyro.set_rng_seed(spread_seed(seed, 3))
        self._step: Callable[[Tensor, Tensor], Any]
        self._every = 2 if method.engine == "closed form" else 1
        if method.engine == "svi":
            optim = falling_adam("pyro", rate, schedule.steps)
            svi = SVI(model, self.guide, optim, Trace_ELBO())

            def step(x: Tensor, y: Tensor) -> None:
                svi.step(x, y)
                optim.step()

            self._step = step
        else:
            solver: Any = None
            if method.engine == "gradient":
                optim = falling_adam("pyro", rate, schedule.steps * INNER_STEPS)
                solver = px.GradientSteps(optim, num_samples=1, num_inner_steps=INNER_STEPS)
            engine = px.ProximalScoreVI(
                model,
                self.guide,
                solver=solver,
                total_steps=schedule.steps // self._every,
                on_nonfinite="skip",
                seed=spread_seed(seed, 3),
            )
            engine.setup(*first)
            self._step = engine.step
        self.num_weights = sum(int(value.numel()) for value in values.values())
        self._kept = self._state()

    def advance(self, rows: NDArray[np.int64]) -> None:
        """Take the steps of a method for these lines of ``rows``."""
        for chosen in torch.as_tensor(rows[:: self._every]):
            self._step(self._x[chosen], self._y[chosen])

    def predict(self, x: Array, seed: int) -> Array:
        """Predictions (draws, n, ...), the same draws for all rows."""
        before = pyro.util.get_rng_state()
        pieces = []
        with torch.no_grad():
            for piece in in_chunks(_tensor(x), CHUNK):
                # Every piece is predicted from the same draws.
                pyro.set_rng_seed(spread_seed(seed, 4))
                predictive = Predictive(
                    self.model,
                    guide=self.guide,
                    num_samples=self.draws,
                    return_sites=["prediction"],
                )
                found = predictive(piece)["prediction"]
                pieces.append(found.reshape(self.draws, *found.shape[-(piece.dim()) :]).numpy())
        pyro.util.set_rng_state(before)
        return np.concatenate(pieces, axis=1)

    def keep(self) -> None:
        """Remember the present guide."""
        self._kept = self._state()

    def restore(self) -> None:
        """Go back to the guide that was remembered last."""
        self.guide.load_state_dict(self._kept)

    def _state(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.guide.state_dict().items()}


def _tensor(array: Any) -> Tensor:
    tensor = torch.as_tensor(array)
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor
