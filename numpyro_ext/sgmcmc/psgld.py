"""Stochastic gradient Langevin dynamics with a diagonal preconditioner."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from numpyro_ext.sgmcmc.dynamics import langevin_step
from numpyro_ext.sgmcmc.kernel import StochasticGradientKernel
from ppl_ext.sgmcmc import check_warmup
from ppl_ext.sgmcmc_kernels import PSGLDShell


class _Moments(NamedTuple):
    """Running mean of squared scores (C, D), and the weight that it has so far (C, 1)."""

    squares: Array
    weight: Array


class PSGLD(PSGLDShell, StochasticGradientKernel):
    def init(self, rng_key: Array, num_warmup: int, *arguments: Any, **keywords: Any) -> Any:
        """State before the first step; see the base class.

        Raises
        ------
        ArgumentError
            There is no warm-up, in which alone the preconditioner adapts.
        """
        check_warmup(self.adapt, "num_warmup", num_warmup)
        return super().init(rng_key, num_warmup, *arguments, **keywords)

    def _init_dynamics(self, num_chains: int, dim: int, dtype: Any) -> Any:
        return _Moments(jnp.zeros((num_chains, dim), dtype), jnp.zeros((num_chains, 1), dtype))

    def _move(
        self,
        dynamics: Any,
        z: Array,
        score: Array,
        noise: Array,
        step_size: Array,
        step: Array,
        temperature: Array,
        warmup: Array,
    ) -> tuple[Array, Any]:
        kept = self.decay
        adapted = _Moments(
            kept * dynamics.squares + (1.0 - kept) * score**2,
            kept * dynamics.weight + (1.0 - kept),
        )
        if self.adapt == "warmup":
            adapted = _Moments(
                *(jnp.where(warmup, new, old) for new, old in zip(adapted, dynamics, strict=True))
            )
        # Divided by its weight the mean is right from the first step on.
        preconditioner = 1.0 / (self.damping + jnp.sqrt(adapted.squares / adapted.weight))
        moved = langevin_step(z, score, noise, step_size, preconditioner, temperature)
        return moved, adapted
