"""Particles that follow a direction by a host optimizer.

A step is a chain of functions on a (P, D) array: score of the particles by the estimator, the
engine's direction phi, and the optimizer's descent along -phi.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_ext.density import Data
from pyro_ext.engine import Update
from pyro_ext.optim import EngineOptimizer, OptimizerLike
from pyro_ext.stein.particles import ParticleEngine

_NAME = "particles"


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

    @abstractmethod
    def _direction(self, plan: Any, particles: Tensor, scores: Tensor) -> tuple[Tensor, Any]:
        """Ascent direction phi (P, D), and what :meth:`_accept` needs if the step is taken."""

    def _accept(self, result: Any) -> None:
        """Take over the direction's next state."""

    def _initialize(self, plan: Any, data: Data) -> None:
        super()._initialize(plan, data)
        self._start_optimizer()

    def _start_optimizer(self) -> None:
        assert self.optim is not None and self._particles is not None
        self._optimizer = EngineOptimizer(self.optim, {_NAME: self._particles})

    def _update(self, plan: Any, data: Data) -> Update:
        assert self._particles is not None and self._optimizer is not None
        particles = self._particles.detach()
        score = self._score(particles, data)
        with torch.no_grad():
            log_density = score.log_density(plan.target.likelihood_temperature)
            phi, result = self._direction(plan, particles, score.score)
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
            before = particles.clone(), self._optimizer.snapshot()
            self._optimizer.step({_NAME: -phi})
            # A finite direction can still be multiplied to infinity by the learning rate.
            finite = bool(torch.isfinite(self._particles).all())
            if finite:
                self._accept(result)
            else:
                particles.copy_(before[0])
                self._optimizer.load_state_dict(before[1])
        return Update(loss, {"force_norm": force_norm}, finite)

    def _algorithm_state(self) -> dict[str, Any]:
        assert self._optimizer is not None
        return {"particles": self.particles, "optimizer": self._optimizer.state_dict()}

    def _load_algorithm_state(self, state: dict[str, Any]) -> None:
        assert self._particles is not None and self._optimizer is not None
        self._load_particles(state["particles"])
        self._optimizer.load_state_dict(state["optimizer"])
