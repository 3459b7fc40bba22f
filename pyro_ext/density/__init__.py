"""Model and arguments as a flat unconstrained log density; the only room that runs the model."""

from ppl_ext.target.scores import Score, ScoreParts
from pyro_ext.density.layout import Data, Layout
from pyro_ext.density.log_density import LogDensity

__all__ = [
    "Data",
    "Layout",
    "LogDensity",
    "Score",
    "ScoreParts",
]
