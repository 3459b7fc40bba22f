"""What an engine may ask of a score estimator, and the one of exact scores.

More of it in :mod:`ppl_ext.gradients.estimator`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.gradients import estimator
from ppl_ext.gradients.estimator import ScoreEstimate, corrected
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.arguments import placing
from pyro_ext.gradients.full_data import exact_score, num_rows

EstimatorState = dict[str, Any]


class GradientEstimator(estimator.GradientEstimator):
    _num_rows = staticmethod(num_rows)
    _exact_score = staticmethod(exact_score)
    _place = staticmethod(lambda leaf: placing(None)(leaf))

    @abstractmethod
    def init(
        self, target: LogDensity, data: Data, generator: torch.Generator
    ) -> EstimatorState: ...

    @abstractmethod
    def estimate(
        self,
        target: LogDensity,
        state: EstimatorState,
        z: Float[Tensor, "P D"],
        data: Data,
        generator: torch.Generator,
    ) -> tuple[ScoreEstimate, EstimatorState]: ...


GradientEstimator._base = GradientEstimator


class Full(estimator.Full, GradientEstimator):
    position_axes = ()


__all__ = ["EstimatorState", "Full", "GradientEstimator", "ScoreEstimate", "corrected"]
