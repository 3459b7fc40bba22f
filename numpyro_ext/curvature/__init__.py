"""Curvature of programs: Fisher information of their outputs, and what is built on it."""

from numpyro_ext.curvature.curvature import Curvature, KroneckerBlock
from numpyro_ext.curvature.fisher import fisher_root, register_output_fisher
from numpyro_ext.curvature.gauss_newton import (
    gauss_newton_products,
    jacobian_rows,
    whitened_outputs,
)
from numpyro_ext.curvature.prior import prior_curvature, prior_structure
from numpyro_ext.curvature.program_curvature import ProgramCurvature
from numpyro_ext.curvature.row_structure import row_structure
from numpyro_ext.curvature.solvers import (
    cholesky_solve,
    conjugate_gradients,
    woodbury,
)
from ppl_ext.curvature.program_curvature import (
    GaussNewton,
    PriorStructure,
    Structure,
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
    "whitened_outputs",
    "woodbury",
]
