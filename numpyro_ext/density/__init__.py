"""The target layer: from a NumPyro program and its arguments to a flat log density."""

from numpyro_ext.density.check import check_model
from numpyro_ext.density.layout import Data, DataPlate, Indices, Layout
from numpyro_ext.density.log_density import LogDensity
from numpyro_ext.density.outputs import Output
from ppl_ext.target.scores import Score, ScoreParts

__all__ = [
    "Data",
    "DataPlate",
    "Indices",
    "Layout",
    "LogDensity",
    "Output",
    "Score",
    "ScoreParts",
    "check_model",
]
