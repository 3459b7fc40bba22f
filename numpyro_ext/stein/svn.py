"""Stein variational Newton (``SVN``), with the Gauss-Newton curvature of programs without
discrete latents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jaxtyping import Float, Int
from numpyro.contrib.einstein.stein_kernels import SteinKernel

from numpyro_ext.curvature import Curvature, GaussNewton, ProgramCurvature, Structure
from numpyro_ext.curvature.coordinates import Coordinates
from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.layout import Indices
from numpyro_ext.engine import EngineState, Plan
from numpyro_ext.kernels import (
    IMQ,
    RBF,
    Kernel,
    Linear,
    ProductMetric,
    as_kernel,
    default_kernel,
    mixture,
)
from numpyro_ext.programs import concretely
from numpyro_ext.stein.newton_system import LinearSystem
from numpyro_ext.stein.particles import ParticleEngine
from ppl_ext.errors import ArgumentError
from ppl_ext.stein.damping import judged_moves, rows_of_a_step
from ppl_ext.stein.newton import (
    Coupling,
    LevenbergMarquardt,
    NewtonPart,
    NewtonSystem,
    Solver,
    choose_solver,
)


class NewtonState(NamedTuple):
    """State of ``SVN``.

    Parameters
    ----------
    particles : Array
        Shape (P, D).
    optimizer : pytree
        State of the optimizer, if there is one.
    damping : Array
        Levenberg-Marquardt damping of the next step, in units of the curvature.
    radius : Array (P,), optional
        Trust radius of each particle at the next step.
    curvature : Curvature or None
        The last curvature, where it serves several steps.
    curvature_age : Array
        Steps that it has served.
    """

    particles: Float[Array, "P D"]
    optimizer: Any
    damping: Float[Array, ""]
    radius: Float[Array, " P"] | None
    curvature: Curvature | None
    curvature_age: Int[Array, ""]


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
        NumPyro model, used as it is. Its likelihood is made of observed sample sites.
    optim : optimizer, optional
        NumPyro or optax optimizer. With sites in ``curvature`` it moves all other sites, along
        SVGD's direction, and is needed. Otherwise it takes the Newton direction in place of
        ``step_size``; adaptive optimizers undo the direction's scaling.
    kernel : Kernel or numpyro SteinKernel, optional
        ``RBF``, ``IMQ``, ``Linear``, or sums and multiples of them. With
        ``metric="curvature"`` distances are taken in the mean curvature of the particles, as in
        equation 17 of Leviyev et al. (2022), which is ``RBF("dimension", metric="curvature")``.
        Default: :func:`~numpyro_ext.stein.curvature_kernel`, by the system. With sites in
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
        Options of every engine; see :class:`~numpyro_ext.engine.Engine`.

    Raises
    ------
    ArgumentError
        An option is out of range; from ``init``, the likelihood has factors, or the model has
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
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> engine = nx.SVN(model, num_particles=20)
    >>> result = engine.run(jax.random.key(0), 20, y)
    >>> draws = engine.get_samples(result.state)
    >>> print(f"{draws['mean'].mean():.1f} {draws['mean'].std(ddof=1):.1f}")
    2.0 0.5
    """

    # The curvature of a row's own latents is not that of a minibatch, scaled up.
    allow_local_latents = False
    _an_optimizer = "numpyro.optim.Adam(0.01)"
    _kernel_by = staticmethod(curvature_kernel)
    _as_kernel = staticmethod(as_kernel)
    _metric = ProductMetric
    _coordinates = Coordinates
    _usual_steps = 30

    def __init__(
        self,
        model: Callable[..., Any],
        optim: Any = None,
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

    def _plan(self, target: LogDensity, rng_key: Array, data: Data) -> NewtonPlan:
        estimator = super()._plan(target, rng_key, data).estimator
        # Values decide, so a step that is being compiled waits.
        with concretely():
            program = ProgramCurvature(target, data, self.curvature)
        solver = self._solver(target, program, data, rows_of_a_step(estimator, target))
        others = self._others(target, program)
        return NewtonPlan(target, estimator, program, others, solver)

    def _solver(
        self, target: LogDensity, program: ProgramCurvature, data: Data, rows: Indices | None
    ) -> Solver:
        """The solver that was given, or the cheapest; sizes decide."""
        costs: dict[Solver, float] = {}

        def look(particles: Array, data: Data, rng_key: Array) -> None:
            curvature = program.at(target, particles, data, rows, rng_key)
            costs.update(self._costs(program, curvature, particles))

        particles = jax.ShapeDtypeStruct((self.num_particles, target.dim), target.dtype)
        # Shapes are enough, and nothing is computed.
        jax.eval_shape(look, particles, data, random.PRNGKey(0))
        return choose_solver(self.system.solver, costs)

    def particles(self, state: EngineState) -> Float[Array, "P D"]:
        """Particles of a state in unconstrained space, shape (P, D)."""
        return state.algorithm.particles

    def _init_algorithm(self, plan: NewtonPlan, start: Array, data: Data) -> NewtonState:
        optimizer: Any = {}
        if self.optim is not None:
            optimizer = self.optim.init(plan.others.part(start))
        cached = None
        if self.curvature.every > 1:
            target, key = plan.target, random.PRNGKey(0)
            rows = rows_of_a_step(plan.estimator, target)
            shape = jax.eval_shape(lambda: plan.program.at(target, start, data, rows, key))
            cached = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
        radius = self.damping.trust_radius
        return NewtonState(
            start,
            optimizer,
            jnp.asarray(self.damping.damping, start.dtype),
            None if radius is None else jnp.full(len(start), radius, start.dtype),
            cached,
            # The first step finds a curvature.
            jnp.asarray(self.curvature.every, jnp.int32),
        )

    def _step(
        self, plan: NewtonPlan, state: EngineState, data: Data
    ) -> tuple[EngineState, Array, dict[str, Array]]:
        before: NewtonState = state.algorithm
        particles, where = before.particles, plan.program.where
        rng_key = curvature_key = state.rng_key
        if plan.program.drawn:
            rng_key, curvature_key = random.split(rng_key)
        score, estimator = plan.estimator.estimate(plan.target, state.estimator, particles, data)
        loss = -score.log_density(plan.target.likelihood_temperature).mean()

        curvature, age = self._curvature(plan, before, score.indices, data, curvature_key)
        seen, scores = self._exchanged((where.part(particles), where.part(score.score)))
        kernel, options = self._kernel_of(curvature), (self.system, plan.solver)
        solution, phi = LinearSystem.solved(
            kernel, curvature, seen, scores, before.damping, *options
        )
        found = self._laid(plan, self._exchanged(solution.moves))

        moves, optimizer = self._moves(before, found, loss, state.step)
        judged = plan, before, data, score, moves, curvature, solution.solved
        judgement, taken = judged_moves(jnp, self.damping, *judged)
        moved = where.placed(particles, where.part(particles) + taken)
        if self.curvature.sites is not None:
            others, optimizer = self._move_others(plan, before, score.score, loss)
            moved = plan.others.placed(moved, others)

        figures = {
            "solved": solution.solved.astype(loss.dtype),
            "residual": solution.residual,
            "iterations": solution.iterations.astype(loss.dtype),
            "force_norm": jnp.sqrt((phi**2).sum(axis=1).mean()),
            "damping": judgement.damping,
        }
        if self.damping.adapt:
            figures["disagreement"] = judgement.disagreement
            figures["accepted"] = judgement.accepted.mean(dtype=loss.dtype)
        # What is not finite in a step is the engine's to report, and here what is not in the score.
        loss = jnp.where(jnp.isfinite(score.score).all(), loss, jnp.nan)
        kept = None if before.curvature is None else curvature
        following = NewtonState(moved, optimizer, judgement.damping, judgement.radius, kept, age)
        state = state._replace(algorithm=following, estimator=estimator, rng_key=rng_key)
        return state, loss, figures

    def _curvature(
        self,
        plan: NewtonPlan,
        before: NewtonState,
        indices: Indices | None,
        data: Data,
        rng_key: Array,
    ) -> tuple[Curvature, Array]:
        """The curvature of this step, and the steps that it has then served."""

        def fresh() -> Curvature:
            return plan.program.at(plan.target, before.particles, data, indices, rng_key)

        cached = before.curvature
        if cached is None:
            return fresh(), before.curvature_age
        if jax.tree.map(jnp.shape, jax.eval_shape(fresh)) != jax.tree.map(jnp.shape, cached):
            raise ArgumentError(
                "Expected batches of one size for a curvature that serves several steps, found "
                "others. Leave out the last, smaller batch, or use GaussNewton(every=1)."
            )
        due = before.curvature_age >= self.curvature.every
        age = jnp.where(due, 1, before.curvature_age + 1)
        return lax.cond(due, fresh, lambda: cached), age

    def _moves(
        self, before: NewtonState, moves: Array, loss: Array, step: Array
    ) -> tuple[Array, Any]:
        """The share of Newton's moves that is wanted, and the optimizer's next state."""
        if self.optim is None or self.curvature.sites is not None:
            share = self.step_size(step) if callable(self.step_size) else self.step_size
            return moves * share, before.optimizer
        optimizer = self.optim.update(-moves, before.optimizer, value=loss)
        # What it adds to its own parameters, which a move taken back has left behind.
        return self.optim.get_params(optimizer) - self.optim.get_params(before.optimizer), optimizer

    def _move_others(
        self, plan: NewtonPlan, before: NewtonState, scores: Array, loss: Array
    ) -> tuple[Array, Any]:
        """The coordinates of other sites, moved along SVGD's direction by the optimizer."""
        kernel, points = default_kernel(), plan.others.part(before.particles)
        points, scores = self._exchanged((points, plan.others.part(scores)))
        phi, _ = kernel.direction(kernel.init(points), points, scores)
        phi = self._laid(plan, self._exchanged(phi))
        optimizer = self.optim.update(-phi, before.optimizer, value=loss)
        return self.optim.get_params(optimizer), optimizer
