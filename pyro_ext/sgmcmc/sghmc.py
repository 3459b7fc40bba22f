"""Stochastic gradient Hamiltonian Monte Carlo with friction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.options import check_count, check_number
from ppl_ext.sgmcmc import Schedule, diagonal_of_mass
from pyro_ext.sgmcmc.dynamics import hamiltonian_step
from pyro_ext.sgmcmc.kernel import StochasticGradientKernel


class SGHMC(StochasticGradientKernel):
    """Stochastic gradient Hamiltonian Monte Carlo: momentum, friction and the noise to it.

        dz = M^-1 r dt,   dr = s(z) dt - γ r dt + sqrt(2 γ M) dW

    Friction takes out the energy that the noise of minibatches puts in; without it chains heat
    up for ever. A step of size ε is a symmetric splitting (see
    :func:`~pyro_ext.sgmcmc.dynamics.hamiltonian_step`), with exact scores right for a Normal
    target at every stable ε. Noise of variance V in the scores heats the momenta by about
    ε V / (2 γ M), relative to one: more friction or shorter steps make it smaller.

    Parameters
    ----------
    model
        Pyro model.
    step_size : float or callable
        ε, a time, so that ε² plays the part of the step size of ``SGLD``: stable below twice the
        smallest posterior standard deviation, with unit mass.
    friction : float
        γ = C M^-1: 1 / γ is the time in which momentum is forgotten. Of the order of a posterior
        standard deviation, with unit mass, is best.
    mass : float, tensor (D,) or mapping of str to tensor, optional
        The diagonal of M, in unconstrained space, for all coordinates or by site. The inverse
        posterior variances make all coordinates alike. Default: 1.
    num_steps : int
        Steps that a draw takes.
    **options
        See :class:`~pyro_ext.sgmcmc.StochasticGradientKernel`.

    Raises
    ------
    ArgumentError
        An option is out of its range; from ``MCMC.run``, the mass does not fit the model.

    References
    ----------
    T. Chen, E. Fox and C. Guestrin, "Stochastic gradient Hamiltonian Monte Carlo", ICML 2014,
    equation 9.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        step_size: float | Schedule,
        *,
        friction: float = 1.0,
        mass: Any = 1.0,
        num_steps: int = 1,
        **options: Any,
    ) -> None:
        check_number("friction", friction)
        check_count("num_steps", num_steps)
        super().__init__(model, step_size, **options)
        self.friction = float(friction)
        self.mass = mass
        self.num_steps = int(num_steps)

    def _steps_to_next_draw(self, step: int) -> int:
        return self.num_steps

    def setup_chains(self, num_chains: int, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Start chains that are run as one; see the base class."""
        super().setup_chains(num_chains, warmup_steps, *args, **kwargs)
        self._diagonal = self._mass()

    def _mass(self) -> Float[Tensor, " D"]:
        target = self.target
        mass = diagonal_of_mass(self.mass, target.layout.shapes)
        return torch.tensor(mass, dtype=target.dtype, device=target.device)

    def _init_dynamics(self, num_chains: int) -> dict[str, Tensor]:
        target = self.target
        shape = (num_chains, target.dim)
        return {"momentum": torch.zeros(shape, dtype=target.dtype, device=target.device)}

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
        moved, momentum = hamiltonian_step(
            z, dynamics["momentum"], score, noise, step_size, self.friction, self._diagonal
        )
        return moved, {"momentum": momentum}
