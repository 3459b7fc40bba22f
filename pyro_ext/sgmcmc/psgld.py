"""Stochastic gradient Langevin dynamics with a diagonal preconditioner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ppl_ext.sgmcmc import Schedule, check_preconditioner, check_warmup
from pyro_ext.sgmcmc.dynamics import langevin_step
from pyro_ext.sgmcmc.kernel import StochasticGradientKernel


class PSGLD(StochasticGradientKernel):
    """SGLD with steps scaled by RMSprop's running mean of squared scores.

        G = 1 / (λ + sqrt(v)),   z <- z + α G s(z) + sqrt(2 α G) ε

    so that coordinates in which the density is steep take shorter steps. The scores are those of
    all rows, so v grows with their number; for the mean score of N rows, as in the paper, divide
    α by N.

    Parameters
    ----------
    model, step_size, **options
        See :class:`~pyro_ext.sgmcmc.StochasticGradientKernel`.
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
        An option is out of its range; from ``MCMC.run``, there is no warm-up to adapt in.

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

    def setup_chains(self, num_chains: int, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Start chains that are run as one; see the base class.

        Raises
        ------
        ArgumentError
            There is no warm-up, in which alone the preconditioner adapts.
        """
        if self._pending is None:
            check_warmup(self.adapt, "warmup_steps", warmup_steps)
        super().setup_chains(num_chains, warmup_steps, *args, **kwargs)

    def _init_dynamics(self, num_chains: int) -> dict[str, Tensor]:
        target = self.target
        zero = torch.zeros(num_chains, target.dim, dtype=target.dtype, device=target.device)
        # The running mean of squared scores, and the weight that it has so far.
        return {"squares": zero, "weight": zero[:, :1].clone()}

    def _move(
        self,
        dynamics: dict[str, Tensor],
        z: Tensor,
        score: Tensor,
        noise: Tensor,
        step_size: float,
        temperature: float,
        warmup: bool,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if warmup or self.adapt == "always":
            kept = self.decay
            dynamics = {
                "squares": kept * dynamics["squares"] + (1.0 - kept) * score**2,
                "weight": kept * dynamics["weight"] + (1.0 - kept),
            }
        # Divided by its weight the mean is right from the first step on.
        root = (dynamics["squares"] / dynamics["weight"]).sqrt()
        preconditioner = 1.0 / (self.damping + root)
        return langevin_step(z, score, noise, step_size, preconditioner, temperature), dynamics
