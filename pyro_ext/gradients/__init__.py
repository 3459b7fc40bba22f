"""Score estimators: how an engine gets gradients of the log density, apart from its dynamics."""

from pyro_ext.density import Score, ScoreParts
from pyro_ext.gradients.batch_arguments import BatchArguments
from pyro_ext.gradients.control_variate import ControlVariate
from pyro_ext.gradients.default import default_estimator
from pyro_ext.gradients.estimator import EstimatorState, GradientEstimator, ScoreEstimate
from pyro_ext.gradients.full import Full
from pyro_ext.gradients.minibatch import Minibatch
from pyro_ext.gradients.noisy import Noisy
from pyro_ext.gradients.saga import SAGA
from pyro_ext.gradients.svrg import SVRG

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
