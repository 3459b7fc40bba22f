"""Curvature of programs: Fisher information of their outputs, and what is built on it."""

from numpyro_ext.curvature.fisher import fisher_root, register_output_fisher
from numpyro_ext.curvature.gauss_newton import (
    gauss_newton_products,
    jacobian_rows,
    row_sites,
    whitened_outputs,
)

__all__ = [
    "fisher_root",
    "gauss_newton_products",
    "jacobian_rows",
    "register_output_fisher",
    "row_sites",
    "whitened_outputs",
]
