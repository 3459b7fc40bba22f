"""What an engine may ask of a score estimator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from pyro_ext.target import Data, LogDensity, Score

EstimatorState = dict[str, Any]


class GradientEstimator(ABC):
    """An unbiased estimator of the score.

    The object holds settings only. What changes from step to step is a dictionary of tensors
    that the engine keeps and saves, so that one estimator object can serve several engines.
    """

    @abstractmethod
    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        """State before the first step.

        Raises
        ------
        ArgumentError
            The estimator does not fit the model.
        """

    @abstractmethod
    def estimate(
        self,
        target: LogDensity,
        state: EstimatorState,
        z: Tensor,
        data: Data,
        generator: torch.Generator,
    ) -> tuple[Score, EstimatorState]:
        """Score at particles z (P, D), all with the same rows, and the next state."""

    @abstractmethod
    def evaluations_per_step(self, target: LogDensity) -> float:
        """Cost of one estimate for one particle, in gradients over the full data."""
