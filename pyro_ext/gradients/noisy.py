"""Scores with noise added, for studying how robust an engine is."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.gradients import noisy
from pyro_ext.density import Data, LogDensity
from pyro_ext.gradients.estimator import EstimatorState, GradientEstimator, ScoreEstimate


class Noisy(noisy.Noisy, GradientEstimator):
    def inner(self, target: LogDensity) -> GradientEstimator:
        # Imported late: the room's __init__ imports this module.
        from pyro_ext.gradients import default_estimator

        return default_estimator(target) if self.estimator is None else self.estimator

    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        return self.inner(target).init(target, data, generator)

    def estimate(
        self,
        target: LogDensity,
        state: EstimatorState,
        z: Float[Tensor, "P D"],
        data: Data,
        generator: torch.Generator,
    ) -> tuple[ScoreEstimate, EstimatorState]:
        found, state = self.inner(target).estimate(target, state, z, data, generator)
        score = found.score
        noise = target.noise_like(score, generator)
        # Whoever differentiates scores gets the derivative of the score itself: with noise that
        # follows the parameters the derivative would not be unbiased.
        size = score.detach().abs().amax(-1, keepdim=True)
        return found._replace(score=score + self.level * size * noise), state
