"""Stochastic gradient Hamiltonian Monte Carlo with steps that rise and fall in cycles."""

from __future__ import annotations

from ppl_ext.sgmcmc_kernels import CyclicalSGHMCShell
from pyro_ext.sgmcmc.sghmc import SGHMC


class CyclicalSGHMC(CyclicalSGHMCShell, SGHMC):
    pass
