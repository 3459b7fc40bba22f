"""Model and arguments as a flat unconstrained log density; the only room that runs the model."""

from pyro_ext.target.check import Structure, check_model
from pyro_ext.target.layout import Data, DataPlate, Layout
from pyro_ext.target.log_density import LogDensity, Score, ScoreParts
from pyro_ext.target.outputs import Output

__all__ = [
    "Data",
    "DataPlate",
    "Layout",
    "LogDensity",
    "Output",
    "Score",
    "ScoreParts",
    "Structure",
    "check_model",
]
