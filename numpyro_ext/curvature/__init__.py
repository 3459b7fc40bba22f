"""Curvature of programs: Fisher information of their outputs, and what is built on it."""

from numpyro_ext.curvature.fisher import fisher_root, register_output_fisher
from numpyro_ext.curvature.gauss_newton import (
    gauss_newton_products,
    jacobian_rows,
    row_sites,
    whitened_outputs,
)
from numpyro_ext.curvature.prior import PriorStructure, prior_curvature, prior_structure

__all__ = [
    "PriorStructure",
    "fisher_root",
    "gauss_newton_products",
    "jacobian_rows",
    "prior_curvature",
    "prior_structure",
    "register_output_fisher",
    "row_sites",
    "whitened_outputs",
]
