"""Model and arguments as a flat unconstrained log density; the only room that runs the model."""

from ppl_ext.target.scores import Score, ScoreParts
from pyro_ext.density.check import check_model
from pyro_ext.density.first_run import Structure
from pyro_ext.density.layout import Data, DataPlate, Indices, Layout
from pyro_ext.density.log_density import LogDensity
from pyro_ext.density.outputs import Output

__all__ = [
    "Data",
    "DataPlate",
    "Indices",
    "Layout",
    "LogDensity",
    "Output",
    "Score",
    "ScoreParts",
    "Structure",
    "check_model",
]
