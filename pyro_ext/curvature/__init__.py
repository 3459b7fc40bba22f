"""Curvature of programs: Fisher information of their outputs, and what is built on it."""

from ppl_ext.curvature.program_curvature import (
    GaussNewton,
    PriorStructure,
    Structure,
)
from pyro_ext.curvature.curvature import Curvature, KroneckerBlock
from pyro_ext.curvature.fisher import fisher_root, register_output_fisher
from pyro_ext.curvature.gauss_newton import (
    gauss_newton_products,
    jacobian_rows,
    whitened_outputs,
)
from pyro_ext.curvature.prior import prior_curvature, prior_structure
from pyro_ext.curvature.program_curvature import ProgramCurvature
from pyro_ext.curvature.row_structure import row_structure
from pyro_ext.curvature.solvers import (
    cholesky_solve,
    conjugate_gradients,
    symmetric_eigen,
    woodbury,
)

__all__ = [
    "Curvature",
    "GaussNewton",
    "KroneckerBlock",
    "PriorStructure",
    "ProgramCurvature",
    "Structure",
    "cholesky_solve",
    "conjugate_gradients",
    "fisher_root",
    "gauss_newton_products",
    "jacobian_rows",
    "prior_curvature",
    "prior_structure",
    "register_output_fisher",
    "row_structure",
    "symmetric_eigen",
    "whitened_outputs",
    "woodbury",
]
