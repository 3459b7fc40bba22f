"""Model and arguments as a flat unconstrained log density; the only room that runs the model."""

from pyro_ext.density.check import Structure, check_model
from pyro_ext.density.layout import Data, DataPlate, Layout
from pyro_ext.density.log_density import LogDensity, Score, ScoreParts
from pyro_ext.density.outputs import Output

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
