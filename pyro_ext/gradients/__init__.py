"""Score estimators: how an engine gets gradients of the log density, apart from its dynamics."""

from pyro_ext.density import Score, ScoreParts
from pyro_ext.gradients.estimator import EstimatorState, Full, GradientEstimator, ScoreEstimate
from pyro_ext.gradients.minibatch import BatchArguments, Minibatch, default_estimator
from pyro_ext.gradients.noisy import Noisy
from pyro_ext.gradients.reduced_variance import SAGA, SVRG, ControlVariate

__all__ = [
    "SAGA",
    "SVRG",
    "BatchArguments",
    "ControlVariate",
    "EstimatorState",
    "Full",
    "GradientEstimator",
    "Minibatch",
    "Noisy",
    "Score",
    "ScoreEstimate",
    "ScoreParts",
    "default_estimator",
]
