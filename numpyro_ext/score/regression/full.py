"""Closed form for full-covariance Normal guides.

See :mod:`ppl_ext.score_matching.regression.full`.
"""

from __future__ import annotations

from numpyro_ext.score.regression.base import ClosedForm
from ppl_ext.score_matching.regression import full
from ppl_ext.score_matching.regression.full import BlockMoments, FullRegression, is_warm


class FullForm(full.FullForm, ClosedForm[FullRegression]):
    pass


initial_regression, observe = FullForm.initial_regression, FullForm.observe
screened, updated_moments = FullForm.screened, FullForm.updated_moments
whitened_step = FullForm.whitened_step

__all__ = [
    "BlockMoments",
    "FullForm",
    "FullRegression",
    "initial_regression",
    "is_warm",
    "observe",
    "screened",
    "updated_moments",
    "whitened_step",
]
