"""Closed forms of the proximal step: for each covariance structure of a Normal, and mixtures."""

from __future__ import annotations

from typing import Any

from ppl_ext.score_matching.regression.base import ClosedForm
from ppl_ext.score_matching.regression.structure import key_of_form
from pyro_ext.guides.flat_density import FlatDensity, check_has_flat_density
from pyro_ext.score.regression.forms import CLOSED_FORMS
from pyro_ext.score.regression.small import SMALL_FORMS, is_small
from pyro_ext.score.regression.solver import RegressionSolver


def closed_form(structure: str, density: FlatDensity) -> type[ClosedForm]:
    """The closed form for a guide of this structure, which is another where it is small."""
    if structure in SMALL_FORMS and is_small(density):
        return SMALL_FORMS[structure]
    return CLOSED_FORMS[structure]


def structure_of(guide: Any) -> str | None:
    """Key of a guide's closed form, None when it has none."""
    return key_of_form(guide, check_has_flat_density(guide))


__all__ = [
    "CLOSED_FORMS",
    "RegressionSolver",
    "closed_form",
    "structure_of",
]
