"""Particle engines: Stein variational gradient descent and Newton, and deep ensembles."""

from pyro_ext.stein.deep_ensemble import DeepEnsemble
from pyro_ext.stein.particles import ParticleEngine
from pyro_ext.stein.svgd import SVGD, SVGDVR
from pyro_ext.stein.svn import SVN, curvature_kernel
from pyro_ext.stein.wgd import WGD

__all__ = [
    "SVGD",
    "SVGDVR",
    "SVN",
    "WGD",
    "DeepEnsemble",
    "ParticleEngine",
    "curvature_kernel",
]
