"""Closed forms of the proximal step: for each covariance structure of a Normal, and mixtures."""

from __future__ import annotations

from typing import Any

from ppl_ext.score_matching.regression import base
from pyro_ext.guides.flat_density import FlatDensity, check_has_flat_density
from pyro_ext.guides.mixture import AutoGaussianMixture
from pyro_ext.score.regression.base import ClosedForm
from pyro_ext.score.regression.diagonal import DiagonalForm
from pyro_ext.score.regression.full import FullForm
from pyro_ext.score.regression.layer_low_rank import LayerLowRankForm
from pyro_ext.score.regression.low_rank import LowRankForm
from pyro_ext.score.regression.matrix_normal import MatrixNormalForm
from pyro_ext.score.regression.mixture import MixtureForm
from pyro_ext.score.regression.pairs import antithetic
from pyro_ext.score.regression.small import SMALL_FORMS, is_small
from pyro_ext.score.regression.solver import RegressionSolver

#: By :func:`structure_of` the guide.
CLOSED_FORMS: dict[str, type[ClosedForm]] = {
    "diagonal": DiagonalForm,
    "full": FullForm,
    "low_rank": LowRankForm,
    "layer_low_rank": LayerLowRankForm,
    "matrix_normal": MatrixNormalForm,
    "mixture": MixtureForm,
}


def closed_form(structure: str, density: FlatDensity) -> type[base.ClosedForm]:
    """The closed form for a guide of this structure, which is another where it is small."""
    if structure in SMALL_FORMS and is_small(density):
        return SMALL_FORMS[structure]
    return CLOSED_FORMS[structure]


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
    "closed_form",
    "structure_of",
]
