"""Closed forms of the proximal step, one for each covariance structure of a Normal guide."""

from __future__ import annotations

from numpyro_ext.score.regression.base import TRUST, ClosedForm
from numpyro_ext.score.regression.diagonal import DiagonalForm
from numpyro_ext.score.regression.full import FullForm
from numpyro_ext.score.regression.low_rank import LowRankForm
from numpyro_ext.score.regression.matrix_normal import MatrixNormalForm
from numpyro_ext.score.regression.pairs import DECAY, antithetic

#: By ``covariance_structure`` of the guide's density.
CLOSED_FORMS: dict[str, type[ClosedForm]] = {
    "diagonal": DiagonalForm,
    "full": FullForm,
    "low_rank": LowRankForm,
    "matrix_normal": MatrixNormalForm,
}

__all__ = ["CLOSED_FORMS", "DECAY", "TRUST", "ClosedForm", "antithetic"]
