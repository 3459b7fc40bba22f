"""Exact scores: a chunked sweep over all rows, or the batch that the caller passed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_ext.density import Data, LogDensity
from pyro_ext.gradients.estimator import EstimatorState, GradientEstimator, ScoreEstimate


@dataclass(frozen=True)
class Full(GradientEstimator):
    """The score over all rows of the model's plates.

    When batches are passed as arguments, the batch that was passed is all there is, and its
    score is as noisy as the batch.
    """

    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        return {}

    def estimate(
        self,
        target: LogDensity,
        state: EstimatorState,
        z: Tensor,
        data: Data,
        generator: torch.Generator,
    ) -> tuple[ScoreEstimate, EstimatorState]:
        return ScoreEstimate(*target.full_score(z, data), indices=None), state

    def with_own_rows(self, target: LogDensity) -> Full:
        """The estimator itself: every position sees every row."""
        return self

    def evaluations_per_step(self, target: LogDensity) -> float:
        return target.batch_fraction if target.batch_plates else 1.0
