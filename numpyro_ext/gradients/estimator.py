"""What an estimator of the score is: a frozen configuration with a pure ``init`` and
``estimate``, whose state is a pytree that travels with the engine's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from jax import Array

from numpyro_ext.target import Data, Indices, LogDensity, Score, ScoreParts

EstimatorState = Any


class ScoreEstimate(NamedTuple):
    """Score and value of the target at P positions, and the rows that they come from.

    Parameters
    ----------
    score : array (P, D)
        Estimate of the gradient of log prior + log likelihood / temperature.
    log_prior, log_likelihood : array (P,)
        The two parts, not tempered.
    indices : dict of str to array or None
        Rows of each subsampled plate that the estimate has seen; None for all rows.
    """

    score: Array
    log_prior: Array
    log_likelihood: Array
    indices: Indices | None


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
    ) -> tuple[ScoreEstimate, EstimatorState]:
        """Score at positions (P, D), and the next state. Every position shares one batch."""

    @abstractmethod
    def evaluations_per_step(self, target: LogDensity) -> float:
        """Cost of one estimate per position, in full-data gradients (B/N for a minibatch)."""


__all__ = ["EstimatorState", "GradientEstimator", "Score", "ScoreEstimate", "ScoreParts"]
