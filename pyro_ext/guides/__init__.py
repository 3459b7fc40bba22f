"""Guides: the flat log density of host autoguides."""

from pyro_ext.guides.flat_density import (
    FlatDensity,
    Moments,
    flat_density,
    refuse_flat_density,
    register_flat_density,
)
from pyro_ext.guides.flipout import flipout
from pyro_ext.guides.layer_low_rank import AutoLayerLowRankNormal, LayerLowRankNormalDensity
from pyro_ext.guides.linear_sites import RowNoiseELBO
from pyro_ext.guides.local_reparameterization import local_reparameterization
from pyro_ext.guides.matrix_normal import AutoMatrixNormal, MatrixNormalDensity
from pyro_ext.guides.mixture import AutoGaussianMixture, GaussianMixtureDensity
from pyro_ext.guides.normal import DiagonalNormalDensity
from pyro_ext.guides.planar_flow import AutoPlanarFlow, PlanarFlowDensity

__all__ = [
    "AutoGaussianMixture",
    "AutoLayerLowRankNormal",
    "AutoMatrixNormal",
    "AutoPlanarFlow",
    "DiagonalNormalDensity",
    "FlatDensity",
    "GaussianMixtureDensity",
    "LayerLowRankNormalDensity",
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
