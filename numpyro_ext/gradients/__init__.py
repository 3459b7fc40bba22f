"""Estimators of the score: exact sweeps and minibatches."""

from numpyro_ext.density import Score, ScoreParts
from numpyro_ext.gradients.estimator import EstimatorState, Full, GradientEstimator, ScoreEstimate
from numpyro_ext.gradients.minibatch import BatchArguments, Minibatch, default_estimator
from numpyro_ext.gradients.noisy import Noisy
from numpyro_ext.gradients.reduced_variance import SAGA, SVRG, ControlVariate

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
