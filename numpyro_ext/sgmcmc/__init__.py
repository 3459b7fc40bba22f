"""Stochastic gradient MCMC, as kernels of ``numpyro.infer.MCMC``."""

from numpyro_ext.sgmcmc.cyclical_sghmc import CyclicalSGHMC
from numpyro_ext.sgmcmc.cyclical_sgld import CyclicalSGLD
from numpyro_ext.sgmcmc.kernel import KernelState, StochasticGradientKernel
from numpyro_ext.sgmcmc.mclmc import MCLMC
from numpyro_ext.sgmcmc.psgld import PSGLD
from numpyro_ext.sgmcmc.replica_exchange_sgld import ReplicaExchangeSGLD
from numpyro_ext.sgmcmc.sghmc import SGHMC
from numpyro_ext.sgmcmc.sgld import SGLD
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
