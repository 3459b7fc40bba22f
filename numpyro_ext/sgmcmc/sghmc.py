"""Stochastic gradient Hamiltonian Monte Carlo with friction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from numpyro_ext.sgmcmc.dynamics import hamiltonian_step
from numpyro_ext.sgmcmc.kernel import StochasticGradientKernel
from numpyro_ext.sgmcmc.schedules import Schedule
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count, check_number


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

    def _mass(self) -> Array:
        """The diagonal of M, (D,).

        Raises
        ------
        ArgumentError
            The mass has another shape, or is not positive.
        """
        layout, mass = self.target.layout, self.mass
        if isinstance(mass, Mapping):
            if set(mass) != set(layout.names):
                raise ArgumentError(
                    f"Expected mass for the latent sites {list(layout.names)}, found "
                    f"{sorted(mass)}."
                )
            mass = np.concatenate([self._of_site(name, mass[name]) for name in layout.names])
        try:
            mass = np.asarray(mass, np.float64)
        except (TypeError, ValueError):
            raise ArgumentError(f"Expected mass to hold numbers, found {mass!r}.") from None
        if mass.shape not in ((), (layout.dim,)) or not (np.isfinite(mass) & (mass > 0)).all():
            raise ArgumentError(
                f"Expected mass to be positive: one number, {layout.dim} of them, or a mapping "
                f"from sites to arrays, found {'shape ' + str(mass.shape)}."
            )
        return jnp.broadcast_to(jnp.asarray(mass, self.target.dtype), (layout.dim,))

    def _of_site(self, name: str, mass: Any) -> np.ndarray:
        shape = self.target.layout.shapes[name]
        try:
            return np.broadcast_to(np.asarray(mass, np.float64), shape).reshape(-1)
        except (TypeError, ValueError):
            raise ArgumentError(
                f"Expected mass of site '{name}' to be numbers of shape {shape}, or one for all, "
                f"found {mass!r}."
            ) from None

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
