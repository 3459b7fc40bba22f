"""Particle engines: Stein variational gradient descent and deep ensembles."""

from numpyro_ext.stein.deep_ensemble import DeepEnsemble
from numpyro_ext.stein.particles import ParticleEngine
from numpyro_ext.stein.svgd import SVGD, annealed
from numpyro_ext.stein.svgd_vr import SVGDVR

__all__ = ["SVGD", "SVGDVR", "DeepEnsemble", "ParticleEngine", "annealed"]
