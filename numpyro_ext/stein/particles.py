"""Particles: P points in unconstrained space that are the draws.

Unless an engine takes steps of its own, particles follow a direction by a host optimizer. A step is
then a chain of pure functions on a (P, D) array: score of the particles by the estimator, the
direction phi, and the optimizer's descent along -phi.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.engine import Engine, EngineState, Plan
from numpyro_ext.kernels import Kernel
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count
from ppl_ext.stein.particles import ParticlePart, annealed, check_all_particles

Annealing = Callable[[Array], Array | float]


@dataclass(frozen=True)
class KernelPlan(Plan):
    """As :class:`~numpyro_ext.engine.Plan`, with the kernel for the sites of the target."""

    kernel: Kernel = field(repr=False, compare=False)


class ParticleState(NamedTuple):
    """State of particles that follow a direction.

    Parameters
    ----------
    optimizer : pytree
        State of the optimizer, which holds the particles.
    direction : pytree
        State of the direction, such as the kernel's.
    """

    optimizer: Any
    direction: Any


class ParticleEngine(ParticlePart, Engine):
    """Base of the engines whose approximation is a set of particles.

    A subclass fills in one of three: ``_direction``, which the particles then follow by the
    optimizer; a kernel, by :meth:`_set_kernel`, whose Stein direction they follow; or ``_step``,
    which takes a step of its own, with ``_init_algorithm`` and ``particles``.

    Parameters
    ----------
    model : callable
        NumPyro model, used as it is.
    optim : optimizer or None
        NumPyro or optax optimizer, such as ``numpyro.optim.Adam(0.05)`` or ``optax.adam(0.05)``.
        None where the engine takes steps of its own.
    num_particles : int, default 32
        Number P of particles. One that follows its score is a MAP estimate in unconstrained space.
    **options
        Options of every engine; see :class:`~numpyro_ext.engine.Engine`.

    Raises
    ------
    ArgumentError
        The number of particles is not a positive integer, or ``optim`` is no optimizer.
    """

    # Whether the move of a particle depends on all of them.
    _sees_all = True
    kernel: Kernel

    def __init__(
        self,
        model: Callable[..., Any],
        optim: Any,
        num_particles: int = 32,
        **options: Any,
    ) -> None:
        if optim is None and self._follows:
            raise ArgumentError(
                "Expected a NumPyro or optax optimizer, such as numpyro.optim.Adam(0.05), found "
                "None."
            )
        check_count("num_particles", num_particles)
        super().__init__(model, optim, **options)
        self.num_particles = num_particles

    # -- the direction -------------------------------------------------------------------------

    @property
    def _follows(self) -> bool:
        """Whether the particles follow a direction."""
        return self._has_kernel or type(self)._direction is not ParticleEngine._direction

    def _plan(self, target: LogDensity, rng_key: Array, data: Data) -> Plan:
        found = super()._plan(target, rng_key, data)
        if not self._has_kernel:
            return found
        return KernelPlan(target, found.estimator, self._kernel_for(target.layout))

    def _init_direction(self, plan: Any, particles: Array) -> Any:
        """State of the direction before the first step."""
        return plan.kernel.init(particles) if self._has_kernel else {}

    def _direction(
        self, plan: Any, state: Any, particles: Float[Array, "P D"], scores: Float[Array, "P D"]
    ) -> tuple[Float[Array, "P D"], Any]:
        """Ascent direction phi (P, D), and the direction's next state."""
        return plan.kernel.direction(state, particles, scores)

    def particles(self, state: EngineState) -> Float[Array, "P D"]:
        """Particles of a state in unconstrained space, shape (P, D)."""
        return self.optim.get_params(state.algorithm.optimizer)

    def _init_algorithm(self, plan: Any, start: Array, data: Data) -> Any:
        return ParticleState(self.optim.init(start), self._init_direction(plan, start))

    def _step(
        self, plan: Any, state: EngineState, data: Data
    ) -> tuple[EngineState, Array, dict[str, Array]]:
        particles = self.particles(state)
        target = plan.target
        score, estimator = plan.estimator.estimate(target, state.estimator, particles, data)
        loss = -score.log_density(target.likelihood_temperature).mean()
        seen, scores = self._exchanged((particles, score.score))
        scores = annealed(scores, self.annealing, state.step)
        phi, direction = self._direction(plan, state.algorithm.direction, seen, scores)
        phi = self._laid(plan, self._exchanged(phi))
        # Optimizers descend, and phi ascends.
        optimizer = self.optim.update(-phi, state.algorithm.optimizer, value=loss)
        force_norm = jnp.sqrt((phi**2).sum(axis=1).mean())
        # An optimizer may turn a phi that is not finite into finite particles, as clipping does;
        # the loss must tell then.
        loss = jnp.where(jnp.isfinite(force_norm), loss, jnp.nan)
        following = state._replace(
            algorithm=ParticleState(optimizer, direction), estimator=estimator
        )
        return following, loss, {"force_norm": force_norm}

    def _exchanged(self, tree: Any) -> Any:
        """Particles or scores (P, D) as moves are found from, where devices have parts of them."""
        split = self.sharding is not None and self._sees_all
        return self.sharding.exchanged(tree) if split else tree

    def _start(self, plan: Any, rng_key: Array, data: Data) -> Array:
        return plan.target.initial_positions(self.num_particles, rng_key, data)

    def _num_positions(self, plan: Plan) -> int:
        return self.num_particles

    def _get_params(self, plan: Any, state: EngineState, data: Data) -> dict[str, Any]:
        return {"particles": self.particles(state)}

    def _draw(
        self,
        plan: Any,
        state: EngineState,
        rng_key: Array | None,
        num_samples: int | None,
    ) -> Array:
        check_all_particles(num_samples, self.num_particles)
        return self.particles(state)
