"""Score estimators: how an engine gets gradients of the log density, apart from its dynamics."""

from pyro_ext.gradients.estimator import GradientEstimator, default_estimator
from pyro_ext.gradients.full import Full
from pyro_ext.gradients.minibatch import Minibatch
from pyro_ext.target import Score, ScoreParts

__all__ = ["Full", "GradientEstimator", "Minibatch", "Score", "ScoreParts", "default_estimator"]
