"""Particles that follow a direction by a host optimizer.

A step is a chain of pure functions on a (P, D) array: score of the particles by the estimator,
the engine's direction phi, and the optimizer's descent along -phi.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from numpyro_ext.density import Data
from numpyro_ext.engine import EngineState
from numpyro_ext.stein.particles import ParticleEngine
from ppl_ext.errors import ArgumentError


class ParticleState(NamedTuple):
    """State of a particle engine.

    Parameters
    ----------
    optimizer : pytree
        State of the optimizer, which holds the particles.
    direction : pytree
        State of the direction, such as the kernel's.
    """

    optimizer: Any
    direction: Any


class DirectionEngine(ParticleEngine):
    """Base of the engines whose particles follow a direction phi by a host optimizer.

    Parameters
    ----------
    model : callable
        NumPyro model, used as it is.
    optim : optimizer
        NumPyro or optax optimizer, such as ``numpyro.optim.Adam(0.05)`` or ``optax.adam(0.05)``.
    num_particles : int, default 32
        Number P of particles. One particle is a MAP estimate in unconstrained space.
    **options
        Options of every engine; see :class:`~numpyro_ext.engine.Engine`.

    Raises
    ------
    ArgumentError
        The number of particles is not a positive integer, or ``optim`` is no optimizer.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        optim: Any,
        num_particles: int = 32,
        **options: Any,
    ) -> None:
        if optim is None:
            raise ArgumentError(
                "Expected a NumPyro or optax optimizer, such as numpyro.optim.Adam(0.05), found "
                "None."
            )
        super().__init__(model, optim, num_particles, **options)

    @abstractmethod
    def _init_direction(self, plan: Any, particles: Array) -> Any:
        """State of the direction before the first step."""

    @abstractmethod
    def _direction(
        self,
        plan: Any,
        state: Any,
        particles: Float[Array, "P D"],
        scores: Float[Array, "P D"],
        step: Array,
    ) -> tuple[Float[Array, "P D"], Any]:
        """Ascent direction phi (P, D), and the direction's next state."""

    def particles(self, state: EngineState) -> Float[Array, "P D"]:
        """Particles of a state in unconstrained space, shape (P, D)."""
        return self.optim.get_params(state.algorithm.optimizer)

    def _init_algorithm(self, plan: Any, start: Array, data: Data) -> ParticleState:
        return ParticleState(self.optim.init(start), self._init_direction(plan, start))

    def _step(
        self, plan: Any, state: EngineState, data: Data
    ) -> tuple[EngineState, Array, dict[str, Array]]:
        particles = self.particles(state)
        target = plan.target
        score, estimator = plan.estimator.estimate(target, state.estimator, particles, data)
        log_density = score.log_density(target.likelihood_temperature)
        loss = -log_density.mean()
        seen, scores = self._exchanged((particles, score.score))
        phi, direction = self._direction(plan, state.algorithm.direction, seen, scores, state.step)
        phi = self._laid(plan, self._exchanged(phi))
        optimizer = self.optim.update(-phi, state.algorithm.optimizer, value=loss)
        force_norm = jnp.sqrt((phi**2).sum(axis=1).mean())
        # An optimizer may turn a phi that is not finite into finite particles, as clipping does;
        # the loss must tell then.
        loss = jnp.where(jnp.isfinite(force_norm), loss, jnp.nan)
        following = state._replace(
            algorithm=ParticleState(optimizer, direction), estimator=estimator
        )
        return following, loss, {"force_norm": force_norm}
