"""What the particle engines share: P points in unconstrained space that are the draws."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from jax import Array
from jaxtyping import Float

from numpyro_ext.density import Data
from numpyro_ext.engine import Engine, EngineState, Plan
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count


class ParticleEngine(Engine):
    """Base of the engines whose approximation is a set of particles.

    Parameters
    ----------
    model : callable
        NumPyro model, used as it is.
    optim : optimizer or None
        NumPyro or optax optimizer.
    num_particles : int, default 32
        Number P of particles.
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
        check_count("num_particles", num_particles)
        super().__init__(model, optim, **options)
        self.num_particles = num_particles

    def _settings(self) -> dict[str, str]:
        return {"num_particles": repr(self.num_particles), **super()._settings()}

    # Whether the move of a particle depends on all of them.
    _sees_all = True

    def _exchanged(self, tree: Any) -> Any:
        """Particles or scores (P, D) as moves are found from, where devices have parts of them."""
        split = self.sharding is not None and self._sees_all
        return self.sharding.exchanged(tree) if split else tree

    @abstractmethod
    def particles(self, state: EngineState) -> Float[Array, "P D"]:
        """Particles of a state in unconstrained space, shape (P, D)."""

    def _start(self, plan: Any, rng_key: Array, data: Data) -> Array:
        positions: Array = plan.target.initial_positions(self.num_particles, rng_key, data)
        return positions

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
        if num_samples not in (None, self.num_particles):
            raise ArgumentError(
                f"Expected num_samples to be None or the number of particles, "
                f"{self.num_particles}, found {num_samples}: the particles are the draws."
            )
        return self.particles(state)
