"""Which closed form of the proximal step a guide has."""

from __future__ import annotations

from typing import Any

from ppl_ext.guides.mixture import MixtureGuide

#: Structures of covariances that have a closed form.
STRUCTURES = ("diagonal", "full", "low_rank", "layer_low_rank", "matrix_normal")


def key_of_form(guide: Any, density: Any) -> str | None:
    """Key of a guide's closed form, None when it has none.

    It is the ``covariance_structure`` of the guide's kind of ``density``, and "mixture" for
    ``AutoGaussianMixture`` with full covariances.
    """
    if isinstance(guide, MixtureGuide):
        return "mixture" if guide.covariance == "full" else None
    found: str | None = getattr(density, "covariance_structure", None)
    return found if found in STRUCTURES else None
