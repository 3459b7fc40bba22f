"""Particles that follow a direction by a host optimizer.

A step is a chain of functions on a (P, D) array: score of the particles by the estimator, the
engine's direction phi, and the optimizer's descent along -phi.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_ext.density import Data
from pyro_ext.engine import Update
from pyro_ext.optim import EngineOptimizer, OptimizerLike, Undo
from pyro_ext.stein.particles import ParticleEngine

_NAME = "particles"


class DirectionState(NamedTuple):
    """State of an engine whose particles follow a direction.

    Parameters
    ----------
    particles : tensor (P, D)
        The optimizer writes into it.
    optimizer : EngineOptimizer
    direction : any
        State of the direction, such as the kernel's: tensors and plain values in containers.
    """

    particles: Float[Tensor, "P D"]
    optimizer: EngineOptimizer
    direction: Any


class DirectionEngine(ParticleEngine):
    """Base of the engines whose particles follow a direction phi by a host optimizer.

    Parameters
    ----------
    model : callable
        Pyro model, used as it is.
    optim : PyroOptim or callable
        A Pyro optimizer such as ``pyro.optim.Adam({"lr": 0.05})``, or a callable from a list of
        tensors to a torch optimizer; see :class:`~pyro_ext.optim.EngineOptimizer`.
    num_particles : int, default 32
        Number P of particles. One particle is a MAP estimate in unconstrained space.
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
        optim: OptimizerLike,
        num_particles: int = 32,
        **options: Any,
    ) -> None:
        if optim is None:
            # Which says what to pass instead.
            EngineOptimizer(optim, {_NAME: torch.zeros(1, 1)})
        super().__init__(model, optim, num_particles, **options)

    def _init_direction(self, plan: Any, particles: Float[Tensor, "P D"]) -> Any:
        """State of the direction before the first step."""

    @abstractmethod
    def _direction(
        self, plan: Any, state: Any, particles: Float[Tensor, "P D"], scores: Float[Tensor, "P D"]
    ) -> tuple[Float[Tensor, "P D"], Any]:
        """Ascent direction phi (P, D), and the direction's next state."""

    def _initialize(self, plan: Any, data: Data) -> DirectionState:
        particles = super()._initialize(plan, data).particles
        optimizer = self._new_optimizer(particles)
        return DirectionState(particles, optimizer, self._init_direction(plan, particles.detach()))

    def _new_optimizer(self, particles: Float[Tensor, "P D"]) -> EngineOptimizer:
        assert self.optim is not None
        return EngineOptimizer(self.optim, {_NAME: particles})

    def _update(self, plan: Any, state: DirectionState, data: Data) -> Update:
        particles, optimizer = state.particles.detach(), state.optimizer
        score = self._score(particles, data)
        with torch.no_grad():
            log_density = score.log_density(plan.target.likelihood_temperature)
            phi, direction = self._direction(plan, state.direction, particles, score.score)
            figures = torch.stack(
                [-log_density.mean(), phi.square().sum(dim=1).mean().sqrt(), phi.abs().amax()]
            )
        # One transfer from the device for all figures of the step.
        loss, force_norm, largest = figures.tolist()
        # Optimizers keep squares of what they are given. A finite phi whose square is not
        # would break their state for good.
        limit = 0.01 * math.sqrt(torch.finfo(particles.dtype).max)
        finite = math.isfinite(loss) and largest <= limit
        if finite:
            with Undo([particles], optimizer) as undo:
                optimizer.step({_NAME: -phi})
                # A finite direction can still be multiplied to infinity by the learning rate.
                finite = bool(torch.isfinite(particles).all())
                if not finite:
                    undo()
        following = state._replace(direction=direction)
        return Update(loss, {"force_norm": force_norm}, finite, following)

    def _algorithm_state(self, state: DirectionState) -> dict[str, Any]:
        own = {"optimizer": state.optimizer.state_dict(), "direction": state.direction}
        return {**super()._algorithm_state(state), **own}

    def _load_algorithm_state(self, plan: Any, state: DirectionState, saved: dict[str, Any]) -> Any:
        super()._load_algorithm_state(plan, state, saved)
        state.optimizer.load_state_dict(saved["optimizer"])
        return state._replace(direction=saved["direction"])
