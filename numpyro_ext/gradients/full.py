"""Exact scores: a chunked sweep over all rows, or the batch that the caller passed."""

from __future__ import annotations

from numpyro_ext.gradients.estimator import GradientEstimator
from ppl_ext.gradients import estimator


class Full(estimator.Full, GradientEstimator):
    pass
