"""Stochastic gradient Langevin dynamics with a step size that rises and falls in cycles."""

from __future__ import annotations

from ppl_ext.sgmcmc_kernels import CyclicalSGLDShell
from pyro_ext.sgmcmc.sgld import SGLD


class CyclicalSGLD(CyclicalSGLDShell, SGLD):
    pass
