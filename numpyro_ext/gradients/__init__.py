"""Estimators of the score: exact sweeps and minibatches."""

from numpyro_ext.density import LogDensity, Score, ScoreParts
from numpyro_ext.gradients.batch_arguments import BatchArguments
from numpyro_ext.gradients.control_variate import ControlVariate
from numpyro_ext.gradients.estimator import EstimatorState, GradientEstimator, ScoreEstimate
from numpyro_ext.gradients.full import Full
from numpyro_ext.gradients.minibatch import Minibatch
from numpyro_ext.gradients.noisy import Noisy
from numpyro_ext.gradients.saga import SAGA
from numpyro_ext.gradients.svrg import SVRG


def default_estimator(target: LogDensity) -> GradientEstimator:
    """Minibatches where the model leaves its rows to the engine, else the full score."""
    return Minibatch() if target.plates and not target.batch_arguments else Full()


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
