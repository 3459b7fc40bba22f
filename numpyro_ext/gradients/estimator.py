"""What an engine may ask of a score estimator, and the one of exact scores.

More of it in :mod:`ppl_ext.gradients.estimator`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from jax import Array
from jaxtyping import Float

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.batches import place
from numpyro_ext.gradients.full_data import exact_score, num_rows
from ppl_ext.gradients import estimator
from ppl_ext.gradients.estimator import ScoreEstimate, corrected

EstimatorState = Any


class GradientEstimator(estimator.GradientEstimator):
    _num_rows = staticmethod(num_rows)
    _exact_score = staticmethod(exact_score)
    _place = staticmethod(place)

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

    def check(self, state: EstimatorState) -> None:
        """See that the values in a state of :meth:`init` will do; nothing is traced here.

        Raises
        ------
        ArgumentError
            They will not.
        """
        return

    @abstractmethod
    def estimate(
        self, target: LogDensity, state: EstimatorState, z: Float[Array, "P D"], data: Data
    ) -> tuple[ScoreEstimate, EstimatorState]: ...


GradientEstimator._base = GradientEstimator


class Full(estimator.Full, GradientEstimator): ...


__all__ = ["EstimatorState", "GradientEstimator", "ScoreEstimate", "corrected"]
