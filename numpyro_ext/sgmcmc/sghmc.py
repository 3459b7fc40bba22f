"""Stochastic gradient Hamiltonian Monte Carlo with friction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from numpyro_ext.sgmcmc.dynamics import hamiltonian_step
from numpyro_ext.sgmcmc.kernel import StochasticGradientKernel
from ppl_ext.options import check_count, check_number
from ppl_ext.sgmcmc import Schedule, diagonal_of_mass


class _Momentum(NamedTuple):
    """Momentum (C, D), zero at the start."""

    momentum: Array


class SGHMC(StochasticGradientKernel):
    """Stochastic gradient Hamiltonian Monte Carlo: momentum, friction and the noise to it.

        dz = M^-1 r dt,   dr = s(z) dt - γ r dt + sqrt(2 γ M) dW

    Friction takes out the energy that the noise of minibatches puts in; without it chains heat
    up for ever. A step of size ε is a symmetric splitting (see
    :func:`~numpyro_ext.sgmcmc.dynamics.hamiltonian_step`), with exact scores right for a Normal
    target at every stable ε. Noise of variance V in the scores heats the momenta by about
    ε V / (2 γ M), relative to one: more friction or shorter steps make it smaller.

    Parameters
    ----------
    model
        NumPyro model.
    step_size : float or callable
        ε, a time, so that ε² plays the part of the step size of ``SGLD``: stable below twice the
        smallest posterior standard deviation, with unit mass.
    friction : float
        γ = C M^-1: 1 / γ is the time in which momentum is forgotten. Of the order of a posterior
        standard deviation, with unit mass, is best.
    mass : float, array (D,) or mapping of str to array, optional
        The diagonal of M, in unconstrained space, for all coordinates or by site. The inverse
        posterior variances make all coordinates alike. Default: 1.
    num_steps : int
        Steps that a draw takes.
    **options
        See :class:`~numpyro_ext.sgmcmc.StochasticGradientKernel`.

    Raises
    ------
    ArgumentError
        An option is out of its range; from ``init``, the mass does not fit the model.

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

    def _steps_to_next_draw(self, step: Array) -> Array | int:
        return self.num_steps

    def _mass(self) -> Float[Array, " D"]:
        mass = diagonal_of_mass(self.mass, self.target.layout.shapes)
        return jnp.asarray(mass, self.target.dtype)

    def _init_dynamics(self, num_chains: int, dim: int, dtype: Any) -> Any:
        self._mass()
        return _Momentum(jnp.zeros((num_chains, dim), dtype))

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
        moved, momentum = hamiltonian_step(
            z, dynamics.momentum, score, noise, step_size, self.friction, self._mass()
        )
        return moved, _Momentum(momentum)
