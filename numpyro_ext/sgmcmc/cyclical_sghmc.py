"""Stochastic gradient Hamiltonian Monte Carlo with steps that rise and fall in cycles."""

from __future__ import annotations

from numpyro_ext.sgmcmc.cyclical_sgld import CyclicalFields
from numpyro_ext.sgmcmc.sghmc import SGHMC
from ppl_ext.sgmcmc_kernels import CyclicalSGHMCShell


class CyclicalSGHMC(CyclicalSGHMCShell, CyclicalFields, SGHMC):
    pass
