"""Runs with Pyro."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from pyro.optim import SGD, CosineAnnealingLR, PyroOptim

import pyro_ext as px
from benchmarks.variance_reduction.methods import (
    DECAY,
    FUDGE,
    Arguments,
    Floats,
    Method,
    Schedule,
)


class _ResetSVGD(px.SVGD):
    """SVGD whose optimizer starts anew every ``reset_every`` steps."""

    reset_every = 0

    def _update(self, plan: Any, state: Any, data: Any) -> Any:
        if (
            self.reset_every
            and self.num_steps_taken
            and not self.num_steps_taken % self.reset_every
        ):
            # Its moments alone: the step size goes on falling.
            for optimizer in state.optimizer._optimizers:
                optimizer.state.clear()
        return super()._update(plan, state, data)


class PyroTrainer:
    """A run in progress; the arguments are those of ``NumPyroTrainer``."""

    def __init__(
        self,
        model: Callable[..., Any],
        data: Arguments,
        schedule: Schedule,
        method: Method,
        rate: float,
        seed: int,
        **options: Any,
    ) -> None:
        self._data = tuple(torch.tensor(array, dtype=torch.float32) for array in data)
        sampling: Literal["cyclic", "reshuffle"] = "cyclic" if schedule.ordered else "reshuffle"
        every = schedule.anchor_every
        estimator: Any = px.SVRG(every, sampling) if method.reduced else px.Minibatch(sampling)
        if method.point:
            optim = SGD({"lr": rate / schedule.rows})
        else:
            settings = {"lr": rate, "alpha": DECAY, "eps": FUDGE}
            optim = PyroOptim(torch.optim.RMSprop, settings)
            if schedule.falling_over:
                optim = CosineAnnealingLR(
                    {
                        "optimizer": torch.optim.RMSprop,
                        "optim_args": settings,
                        "T_max": schedule.falling_over,
                    }
                )
        self._engine = _ResetSVGD(
            model,
            optim,
            px.RBF("dartml"),
            1 if method.point else schedule.particles,
            estimator=estimator,
            seed=seed,
            **options,
        )
        self._engine.reset_every = every if method.reset else 0
        self._engine.setup(*self._data)

    def advance(self, steps: int) -> None:
        """Take so many steps."""
        if steps == 1:
            self._engine.step(*self._data)
        else:
            self._engine.run(steps, *self._data, progress_bar=False)

    def draws(self) -> dict[str, Floats]:
        """See :class:`~benchmarks.variance_reduction.methods.Trainer`."""
        samples = self._engine.get_samples()
        return {name: value.double().numpy() for name, value in samples.items()}

    def variance_ratio(self, batches: int) -> float:
        """See :class:`~benchmarks.variance_reduction.methods.Trainer`."""
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
