"""Estimators of the score: exact sweeps and minibatches."""

from numpyro_ext.density import Score, ScoreParts
from numpyro_ext.gradients.batch_arguments import BatchArguments
from numpyro_ext.gradients.control_variate import ControlVariate
from numpyro_ext.gradients.default import default_estimator
from numpyro_ext.gradients.estimator import EstimatorState, GradientEstimator, ScoreEstimate
from numpyro_ext.gradients.full import Full
from numpyro_ext.gradients.minibatch import Minibatch
from numpyro_ext.gradients.noisy import Noisy
from numpyro_ext.gradients.saga import SAGA
from numpyro_ext.gradients.svrg import SVRG

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
