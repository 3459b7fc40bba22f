"""Functions of one position as traced graphs for many: a room that knows nothing of programs."""

from pyro_ext.graphs.arguments import OWN_ROWS, Inputs, as_arguments
from pyro_ext.graphs.lifting import MAX_GRAPHS, BatchedFunction
from pyro_ext.graphs.lifting import BatchedFunction as lift
from pyro_ext.graphs.shortened import MANY_SITES, Shortened

__all__ = [
    "MANY_SITES",
    "MAX_GRAPHS",
    "OWN_ROWS",
    "BatchedFunction",
    "Inputs",
    "Shortened",
    "as_arguments",
    "lift",
]
