"""Closed form for matrix-normal guides.

See :mod:`ppl_ext.score_matching.regression.matrix_normal`.
"""

from __future__ import annotations

from ppl_ext.score_matching.regression import matrix_normal
from ppl_ext.score_matching.regression.matrix_normal import MatrixNormalRegression, is_warm
from pyro_ext.score.regression.base import ClosedForm


class MatrixNormalForm(matrix_normal.MatrixNormalForm, ClosedForm[MatrixNormalRegression]):
    pass


initial_regression, observe = MatrixNormalForm.initial_regression, MatrixNormalForm.observe
updated_factors = MatrixNormalForm.updated_factors

__all__ = [
    "MatrixNormalForm",
    "MatrixNormalRegression",
    "initial_regression",
    "is_warm",
    "observe",
    "updated_factors",
]
