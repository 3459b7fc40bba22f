"""Stein variational Newton (``SVN``), with the Gauss-Newton curvature of programs without
discrete latents."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from pyro.infer.svgd import SteinKernel
from torch import Generator, Tensor

from ppl_ext.process import hold
from ppl_ext.stein.damping import judged_moves, rows_of_a_step
from ppl_ext.stein.newton import (
    Coupling,
    LevenbergMarquardt,
    NewtonPart,
    NewtonSystem,
    Solver,
    choose_solver,
)
from pyro_ext.curvature import Curvature, GaussNewton, ProgramCurvature, Structure
from pyro_ext.curvature.coordinates import Coordinates
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.handlers import global_generator
from pyro_ext.density.layout import Indices
from pyro_ext.engine import Plan, Update
from pyro_ext.kernels import (
    IMQ,
    RBF,
    Kernel,
    Linear,
    ProductMetric,
    as_kernel,
    default_kernel,
    mixture,
)
from pyro_ext.optim import EngineOptimizer, OptimizerLike, Undo
from pyro_ext.stein.newton_system import LinearSystem
from pyro_ext.stein.particles import ParticleEngine


@dataclass(frozen=True)
class NewtonPlan(Plan):
    """What ``SVN`` decides when it meets the model's arguments.

    Parameters
    ----------
    program : ProgramCurvature
        What is found once about the program.
    others : Coordinates
        Those that the optimizer moves.
    solver : {"dense", "dual", "cg"}
        Of the Newton system: the one given, or the cheapest.
    """

    program: ProgramCurvature = field(repr=False, compare=False)
    others: Coordinates = field(repr=False, compare=False)
    solver: Solver


class NewtonState(NamedTuple):
    """What the next step needs.

    Parameters
    ----------
    particles : tensor (P, D)
    optimizer : EngineOptimizer, optional
    moved : tensor (P, others), optional
        The coordinates that the optimizer moves, into which it writes.
    damping : float
        At the next step.
    radius : tensor (P,), optional
        Trust radius of each particle at the next step.
    curvature : Curvature, optional
        That of an earlier step, where a later one may use it.
    curvature_age : int
        Steps that it has served.
    """

    particles: Float[Tensor, "P D"]
    optimizer: EngineOptimizer | None
    moved: Float[Tensor, "P others"] | None
    damping: float
    radius: Float[Tensor, " P"] | None
    curvature: Curvature | None = None
    curvature_age: int = 0


def curvature_kernel(coupling: Coupling = "full") -> Kernel:
    """The default kernel of ``SVN``, in the metric of the curvature.

    For the full system it is that of the other engines. The block-diagonal one divides by squares
    of the kernel, so that a kernel without bound stops particles that are far apart: it has the
    kernel of Leviyev et al. (2022, equation 17) instead.

    Parameters
    ----------
    coupling : {"full", "block_diagonal"}
        Of the Newton system.
    """
    if coupling == "block_diagonal":
        return RBF("dimension", metric="curvature")
    return mixture([IMQ("dimension", metric="curvature"), Linear("curvature")])


_NAME = "particles"


class SVN(NewtonPart, ParticleEngine):
    """Stein variational Newton with Gauss-Newton curvature.

    A step solves a linear system for the move of all particles that would be Newton's in the
    kernel's space (Detommaso et al. 2018), with the curvature of the prior and the Gauss-Newton
    matrix of the likelihood, found from the program's observed distributions; a program with
    discrete latent sites, or with a factor in its likelihood, is refused. It converges in tens of
    steps where SVGD takes thousands. Damping adapts to how well the quadratic model
    foretells the density, and steps that would lower it against the model are not taken.

    Parameters
    ----------
    model : callable
        Pyro model, used as it is. Its likelihood is made of observed sample sites.
    optim : PyroOptim or callable, optional
        See :class:`~pyro_ext.optim.EngineOptimizer`. With sites in ``curvature`` it moves all
        other sites, along SVGD's direction, and is needed. Otherwise it takes the Newton direction
        in place of ``step_size``; adaptive optimizers undo the direction's scaling.
    kernel : Kernel or pyro.infer.svgd.SteinKernel, optional
        ``RBF``, ``IMQ``, ``Linear``, or sums and multiples of them. With
        ``metric="curvature"`` distances are taken in the mean curvature of the particles, as in
        equation 17 of Leviyev et al. (2022), which is ``RBF("dimension", metric="curvature")``.
        Default: :func:`~pyro_ext.stein.curvature_kernel`, by the system. With sites in
        ``curvature`` it is the kernel of these; the others have that of ``SVGD``.
    num_particles : int, default 32
        Number P of particles. One particle is a MAP estimate in unconstrained space.
    curvature : GaussNewton or {"full", "diag", "kfac", "low_rank"}
        Curvature of the likelihood, which may be that of some sites alone, such as those of a
        network's last layer: these take Newton steps, and all others follow SVGD's direction.
    system : NewtonSystem or {"full", "block_diagonal"}
        The linear system of a step and how it is solved.
    step_size : float or callable
        Share of the Newton move that is taken, or a map of the number of steps taken to it, which
        should fall to zero where minibatches are to be averaged out.
    damping : LevenbergMarquardt or float
        Damping of the steps, or its value at the start.
    **options
        Options of every engine; see :class:`~pyro_ext.engine.Engine`.

    Raises
    ------
    ArgumentError
        An option is out of range; from ``setup``, the likelihood has factors, or the model has
        latents inside a subsampled plate, whose curvature no minibatch tells.

    Notes
    -----
    The loss is minus the mean log density of the particles before the step, an estimate where the
    score is one. ``info`` holds ``damping``, ``solved`` (0 where the system was singular or
    indefinite: the particles stay and damping grows), ``residual`` and ``iterations`` of conjugate
    gradients, and ``force_norm``, the root mean square over particles of SVGD's direction; with
    damping that adapts also ``accepted`` (the share of particles that moved) and ``disagreement``
    (of the quadratic model with the density, from 0 to 2).

    References
    ----------
    G. Detommaso, T. Cui, A. Spantini, Y. Marzouk and R. Scheichl, "A Stein variational Newton
    method", NeurIPS 2018, https://arxiv.org/abs/1806.03085; A. Leviyev, J. Chen, Y. Wang, O.
    Ghattas and A. Zimmerman, "A stochastic Stein variational Newton method", 2022,
    https://arxiv.org/abs/2204.09039; for networks, K. Flöge, M. A. Moeed and V. Fortuin, "Stein
    variational Newton neural network ensembles".

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> engine = px.SVN(model, num_particles=20, seed=0)
    >>> result = engine.run(20, y)
    >>> draws = engine.get_samples()
    >>> print(f"{draws['mean'].mean():.1f} {draws['mean'].std():.1f}")
    2.0 0.5
    """

    # The curvature of a row's own latents is not that of a minibatch, scaled up.
    allow_local_latents = False
    _an_optimizer = 'pyro.optim.Adam({"lr": 0.01})'
    _kernel_by = staticmethod(curvature_kernel)
    _as_kernel = staticmethod(as_kernel)
    _metric = ProductMetric
    _coordinates = Coordinates

    def __init__(
        self,
        model: Callable[..., Any],
        optim: OptimizerLike | None = None,
        kernel: Kernel | SteinKernel | None = None,
        num_particles: int = 32,
        *,
        curvature: Structure | GaussNewton = "full",
        system: Coupling | NewtonSystem = "full",
        step_size: float | Callable[[Any], Any] = 0.5,
        damping: float | LevenbergMarquardt = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(model, optim, num_particles, **options)
        self._set_newton(optim, kernel, curvature, system, step_size, damping)

    def _plan(self, target: LogDensity, generator: Generator, data: Data) -> NewtonPlan:
        estimator = super()._plan(target, generator, data).estimator
        program = ProgramCurvature(target, data, self.curvature)
        solver = self._solver(target, program, data, rows_of_a_step(estimator, target))
        others = self._others(target, program)
        return NewtonPlan(target, estimator, program, others, solver)

    def _solver(
        self, target: LogDensity, program: ProgramCurvature, data: Data, rows: Indices | None
    ) -> Solver:
        """The solver that was given, or the cheapest; sizes decide."""
        # So anywhere will do.
        generator = torch.Generator().manual_seed(0)
        shape = self.num_particles, target.dim
        uniform = torch.rand(shape, generator=generator, dtype=target.dtype)
        particles = (2.0 * uniform - 1.0).to(target.device)
        with torch.no_grad(), global_generator(0):
            curvature = program.at(target, particles, data, rows)
            costs = self._costs(program, curvature, particles)
        return choose_solver(self.system.solver, costs)

    def _initialize(self, plan: NewtonPlan, data: Data) -> NewtonState:
        particles = super()._initialize(plan, data).particles
        options, radius = self.damping, None
        if options.trust_radius is not None:
            radius = torch.full_like(particles[:, 0], options.trust_radius)
        if self.optim is None:
            return NewtonState(particles, None, None, options.damping, radius)
        moved = plan.others.part(particles).clone()
        optimizer = EngineOptimizer(self.optim, {_NAME: moved})
        return NewtonState(particles, optimizer, moved, options.damping, radius)

    def _update(self, plan: NewtonPlan, state: NewtonState, data: Data) -> Update:
        particles, where = state.particles, plan.program.where
        score = self._score(particles, data)
        with torch.no_grad():
            loss = float(-score.log_density(plan.target.likelihood_temperature).mean())
            if not (math.isfinite(loss) and bool(torch.isfinite(score.score).all())):
                return Update(loss, {}, False)

            curvature, age = self._curvature(plan, state, score.indices, data)
            points, scores = where.part(particles), where.part(score.score)
            kernel, options = self._kernel_of(curvature), (self.system, plan.solver)
            solution, phi = LinearSystem.solved(
                kernel, curvature, points, scores, state.damping, *options
            )

            # The optimizer writes its state as it moves, before it is known whether all is finite.
            undo = _undo(state)
            with undo or nullcontext():
                moves = self._moves(state, points, solution.moves)
                judged = plan, state, data, score, moves, curvature, solution.solved
                judgement, taken = judged_moves(torch, self.damping, *judged)
                moved = where.placed(particles, points + taken)
                if self.curvature.sites is not None:
                    others = _move_others(plan, state, score.score)
                    moved = plan.others.placed(moved, others)
                finite = bool(torch.isfinite(moved).all())
                if not finite and undo is not None:
                    undo()
            if finite:
                hold()
                particles.copy_(moved)
                if state.moved is not None and self.curvature.sites is None:
                    # The optimizer goes on from where the particles are, also those that stayed.
                    state.moved.copy_(moved)
        # A curvature that no later step uses would only be saved and copied.
        kept = curvature if self.curvature.every > 1 else None
        following = state._replace(
            damping=float(judgement.damping),
            radius=judgement.radius,
            curvature=kept,
            curvature_age=age,
        )
        info = {
            "solved": float(solution.solved),
            "residual": solution.residual,
            "iterations": float(solution.iterations),
            "force_norm": float(phi.square().sum(dim=1).mean().sqrt()),
            "damping": following.damping,
        }
        if self.damping.adapt:
            info["disagreement"] = float(judgement.disagreement)
            info["accepted"] = float(judgement.accepted.double().mean())
        return Update(loss, info, finite, following)

    def _curvature(
        self, plan: NewtonPlan, state: NewtonState, indices: Indices | None, data: Data
    ) -> tuple[Curvature, int]:
        """The curvature of this step, and the steps that it has then served."""
        if state.curvature is not None and state.curvature_age < self.curvature.every:
            return state.curvature, state.curvature_age + 1
        return plan.program.at(plan.target, state.particles, data, indices), 1

    def _moves(self, state: NewtonState, points: Tensor, moves: Tensor) -> Tensor:
        """The share of Newton's moves that is wanted."""
        if state.optimizer is None or self.curvature.sites is not None:
            size, steps = self.step_size, self.num_steps_taken
            return moves * (size(steps) if callable(size) else size)
        assert state.moved is not None
        state.optimizer.step({_NAME: -moves})
        return state.moved.detach() - points

    def _algorithm_state(self, state: NewtonState) -> dict[str, Any]:
        return {
            **super()._algorithm_state(state),
            "optimizer": None if state.optimizer is None else state.optimizer.state_dict(),
            "damping": state.damping,
            "radius": state.radius,
            "curvature_age": state.curvature_age,
            "curvature": None if state.curvature is None else state.curvature.as_tensors(),
        }

    def _load_algorithm_state(self, plan: Any, state: NewtonState, saved: dict[str, Any]) -> Any:
        super()._load_algorithm_state(plan, state, saved)
        if state.optimizer is not None and state.moved is not None:
            with torch.no_grad():
                # The optimizer's tensors are copies of particles, which were put in place above.
                state.moved.copy_(plan.others.part(state.particles))
            state.optimizer.load_state_dict(saved["optimizer"])
        found = saved["curvature"]
        return state._replace(
            damping=saved["damping"],
            radius=saved["radius"],
            curvature=None if found is None else Curvature.from_tensors(found),
            curvature_age=saved["curvature_age"],
        )


def _undo(state: NewtonState) -> Undo | None:
    if state.optimizer is None or state.moved is None:
        return None
    return Undo([state.moved], state.optimizer)


def _move_others(plan: NewtonPlan, state: NewtonState, scores: Tensor) -> Tensor:
    """The coordinates of other sites, moved along SVGD's direction by the optimizer."""
    assert state.optimizer is not None and state.moved is not None
    kernel, points = default_kernel(), plan.others.part(state.particles)
    phi, _ = kernel.direction(kernel.init(points), points, plan.others.part(scores))
    state.optimizer.step({_NAME: -phi})
    return state.moved.detach()
