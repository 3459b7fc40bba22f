"""Exact scores: a chunked sweep over all rows, or the batch that the caller passed."""

from __future__ import annotations

from ppl_ext.gradients import estimator
from pyro_ext.gradients.estimator import GradientEstimator


class Full(estimator.Full, GradientEstimator):
    position_axes = ()
