"""What the particle engines share: P points in unconstrained space that are the draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count
from ppl_ext.running import state_files
from pyro_ext.density import Data
from pyro_ext.engine import Engine
from pyro_ext.optim import EngineOptimizer, OptimizerLike


class ParticleState(NamedTuple):
    """State of an engine of particles, shape (P, D)."""

    particles: Float[Tensor, "P D"]


class ParticleEngine(Engine):
    """Base of the engines whose approximation is a set of particles.

    Parameters
    ----------
    model : callable
        Pyro model, used as it is.
    optim : PyroOptim, callable or None
        A Pyro optimizer such as ``pyro.optim.Adam({"lr": 0.05})``, or a callable from a list of
        tensors to a torch optimizer; see :class:`~pyro_ext.optim.EngineOptimizer`.
    num_particles : int, default 32
        Number P of particles.
    **options
        Options of every engine; see :class:`~pyro_ext.engine.Engine`.

    Raises
    ------
    ArgumentError
        The number of particles is not a positive integer, or ``optim`` is no optimizer.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        optim: OptimizerLike | None,
        num_particles: int = 32,
        **options: Any,
    ) -> None:
        check_count("num_particles", num_particles)
        if optim is not None:
            # Fail on a bad optimizer here rather than at the first step.
            EngineOptimizer(optim, {"particles": torch.zeros(1, 1)})
        super().__init__(model, optim, **options)
        self.num_particles = int(num_particles)
        if self.sharding is not None and self.num_particles > 1:
            self.sharding.check_positions(self.num_particles)

    def _settings(self) -> dict[str, str]:
        return {"num_particles": repr(self.num_particles), **super()._settings()}

    @property
    def particles(self) -> Float[Tensor, "P D"]:
        """Present particles in unconstrained space, shape (P, D); a copy."""
        self.target  # noqa: B018 - tells what to do when there are none yet
        return self._state.particles.detach().clone()

    def _initialize(self, plan: Any, data: Data) -> Any:
        positions = plan.target.initial_positions(self.num_particles, self._generator, data)
        return ParticleState(positions.detach().clone())

    def _algorithm_state(self, state: Any) -> dict[str, Any]:
        return {"particles": state.particles.detach().clone()}

    def _load_algorithm_state(self, plan: Any, state: Any, saved: dict[str, Any]) -> Any:
        present, found = state.particles, saved["particles"]
        if found.shape != present.shape or found.dtype != present.dtype:
            raise ArgumentError(
                f"Expected a saved state of {present.shape[0]} particles ({present.dtype}), found "
                f"{found.shape[0]} ({found.dtype}). Make the engine with the num_particles and "
                "dtype of the saved run."
            )
        state_files.check_finite({"particles": torch.isfinite(found).all()})
        with torch.no_grad():
            present.copy_(found)
        return state

    def _draw(self, plan: Any, state: Any, num_samples: int | None) -> Tensor:
        if num_samples not in (None, self.num_particles):
            raise ArgumentError(
                f"Expected num_samples to be None or the number of particles, "
                f"{self.num_particles}, found {num_samples}: the particles are the draws."
            )
        return self.particles
