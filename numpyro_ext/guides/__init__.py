"""Guides: the flat log density of host autoguides."""

from numpyro_ext.guides.flat_density import (
    FlatDensity,
    Moments,
    flat_density,
    refuse_flat_density,
    register_flat_density,
)
from numpyro_ext.guides.flipout import flipout
from numpyro_ext.guides.layer_low_rank import AutoLayerLowRankNormal, LayerLowRankNormalDensity
from numpyro_ext.guides.linear_sites import RowNoiseELBO
from numpyro_ext.guides.local_reparameterization import local_reparameterization
from numpyro_ext.guides.matrix_normal import AutoMatrixNormal, MatrixNormalDensity
from numpyro_ext.guides.mixture import AutoGaussianMixture, GaussianMixtureDensity
from numpyro_ext.guides.normal import DiagonalNormalDensity, LowRankNormalDensity
from numpyro_ext.guides.planar_flow import AutoPlanarFlow, PlanarFlowDensity

__all__ = [
    "AutoGaussianMixture",
    "AutoLayerLowRankNormal",
    "AutoMatrixNormal",
    "AutoPlanarFlow",
    "DiagonalNormalDensity",
    "FlatDensity",
    "GaussianMixtureDensity",
    "LayerLowRankNormalDensity",
    "LowRankNormalDensity",
    "MatrixNormalDensity",
    "Moments",
    "PlanarFlowDensity",
    "RowNoiseELBO",
    "flat_density",
    "flipout",
    "local_reparameterization",
    "refuse_flat_density",
    "register_flat_density",
]
