"""Stochastic gradient Langevin dynamics with a step size that rises and falls in cycles."""

from __future__ import annotations

from numpyro_ext.sgmcmc.kernel import StochasticGradientKernel
from numpyro_ext.sgmcmc.sgld import SGLD
from ppl_ext.sgmcmc_kernels import CyclicalSGLDShell


class CyclicalFields(StochasticGradientKernel):
    """What ``MCMC`` collects of a kernel in cycles."""

    @property
    def default_fields(self) -> tuple[str, ...]:
        """Fields that ``MCMC`` collects: the draw, whether it diverged, and its cycle."""
        return (*super().default_fields, "cycle")


class CyclicalSGLD(CyclicalSGLDShell, CyclicalFields, SGLD):
    pass
