"""Fits of guides without a density, without arrays: ``SteinDiscrepancyVI``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ppl_ext.engines.base import EngineShell
from ppl_ext.engines.descent import draws_to_look_at, set_descent, warn_of_squared_noise
from ppl_ext.errors import ArgumentError
from ppl_ext.implicit.samplers import PushForward, Sampler
from ppl_ext.options import check_number, described

#: Draws per step, and the learning rate of the default optimizer at the start of a run.
NUM_SAMPLES, LEARNING_RATE = 100, 5e-3
#: Limit on the length of the gradient: scores far out are rare and long.
CLIP_NORM = 10.0
LENGTHS = (0.3, 1.0)


class SteinDiscrepancyVI(EngineShell):
    """A guide without a density: draws of a sampler, fitted by the kernelised Stein discrepancy.

    Each package's ``SteinDiscrepancyVI`` has the whole text.
    """

    allow_local_latents = False
    makes_draws = True
    _draws_to_look_at = draws_to_look_at
    num_samples: Any
    clip_norm: float | None
    total_steps: int | None
    #: What the engine uses of an optimizer that was given, checked.
    _host_optimizer: ClassVar[Any]

    def __init__(
        self,
        model: Callable[..., Any],
        sampler: Sampler | None = None,
        optim: Any = None,
        num_samples: int = NUM_SAMPLES,
        lengths: Sequence[float] = LENGTHS,
        *,
        clip_norm: float | None = CLIP_NORM,
        total_steps: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        set_descent(self, optim, num_samples, clip_norm, total_steps)
        self.sampler = PushForward() if sampler is None else sampler
        Sampler.check(self.sampler)
        if num_samples is None or num_samples < 2:
            raise ArgumentError(
                f"Expected num_samples to be an int >= 2, found {num_samples}: the objective is of "
                "pairs of draws."
            )
        if not isinstance(lengths, Sequence) or not lengths:
            raise ArgumentError(
                f"Expected lengths to be numbers, such as (0.3, 1.0), found {described(lengths)}."
            )
        for length in lengths:
            check_number("a length of lengths", length)
        self.lengths = tuple(map(float, lengths))

    def _settings(self) -> dict[str, str]:
        return {
            "sampler": self.sampler.description,
            "lengths": repr(self.lengths),
            **super()._settings(),
        }

    def _checked(self, plan: Any, data: Any) -> Any:
        """Refuse estimators that have no derivative, and warn of noise that makes a bias."""
        if plan.estimator.memory_of(data) is not None:
            raise ArgumentError(
                "Expected an estimator whose scores can be differentiated, found "
                f"{type(plan.estimator).__name__}, which keeps scores. Use Full() or Minibatch()."
            )
        warn_of_squared_noise(self, plan)
        return plan
