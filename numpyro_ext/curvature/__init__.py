"""Curvature of programs: Fisher information of their outputs, and what is built on it."""

from numpyro_ext.curvature.curvature import Curvature, KroneckerBlock
from numpyro_ext.curvature.fisher import fisher_root, register_output_fisher
from numpyro_ext.curvature.gauss_newton import (
    gauss_newton_products,
    jacobian_rows,
    whitened_outputs,
)
from numpyro_ext.curvature.prior import PriorStructure, prior_curvature, prior_structure
from numpyro_ext.curvature.program_curvature import (
    STRUCTURES,
    CurvatureOptions,
    ProgramCurvature,
    Structure,
)
from numpyro_ext.curvature.row_structure import RowStructure, row_structure
from numpyro_ext.curvature.solvers import (
    SOLVERS,
    Iterated,
    Solver,
    cholesky_solve,
    conjugate_gradients,
    woodbury,
)

__all__ = [
    "SOLVERS",
    "STRUCTURES",
    "Curvature",
    "CurvatureOptions",
    "Iterated",
    "KroneckerBlock",
    "PriorStructure",
    "ProgramCurvature",
    "RowStructure",
    "Solver",
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
    "whitened_outputs",
    "woodbury",
]
