"""Closed forms of the proximal step: for each covariance structure of a Normal, and mixtures."""

from __future__ import annotations

from typing import Any

from numpyro_ext.guides.flat_density import check_has_flat_density
from numpyro_ext.score.regression.forms import CLOSED_FORMS
from numpyro_ext.score.regression.solver import RegressionSolver
from ppl_ext.score_matching.regression.structure import key_of_form


def structure_of(guide: Any) -> str | None:
    """Key of a guide's closed form, None when it has none."""
    return key_of_form(guide, check_has_flat_density(guide))


__all__ = [
    "CLOSED_FORMS",
    "RegressionSolver",
    "structure_of",
]
