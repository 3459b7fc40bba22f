"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from torch import Tensor

from pyro_ext.sgmcmc.dynamics import langevin_step
from pyro_ext.sgmcmc.kernel import StochasticGradientKernel


class SGLD(StochasticGradientKernel):
    """Stochastic gradient Langevin dynamics: gradient ascent on minibatches with Normal noise.

        z <- z + α s(z) + sqrt(2 α) ε

    There is no accept step, so draws have a bias of the order of the step size α: for a Normal
    target with exact scores the variance is too large by 1 / (1 - α / (2 variance)), and the
    noise of minibatches adds α / 2 times its variance to that of the injected noise. Take α well
    below the smallest posterior variance, or let it fall
    (:func:`~pyro_ext.sgmcmc.polynomial_decay`).

    >>> mcmc = MCMC(SGLD(model, 1e-4), warmup_steps=1000, num_samples=5000)  # doctest: +SKIP
    >>> mcmc.run(x, y)  # doctest: +SKIP

    Parameters
    ----------
    model, step_size, **options
        See :class:`~pyro_ext.sgmcmc.StochasticGradientKernel`. Many texts write α / 2 for the
        α here.

    References
    ----------
    M. Welling and Y. W. Teh, "Bayesian learning via stochastic gradient Langevin dynamics", ICML
    2011, equation 4.
    """

    def _init_dynamics(self, num_chains: int) -> dict[str, Tensor]:
        return {}

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
        return langevin_step(z, score, noise, step_size, temperature=temperature), dynamics
