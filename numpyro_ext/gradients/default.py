"""The estimator of an engine that was given none."""

from __future__ import annotations

from numpyro_ext.density import LogDensity
from numpyro_ext.gradients.estimator import GradientEstimator
from numpyro_ext.gradients.full import Full
from numpyro_ext.gradients.minibatch import Minibatch


def default_estimator(target: LogDensity) -> GradientEstimator:
    """Minibatches where the model leaves its rows to the engine, else the full score."""
    return Minibatch() if target.plates and not target.batch_arguments else Full()
