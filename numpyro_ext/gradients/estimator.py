"""What an estimator of the score is: a frozen configuration with a pure ``init`` and
``estimate``, whose state is a pytree that travels with the engine's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from jax import Array

from numpyro_ext.target import Data, LogDensity, Score, ScoreParts

EstimatorState = Any


class GradientEstimator(ABC):
    """An unbiased estimator of the target's score.

    Subclasses are frozen configurations: everything that changes lives in the state.
    """

    @abstractmethod
    def init(
        self, target: LogDensity, data: Data, rng_key: Array, num_positions: int
    ) -> EstimatorState:
        """State before the first step, for estimates at so many positions at once.

        Raises
        ------
        ArgumentError
            The estimator does not fit the model.
        """

    @abstractmethod
    def estimate(
        self, target: LogDensity, state: EstimatorState, z: Array, data: Data
    ) -> tuple[Score, EstimatorState]:
        """Score at positions (P, D), and the next state. Every position shares one batch."""

    @abstractmethod
    def evaluations_per_step(self, target: LogDensity) -> float:
        """Cost of one estimate per position, in full-data gradients (B/N for a minibatch)."""


__all__ = ["EstimatorState", "GradientEstimator", "Score", "ScoreParts"]
