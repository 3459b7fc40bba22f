"""The target layer: from a NumPyro program and its arguments to a flat log density."""

from numpyro_ext.density.check import check_model
from numpyro_ext.density.layout import Data, Indices, Layout
from numpyro_ext.density.log_density import LogDensity
from ppl_ext.target.scores import Score, ScoreParts

__all__ = [
    "Data",
    "Indices",
    "Layout",
    "LogDensity",
    "Score",
    "ScoreParts",
    "check_model",
]
