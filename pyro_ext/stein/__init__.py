"""Particle engines: Stein variational gradient descent and deep ensembles."""

from pyro_ext.stein.deep_ensemble import DeepEnsemble
from pyro_ext.stein.particles import ParticleEngine
from pyro_ext.stein.svgd import SVGD, annealed
from pyro_ext.stein.svgd_vr import SVGDVR

__all__ = ["SVGD", "SVGDVR", "DeepEnsemble", "ParticleEngine", "annealed"]
