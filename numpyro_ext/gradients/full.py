"""The exact score over all rows, by a chunked sweep."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jax import Array

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.gradients.estimator import EstimatorState, GradientEstimator, ScoreEstimate


@dataclass(frozen=True)
class Full(GradientEstimator):
    """Exact score. With batches passed as arguments, the score of the batch as it is."""

    def init(
        self, target: LogDensity, data: Data, rng_key: Array, num_positions: int
    ) -> EstimatorState:
        """No state."""
        return {}

    def estimate(
        self, target: LogDensity, state: EstimatorState, z: Array, data: Data
    ) -> tuple[ScoreEstimate, EstimatorState]:
        """Score at positions (P, D) over every row."""
        return ScoreEstimate(*target.full_score(z, data), indices=None), state

    def with_own_rows(self, target: LogDensity) -> Full:
        """The estimator itself: every position sees every row."""
        return self

    def evaluations_per_step(self, target: LogDensity) -> float:
        """One full-data gradient; for batches as arguments, the share of rows they hold."""
        return math.prod(
            plate.subsample_size / plate.size for plate in target.batch_plates.values()
        )
