"""Stochastic gradient MCMC, as kernels of ``pyro.infer.MCMC`` and of its vectorised kin."""

from ppl_ext.sgmcmc.schedules import Schedule, cosine_cycles, polynomial_decay
from pyro_ext.sgmcmc.cyclical_sghmc import CyclicalSGHMC
from pyro_ext.sgmcmc.cyclical_sgld import CyclicalSGLD
from pyro_ext.sgmcmc.kernel import KernelState, StochasticGradientKernel
from pyro_ext.sgmcmc.mclmc import MCLMC
from pyro_ext.sgmcmc.mcmc import MCMC
from pyro_ext.sgmcmc.psgld import PSGLD
from pyro_ext.sgmcmc.replica_exchange_sgld import ReplicaExchangeSGLD
from pyro_ext.sgmcmc.sghmc import SGHMC
from pyro_ext.sgmcmc.sgld import SGLD

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
