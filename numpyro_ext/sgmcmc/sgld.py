"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from typing import Any

from jax import Array

from numpyro_ext.sgmcmc.dynamics import langevin_step
from numpyro_ext.sgmcmc.kernel import StochasticGradientKernel
from ppl_ext.sgmcmc_kernels import SGLDShell


class SGLD(SGLDShell, StochasticGradientKernel):
    def _init_dynamics(self, num_chains: int, dim: int, dtype: Any) -> Any:
        return ()

    def _move(
        self,
        dynamics: Any,
        z: Array,
        score: Array,
        noise: Array,
        step_size: Array,
        step: Array,
        warmup: Array,
    ) -> tuple[Array, Any]:
        return langevin_step(z, score, noise, step_size), dynamics
