"""Runs with Pyro."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.optim import SGD, PyroOptim
from torch import Tensor

import pyro_ext as px
from benchmarks.logistic.training import (
    ANCHOR_EVERY,
    DECAY,
    PARTICLES,
    PRIOR,
    Floats,
    Method,
    Task,
)


def program(task: Task, point: bool) -> Callable[[Tensor, Tensor], None]:
    """The regression; without a prior for the point estimate."""
    num_rows, num_features = task.x.shape

    def model(x: Tensor, y: Tensor) -> None:
        if point:
            prior = dist.Normal(torch.zeros(num_features), 1.0).mask(False)
        else:
            precision = pyro.sample("precision", dist.Gamma(*PRIOR))
            prior = dist.Normal(torch.zeros(num_features), precision.rsqrt())
        weights = pyro.sample("weights", prior.to_event(1))
        with pyro.plate("rows", num_rows, subsample_size=task.batch) as rows:
            pyro.sample("y", dist.Bernoulli(logits=x[rows] @ weights), obs=y[rows])

    return model


class _ResetSVGD(px.SVGD):
    """SVGD whose optimizer starts anew every ``ANCHOR_EVERY`` steps."""

    def _update(self, data: Any) -> Any:
        if self.num_steps_taken and self.num_steps_taken % ANCHOR_EVERY == 0:
            self._start_optimizer()
        return super()._update(data)


class PyroTrainer:
    """A run in progress; see :class:`~benchmarks.logistic.training.Trainer`."""

    def __init__(self, task: Task, method: Method, rate: float, seed: int) -> None:
        self._data = (
            torch.tensor(task.x, dtype=torch.float32),
            torch.tensor(task.y, dtype=torch.float32),
        )
        sampling = "cyclic" if task.ordered else "reshuffle"
        estimator: Any = (
            px.SVRG(ANCHOR_EVERY, sampling) if method.reduced else px.Minibatch(sampling)
        )
        if method.point:
            optim = SGD({"lr": rate / len(task.x)})
        else:
            settings = {"lr": rate, "alpha": DECAY, "eps": 1e-6}
            optim = PyroOptim(torch.optim.RMSprop, settings)
        engine = _ResetSVGD if method.reset else px.SVGD
        self._engine = engine(
            program(task, method.point),
            optim,
            px.RBF("dartml"),
            1 if method.point else PARTICLES,
            estimator=estimator,
            seed=seed,
        )
        self._engine.setup(*self._data)

    def advance(self, steps: int) -> None:
        """Take so many steps."""
        if steps == 1:
            self._engine.step(*self._data)
        else:
            self._engine.run(steps, *self._data, progress_bar=False)

    def weights(self) -> Floats:
        """Weights of the particles, (P, D)."""
        found: Floats = self._engine.get_samples()["weights"].double().numpy()
        return found

    def variance_ratio(self, batches: int) -> float:
        """See :class:`~benchmarks.logistic.training.Trainer`."""
        engine = self._engine
        target, data = engine.target, engine.data
        anchor = engine._estimator_state["anchor"]
        generator = torch.Generator().manual_seed(1)
        rows, batch = next((p.size, p.subsample_size) for p in target.plates.values())
        plain, reduced = [], []
        for _ in range(batches):
            drawn = torch.randint(rows, (batch,), generator=generator)
            indices = dict.fromkeys(target.plates, drawn)
            score = target.score(engine.particles, data, indices).score
            plain.append(score)
            reduced.append(score - target.score(anchor, data, indices).score)
        norms = [torch.stack(scores).var(dim=0).sum().sqrt() for scores in (plain, reduced)]
        return float(norms[1] / norms[0])
