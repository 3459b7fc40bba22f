"""The estimator of an engine that was given none."""

from __future__ import annotations

from pyro_ext.density import LogDensity
from pyro_ext.gradients.estimator import GradientEstimator
from pyro_ext.gradients.full import Full
from pyro_ext.gradients.minibatch import Minibatch


def default_estimator(target: LogDensity) -> GradientEstimator:
    """Minibatches when the model subsamples a plate itself, else the full data as given."""
    return Minibatch() if target.plates else Full()
