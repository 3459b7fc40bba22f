"""Particles: P points in unconstrained space that are the draws.

Unless an engine takes steps of its own, particles follow a direction by a host optimizer. A step is
then a chain of functions on a (P, D) array: score of the particles by the estimator, the direction
phi, and the optimizer's descent along -phi. Where particles are split over processes, each keeps
its own with their optimizer, and a direction that sees all gathers them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.utils._pytree import tree_map

from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count
from ppl_ext.running import state_files
from ppl_ext.stein.particles import ParticlePart, annealed, check_all_particles
from pyro_ext.density import Data, LogDensity
from pyro_ext.engine import Engine, Plan, Update
from pyro_ext.kernels import Kernel
from pyro_ext.kernels.arrays import divided_coordinates
from pyro_ext.optim import EngineOptimizer, OptimizerLike, Undo

Annealing = Callable[[int], float]
_NAME = "particles"


@dataclass(frozen=True)
class KernelPlan(Plan):
    """As :class:`~pyro_ext.engine.Plan`, with the kernel for the sites of the target."""

    kernel: Kernel = field(repr=False, compare=False)


class ParticleState(NamedTuple):
    """State of an engine that takes steps of its own: particles of shape (P, D)."""

    particles: Float[Tensor, "P D"]


class DirectionState(NamedTuple):
    """State of an engine whose particles follow a direction.

    Parameters
    ----------
    particles : tensor (P, D)
        The optimizer writes into it.
    optimizer : EngineOptimizer
    direction : any
        State of the direction, such as the kernel's: tensors and plain values in containers.
    split : bool
        Whether particles and optimizer are those of one process.
    """

    particles: Float[Tensor, "P D"]
    optimizer: EngineOptimizer
    direction: Any
    split: bool = False


class ParticleEngine(ParticlePart, Engine):
    """Base of the engines whose approximation is a set of particles.

    A subclass fills in one of three: ``_direction``, which the particles then follow by the
    optimizer; a kernel, by :meth:`_set_kernel`, whose Stein direction they follow; or ``_update``,
    which takes a step of its own.

    Parameters
    ----------
    model : callable
        Pyro model, used as it is.
    optim : PyroOptim, callable or None
        A Pyro optimizer such as ``pyro.optim.Adam({"lr": 0.05})``, or a callable from a list of
        tensors to a torch optimizer; see :class:`~pyro_ext.optim.EngineOptimizer`. None where the
        engine takes steps of its own.
    num_particles : int, default 32
        Number P of particles. One that follows its score is a MAP estimate in unconstrained space.
    **options
        Options of every engine; see :class:`~pyro_ext.engine.Engine`.

    Raises
    ------
    ArgumentError
        The number of particles is not a positive integer, or ``optim`` is no optimizer.
    """

    #: Whether the direction of a particle depends on the others.
    _sees_all = True
    kernel: Kernel

    def __init__(
        self,
        model: Callable[..., Any],
        optim: OptimizerLike | None,
        num_particles: int = 32,
        **options: Any,
    ) -> None:
        check_count("num_particles", num_particles)
        if optim is not None or self._follows:
            # Fail on a bad optimizer here rather than at the first step.
            EngineOptimizer(optim, {_NAME: torch.zeros(1, 1)})
        super().__init__(model, optim, **options)
        self.num_particles = int(num_particles)
        if self.sharding is not None and self.num_particles > 1:
            self.sharding.check_positions(self.num_particles)

    # -- the direction -------------------------------------------------------------------------

    @property
    def _follows(self) -> bool:
        """Whether the particles follow a direction."""
        return self._has_kernel or type(self)._direction is not ParticleEngine._direction

    def _undivided(self) -> str | None:
        """Why the direction cannot be found for some coordinates of all particles, or None."""
        if not self._has_kernel:
            return (
                "Expected an engine whose direction can be found for some coordinates of all "
                f"particles, as exchange='all-to-all' does, found {type(self).__name__}. Use "
                "exchange='all-gather'."
            )
        if self.kernel.divides_coordinates:
            return None
        return (
            "Expected a kernel whose coordinates can be divided among processes, as "
            f"exchange='all-to-all' does, found {self.kernel!r}. Use RBF, IMQ, Linear, "
            "Additive, Dilation or sums and multiples of them, with a named rule or a number for "
            "the bandwidth and without arrays or functions, or exchange='all-gather'."
        )

    def _plan(self, target: LogDensity, generator: Generator, data: Data) -> Plan:
        divides = self.sharding is not None and self.sharding.exchange == "all-to-all"
        if divides and self._follows and self._sees_all:
            if (undivided := self._undivided()) is not None:
                raise ArgumentError(undivided)
        found = super()._plan(target, generator, data)
        if not self._has_kernel:
            return found
        return KernelPlan(target, found.estimator, self._kernel_for(target.layout))

    def _init_direction(self, plan: Any, particles: Float[Tensor, "P D"]) -> Any:
        """State of the direction before the first step."""
        return plan.kernel.init(particles.clone()) if self._has_kernel else None

    def _direction(
        self, plan: Any, state: Any, particles: Float[Tensor, "P D"], scores: Float[Tensor, "P D"]
    ) -> tuple[Float[Tensor, "P D"], Any]:
        """Ascent direction phi (P, D), and the direction's next state."""
        if self.annealing is not None:
            scores = annealed(scores, self.annealing, self.num_steps_taken)
        return plan.kernel.direction(state, particles, scores)

    def _initialize(self, plan: Any, data: Data) -> Any:
        positions = plan.target.initial_positions(self.num_particles, self._generator, data)
        particles = positions.detach().clone()
        if not self._follows:
            return ParticleState(particles)
        optimizer = self._new_optimizer(particles)
        direction = self._init_direction(plan, particles.detach())
        sharding = self.sharding
        split = (
            sharding is not None
            and sharding.splits(self.num_particles)
            # What looks at all particles, such as a bound on a norm, has to have them.
            and optimizer.entrywise
            and plan.estimator.position_axes is not None
        )
        if split:
            particles = sharding.own(particles.detach()).clone()
            optimizer = self._new_optimizer(particles)
        return DirectionState(particles, optimizer, direction, split)

    def _new_optimizer(self, particles: Float[Tensor, "P D"]) -> EngineOptimizer:
        assert self.optim is not None
        return EngineOptimizer(self.optim, {_NAME: particles})

    def _update(self, plan: Any, state: Any, data: Data) -> Update:
        particles, optimizer, sharding = state.particles.detach(), state.optimizer, self.sharding
        if state.split:
            own = plan.target.of_own_positions(self.num_particles)
            score = self._score(particles, data, own, cost=float(sharding.particle_parts))
        else:
            score = self._score(particles, data)
        with torch.no_grad():
            log_density = score.log_density(plan.target.likelihood_temperature)
            phi, direction = self._followed(plan, state, particles, score.score)
            figures = torch.stack(
                [-log_density.mean(), phi.square().sum(dim=1).mean(), phi.abs().amax()]
            )
            if state.split:
                every = sharding.of_all(figures)
                figures = torch.cat([every[:, :2].mean(dim=0), every[:, 2:].amax(dim=0)])
            # After the mean over all processes, which a mean of roots would not be.
            figures[1].sqrt_()
        # One transfer from the device for all figures of the step.
        loss, force_norm, largest = figures.tolist()
        # Optimizers keep squares of what they are given. A finite phi whose square is not
        # would break their state for good.
        limit = 0.01 * math.sqrt(torch.finfo(particles.dtype).max)
        finite = math.isfinite(loss) and largest <= limit
        if finite:
            with Undo([particles], optimizer) as undo:
                # Optimizers descend, and phi ascends.
                optimizer.step({_NAME: -phi})
                # A finite direction can still be multiplied to infinity by the learning rate.
                finite = bool(torch.isfinite(particles).all())
                if state.split:
                    finite = not sharding.any(not finite)
                if not finite:
                    undo()
        following = state._replace(direction=direction)
        return Update(loss, {"force_norm": force_norm}, finite, following)

    def _followed(
        self, plan: Any, state: DirectionState, particles: Tensor, scores: Tensor
    ) -> tuple[Tensor, Any]:
        """The direction of these particles, and its next state."""
        if not (state.split and self._sees_all):
            return self._direction(plan, state.direction, particles, scores)
        if self.sharding.exchange == "all-to-all":
            dim = particles.shape[1]
            some = [self.sharding.exchanged(each) for each in (particles, scores)]
            divided = self.sharding.over_particles, dim, self.sharding.filled(dim)
            with divided_coordinates(*divided):
                phi, direction = self._direction(plan, state.direction, *some)
            return self.sharding.returned(phi, dim), direction
        every = (self.sharding.gathered(each, self.num_particles) for each in (particles, scores))
        phi, direction = self._direction(plan, state.direction, *every)
        return self.sharding.own(phi), direction

    # -- particles of all processes, and of one -------------------------------------------------

    @property
    def particles(self) -> Float[Tensor, "P D"]:
        """Present particles in unconstrained space, shape (P, D); a copy.

        Where they are split over processes, all have to ask for them.
        """
        self.target  # noqa: B018 - tells what to do when there are none yet
        own = self._state.particles.detach().clone()
        return self._gathered(own) if self._split else own

    @property
    def _split(self) -> bool:
        return isinstance(self._state, DirectionState) and self._state.split

    def _replicated_state(self) -> Any:
        return self._state.direction if self._split else super()._replicated_state()

    def _estimator_of_all(self) -> Any:
        return self._along_positions(self._estimator_state, self._gathered)

    def _estimator_of_own(self, state: Any) -> Any:
        return self._along_positions(state, self.sharding.own) if self._split else state

    def _along_positions(self, state: Any, function: Callable[[Tensor], Tensor]) -> Any:
        """An estimator's state with a function of what it has for each position."""
        if not self._split:
            return state
        axes = dict(self.plan.estimator.position_axes)

        def changed(leaf: Any, axis: int) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return function(leaf.movedim(axis, 0)).movedim(0, axis).contiguous()

        return {
            name: tree_map(partial(changed, axis=axes[name]), each) if name in axes else each
            for name, each in state.items()
        }

    def _gathered(self, own: Tensor) -> Tensor:
        return self.sharding.gathered(own, self.num_particles)

    def _algorithm_state(self, state: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"particles": state.particles.detach().clone()}
        if not isinstance(state, DirectionState):
            return found
        found |= {"optimizer": state.optimizer.state_dict(), "direction": state.direction}
        return (
            self._of_shape(found, state.particles.shape, self._gathered) if state.split else found
        )

    @staticmethod
    def _of_shape(state: Any, shape: torch.Size, function: Callable[[Tensor], Tensor]) -> Any:
        """A state with a function of the tensors of this shape, which are those of particles."""

        def changed(leaf: Any) -> Any:
            matches = isinstance(leaf, Tensor) and leaf.shape == shape
            return function(leaf) if matches else leaf

        own = ("particles", "optimizer")
        return {name: tree_map(changed, e) if name in own else e for name, e in state.items()}

    def _load_algorithm_state(self, plan: Any, state: Any, saved: dict[str, Any]) -> Any:
        follows = isinstance(state, DirectionState)
        if follows and state.split:
            shape = torch.Size((self.num_particles, plan.target.dim))
            saved = self._of_shape(saved, shape, lambda each: self.sharding.own(each).clone())
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
        if not follows:
            return state
        state.optimizer.load_state_dict(saved["optimizer"])
        return state._replace(direction=saved["direction"])

    def _draw(self, plan: Any, state: Any, num_samples: int | None) -> Tensor:
        check_all_particles(num_samples, self.num_particles)
        return self.particles
