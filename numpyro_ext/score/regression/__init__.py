"""Closed forms of the proximal step: for each covariance structure of a Normal, and mixtures."""

from __future__ import annotations

from typing import Any

from numpyro_ext.guides.flat_density import check_has_flat_density
from numpyro_ext.guides.mixture import AutoGaussianMixture
from numpyro_ext.score.regression.base import ClosedForm
from numpyro_ext.score.regression.diagonal import DiagonalForm
from numpyro_ext.score.regression.full import FullForm
from numpyro_ext.score.regression.layer_low_rank import LayerLowRankForm
from numpyro_ext.score.regression.low_rank import LowRankForm
from numpyro_ext.score.regression.matrix_normal import MatrixNormalForm
from numpyro_ext.score.regression.mixture import MixtureForm
from numpyro_ext.score.regression.pairs import antithetic
from numpyro_ext.score.regression.solver import RegressionSolver

#: By :func:`structure_of` the guide.
CLOSED_FORMS: dict[str, type[ClosedForm]] = {
    "diagonal": DiagonalForm,
    "full": FullForm,
    "low_rank": LowRankForm,
    "layer_low_rank": LayerLowRankForm,
    "matrix_normal": MatrixNormalForm,
    "mixture": MixtureForm,
}


def structure_of(guide: Any) -> str | None:
    """Key of a guide's closed form, None when it has none.

    It is the ``covariance_structure`` of the guide's density, and "mixture" for
    ``AutoGaussianMixture`` with full covariances.
    """
    if isinstance(guide, AutoGaussianMixture):
        return "mixture" if guide.covariance == "full" else None
    structure: str | None = getattr(check_has_flat_density(guide), "covariance_structure", None)
    return structure if structure in CLOSED_FORMS else None


__all__ = [
    "CLOSED_FORMS",
    "ClosedForm",
    "RegressionSolver",
    "antithetic",
    "structure_of",
]
