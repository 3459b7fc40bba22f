"""Closed forms of the proximal step, for each covariance structure of a Normal, and mixtures.

The formulas, and what each form is, are in :mod:`ppl_ext.score_matching.regression`.
"""

from __future__ import annotations

from ppl_ext.score_matching.regression import (
    diagonal,
    full,
    layer_low_rank,
    low_rank,
    matrix_normal,
)
from ppl_ext.score_matching.regression.base import ClosedForm
from pyro_ext.score.regression.base import FormTensors
from pyro_ext.score.regression.mixture import MixtureForm

schedule = diagonal.schedule


class DiagonalForm(diagonal.DiagonalForm):
    arrays = FormTensors


class FullForm(full.FullForm):
    arrays = FormTensors


class LowRankForm(low_rank.LowRankForm):
    arrays = FormTensors


class LayerLowRankForm(layer_low_rank.LayerLowRankForm):
    arrays = FormTensors
    large, small = LowRankForm, FullForm


class MatrixNormalForm(matrix_normal.MatrixNormalForm):
    arrays = FormTensors


#: By :func:`structure_of` the guide.
CLOSED_FORMS: dict[str, type[ClosedForm]] = {
    "diagonal": DiagonalForm,
    "full": FullForm,
    "low_rank": LowRankForm,
    "layer_low_rank": LayerLowRankForm,
    "matrix_normal": MatrixNormalForm,
    "mixture": MixtureForm,
}
