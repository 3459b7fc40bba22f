"""Guides: the flat log density of host autoguides."""

from numpyro_ext.guides.flat_density import (
    FlatDensity,
    Moments,
    check_has_flat_density,
    flat_density,
    refuse_flat_density,
    register_flat_density,
)
from numpyro_ext.guides.normal import (
    DiagonalNormalDensity,
    LowRankNormalDensity,
    MultivariateNormalDensity,
    NormalDensity,
)

__all__ = [
    "DiagonalNormalDensity",
    "FlatDensity",
    "LowRankNormalDensity",
    "Moments",
    "MultivariateNormalDensity",
    "NormalDensity",
    "check_has_flat_density",
    "flat_density",
    "refuse_flat_density",
    "register_flat_density",
]
