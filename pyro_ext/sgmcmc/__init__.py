"""Stochastic gradient MCMC, as kernels of ``pyro.infer.MCMC`` and of its vectorised kin."""

from ppl_ext.sgmcmc.schedules import Schedule, cosine_cycles, polynomial_decay
from pyro_ext.sgmcmc.kernel import KernelState, StochasticGradientKernel
from pyro_ext.sgmcmc.kernels import (
    PSGLD,
    SGHMC,
    SGLD,
    CyclicalSGHMC,
    CyclicalSGLD,
    ReplicaExchangeSGLD,
)
from pyro_ext.sgmcmc.mclmc import MCLMC
from pyro_ext.sgmcmc.mcmc import MCMC

__all__ = [
    "MCLMC",
    "MCMC",
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
