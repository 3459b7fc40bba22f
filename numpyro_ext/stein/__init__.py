"""Particle engines: Stein variational gradient descent and Newton, and deep ensembles."""

from numpyro_ext.stein.deep_ensemble import DeepEnsemble
from numpyro_ext.stein.particles import ParticleEngine
from numpyro_ext.stein.svgd import SVGD, SVGDVR
from numpyro_ext.stein.svn import SVN, curvature_kernel
from numpyro_ext.stein.wgd import WGD

__all__ = [
    "SVGD",
    "SVGDVR",
    "SVN",
    "WGD",
    "DeepEnsemble",
    "ParticleEngine",
    "curvature_kernel",
]
