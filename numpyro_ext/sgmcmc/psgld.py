"""Stochastic gradient Langevin dynamics with a diagonal preconditioner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from numpyro_ext.sgmcmc.dynamics import langevin_step
from numpyro_ext.sgmcmc.kernel import StochasticGradientKernel
from ppl_ext.sgmcmc import Schedule, check_preconditioner, check_warmup


class _Moments(NamedTuple):
    """Running mean of squared scores (C, D), and the weight that it has so far (C, 1)."""

    squares: Array
    weight: Array


class PSGLD(StochasticGradientKernel):
    """SGLD with steps scaled by RMSprop's running mean of squared scores.

        G = 1 / (λ + sqrt(v)),   z <- z + α G s(z) + sqrt(2 α G) ε

    so that coordinates in which the density is steep take shorter steps. The scores are those of
    all rows, so v grows with their number; for the mean score of N rows, as in the paper, divide
    α by N.

    Parameters
    ----------
    model, step_size, **options
        See :class:`~numpyro_ext.sgmcmc.StochasticGradientKernel`.
    decay : float
        Weight of the past in v at every step, between 0 and 1.
    damping : float
        λ, positive.
    adapt : {"warmup", "always"}
        "warmup" holds G after the warm-up, which leaves the posterior's moments right.
        "always" goes on adapting, as in the paper, which leaves out the term for the derivative
        of G (its Γ): the bias that stays does not vanish with the step size.

    Raises
    ------
    ArgumentError
        An option is out of its range; from ``init``, there is no warm-up to adapt in.

    References
    ----------
    C. Li, C. Chen, D. Carlson and L. Carin, "Preconditioned stochastic gradient Langevin dynamics
    for deep neural networks", AAAI 2016, algorithm 1.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        step_size: float | Schedule,
        *,
        decay: float = 0.99,
        damping: float = 1e-5,
        adapt: str = "warmup",
        **options: Any,
    ) -> None:
        check_preconditioner(decay, damping, adapt)
        super().__init__(model, step_size, **options)
        self.decay = float(decay)
        self.damping = float(damping)
        self.adapt = adapt

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
