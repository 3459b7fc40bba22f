"""The target layer: from a NumPyro program and its arguments to a flat log density."""

from numpyro_ext.target.check import check_model
from numpyro_ext.target.layout import Data, DataPlate, Indices, Layout
from numpyro_ext.target.log_density import LogDensity, Score, ScoreParts
from numpyro_ext.target.outputs import Output

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
