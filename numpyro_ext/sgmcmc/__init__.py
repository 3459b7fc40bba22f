"""Stochastic gradient MCMC, as kernels of ``numpyro.infer.MCMC``."""

from numpyro_ext.sgmcmc.kernel import KernelState, StochasticGradientKernel
from numpyro_ext.sgmcmc.kernels import (
    PSGLD,
    SGHMC,
    SGLD,
    CyclicalSGHMC,
    CyclicalSGLD,
    ReplicaExchangeSGLD,
)
from numpyro_ext.sgmcmc.mclmc import MCLMC
from ppl_ext.sgmcmc.schedules import Schedule, cosine_cycles, polynomial_decay

__all__ = [
    "MCLMC",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "CyclicalSGHMC",
    "CyclicalSGLD",
    "KernelState",
    "ReplicaExchangeSGLD",
    "Schedule",
    "StochasticGradientKernel",
    "cosine_cycles",
    "polynomial_decay",
]
