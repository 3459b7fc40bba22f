"""Stein variational Newton (``SVN``), with the Gauss-Newton curvature of any program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro.contrib.einstein.stein_kernels import SteinKernel

from numpyro_ext.curvature import Curvature, GaussNewton, ProgramCurvature, Structure
from numpyro_ext.density import Data, LogDensity, Score
from numpyro_ext.density.layout import Indices
from numpyro_ext.engine import EngineState, Plan
from numpyro_ext.gradients import Full, GradientEstimator, Minibatch, Noisy, ScoreEstimate
from numpyro_ext.kernels import (
    IMQ,
    Kernel,
    Linear,
    ProductMetric,
    as_kernel,
    default_kernel,
    mixture,
)
from numpyro_ext.stein.damping import damping_scale, judge, within_radius
from numpyro_ext.stein.newton_system import LinearSystem, Solution
from numpyro_ext.stein.particles import ParticleEngine
from ppl_ext.curvature import as_curvature
from ppl_ext.errors import ArgumentError
from ppl_ext.newton import (
    Coupling,
    LevenbergMarquardt,
    NewtonSystem,
    Solver,
    as_damping,
    as_system,
    choose_solver,
    solver_costs,
)
from ppl_ext.options import check_number, describe


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
    curvature : Curvature or None
        The last curvature, where it serves several steps.
    since : Array
        Steps that it has served.
    """

    particles: Array
    optimizer: Any
    damping: Array
    curvature: Curvature | None
    since: Array


@dataclass(frozen=True)
class NewtonPlan(Plan):
    """What ``SVN`` decides when it meets the model's arguments.

    Parameters
    ----------
    program : ProgramCurvature
        What is found once about the program.
    others : array of int
        Coordinates that the optimizer moves.
    solver : {"dense", "dual", "cg"}
        Of the Newton system: the one given, or the cheapest.
    """

    program: ProgramCurvature = field(repr=False, compare=False)
    others: np.ndarray = field(repr=False, compare=False)
    solver: Solver


def curvature_kernel() -> Kernel:
    """The default kernel of ``SVN``: that of the other engines, in the metric of the curvature."""
    return mixture([IMQ("dimension", metric="curvature"), Linear("curvature")])


class SVN(ParticleEngine):
    """Stein variational Newton with Gauss-Newton curvature.

    A step solves a linear system for the move of all particles that would be Newton's in the
    kernel's space (Detommaso et al. 2018), with the curvature of the prior and the Gauss-Newton
    matrix of the likelihood, found for any program from its observed distributions. It converges
    in tens of steps where SVGD takes thousands. Damping adapts to how well the quadratic model
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
        Default: :func:`~numpyro_ext.stein.curvature_kernel`. With sites in ``curvature`` it is the
        kernel of these; the others have that of ``SVGD``.
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
    method", NeurIPS 2018; A. Leviyev, J. Chen, Y. Wang, O. Ghattas and A. Zimmerman, "A stochastic
    Stein variational Newton method", 2022; for networks, "Stein variational Newton neural network
    ensembles".
    """

    # The curvature of a row's own latents is not that of a minibatch, scaled up.
    allow_local_latents = False

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
        if not callable(step_size):
            check_number("step_size", step_size, most=1.0)
        curvature = as_curvature(curvature)
        if curvature.sites is not None and optim is None:
            raise ArgumentError(
                "Expected an optimizer with sites, such as numpyro.optim.Adam(0.01): it moves the "
                f"sites other than {list(curvature.sites)} along SVGD's direction. Found None."
            )
        super().__init__(model, optim, num_particles, **options)
        self.kernel = curvature_kernel() if kernel is None else as_kernel(kernel)
        self.curvature = curvature
        self.system = as_system(system)
        self.damping = as_damping(damping)
        self.step_size = step_size

    def _settings(self) -> dict[str, str]:
        own = {
            name: describe(getattr(self, name))
            for name in ("kernel", "curvature", "system", "step_size", "damping")
        }
        return {**own, **super()._settings()}

    def _plan(self, target: LogDensity, rng_key: Array, data: Data) -> NewtonPlan:
        estimator = super()._plan(target, rng_key, data).estimator
        with jax.ensure_compile_time_eval():
            program = ProgramCurvature(target, data, self.curvature)
        others = program.coordinates
        if self.curvature.sites is not None:
            others = np.setdiff1d(np.arange(target.dim), program.coordinates)
        if not len(others):
            raise ArgumentError(
                f"Expected sites to leave some latent sites to the optimizer, found all of them, "
                f"{list(program.sites)}. Leave sites out."
            )
        solver = self._solver(target, program, data, _rows_of_a_step(estimator, target))
        return NewtonPlan(target, estimator, program, others, solver)

    def _solver(
        self, target: LogDensity, program: ProgramCurvature, data: Data, rows: Indices | None
    ) -> Solver:
        """The solver that was given, or the cheapest; sizes decide."""
        costs: dict[Solver, float] = {}

        def look(particles: Array, rng_key: Array) -> None:
            curvature = program.at(target, particles, data, rows, rng_key)
            points = particles[:, program.coordinates]
            num_basis = len(self._kernel_of(curvature).interactions(points).basis)
            sizes = curvature.sizes
            costs.update(solver_costs(self.system, sizes, len(points), points.shape[1], num_basis))

        particles = jax.ShapeDtypeStruct((self.num_particles, target.dim), target.dtype)
        jax.eval_shape(look, particles, random.PRNGKey(0))
        return choose_solver(self.system.solver, costs)

    def _kernel_of(self, curvature: Curvature) -> Kernel:
        return self.kernel.with_curvature(ProductMetric(curvature.mean_products))

    def particles(self, state: EngineState) -> Array:
        """Particles of a state in unconstrained space, shape (P, D)."""
        return state.algorithm.particles

    def _init_algorithm(self, plan: NewtonPlan, rng_key: Array, data: Data) -> NewtonState:
        target = plan.target
        particles = target.initial_positions(self.num_particles, rng_key, data)
        optimizer: Any = {}
        if self.optim is not None:
            optimizer = self.optim.init(particles[:, plan.others])
        cached = None
        if self.curvature.every > 1:
            rows = _rows_of_a_step(plan.estimator, target)
            shape = jax.eval_shape(lambda: plan.program.at(target, particles, data, rows, rng_key))
            cached = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
        return NewtonState(
            particles,
            optimizer,
            jnp.asarray(self.damping.damping, particles.dtype),
            cached,
            # The first step finds a curvature.
            jnp.asarray(self.curvature.every, jnp.int32),
        )

    def _log_density(
        self, target: LogDensity, particles: Array, data: Data, indices: Indices | None
    ) -> Array:
        if indices is None:
            prior, likelihood = target.full_log_prior_and_likelihood(particles, data)
            return prior + likelihood / target.likelihood_temperature
        return target.log_density(particles, data, indices)

    def _score_of_rows(
        self, target: LogDensity, particles: Array, data: Data, indices: Indices | None
    ) -> Score:
        if indices is None:
            return target.full_score(particles, data)
        return target.score(particles, data, indices)

    def _step(
        self, plan: NewtonPlan, state: EngineState, data: Data
    ) -> tuple[EngineState, Array, dict[str, Array]]:
        before: NewtonState = state.algorithm
        target, program = plan.target, plan.program
        particles, where = before.particles, program.coordinates
        rng_key, curvature_key = random.split(state.rng_key)
        score, estimator = plan.estimator.estimate(target, state.estimator, particles, data)

        def fresh() -> Curvature:
            return program.at(target, particles, data, score.indices, curvature_key)

        if before.curvature is None:
            curvature = fresh()
        else:
            due = before.since >= self.curvature.every
            cached = before.curvature
            if jax.tree.map(jnp.shape, jax.eval_shape(fresh)) != jax.tree.map(jnp.shape, cached):
                raise ArgumentError(
                    "Expected batches of one size with curvature_every > 1, found others. Leave "
                    "out the last, smaller batch, or use curvature_every=1."
                )
            curvature = lax.cond(due, fresh, lambda: cached)
        solution, phi, scale = self._solve(
            plan.solver, before, particles[:, where], score.score[:, where], curvature
        )
        log_density = score.log_prior + score.log_likelihood / target.likelihood_temperature
        loss = -log_density.mean()

        newton, optimizer = self._newton_moves(before, solution.moves, scale, loss, state.step)
        proposed = particles.at[:, where].add(newton)
        figures = {
            "solved": solution.solved.astype(loss.dtype),
            "residual": solution.residual,
            "iterations": solution.iterations.astype(loss.dtype),
            "force_norm": jnp.sqrt((phi**2).sum(axis=1).mean()),
        }
        damping = before.damping
        if self.damping.adapt:
            accepted, damping, figures["disagreement"] = self._judged(
                plan,
                data,
                score,
                curvature,
                particles,
                proposed,
                newton,
                where,
                before,
                solution,
            )
            figures["accepted"] = accepted.mean(dtype=loss.dtype)
            proposed = jnp.where(accepted[:, None], proposed, particles)
        figures["damping"] = damping
        if self.curvature.sites is not None:
            proposed, optimizer = self._other_moves(plan, before, particles, proposed, score, loss)
        # What is not finite in a step is the engine's to report, and here what is not in the score.
        finite = jnp.isfinite(score.score).all()
        loss = jnp.where(finite, loss, jnp.nan)
        following = NewtonState(
            proposed,
            optimizer,
            damping,
            None if before.curvature is None else curvature,
            jnp.where(before.since >= self.curvature.every, 1, before.since + 1),
        )
        state = state._replace(algorithm=following, estimator=estimator, rng_key=rng_key)
        return state, loss, figures

    def _solve(
        self,
        solver: Solver,
        before: NewtonState,
        points: Array,
        scores: Array,
        curvature: Curvature,
    ) -> tuple[Solution, Array, Array]:
        """The Newton moves, SVGD's direction, and the scale of the damping."""
        interactions = self._kernel_of(curvature).interactions(points)
        scale = damping_scale(curvature.diagonals())
        system = LinearSystem(interactions, curvature, scores, before.damping * scale, self.system)
        return system.solve(solver), interactions.direction(scores), scale

    def _newton_moves(
        self, before: NewtonState, moves: Array, scale: Array, loss: Array, step: Array
    ) -> tuple[Array, Any]:
        """Moves that are taken, shortened to the trust region, and the optimizer's next state."""
        if self.optim is None or self.curvature.sites is not None:
            share = self.step_size(step) if callable(self.step_size) else self.step_size
            return within_radius(share * moves, scale, self.damping.trust_radius), before.optimizer
        optimizer = self.optim.update(-moves, before.optimizer, value=loss)
        # What the optimizer adds to its own parameters, which a move taken back has left behind.
        moves = self.optim.get_params(optimizer) - self.optim.get_params(before.optimizer)
        return within_radius(moves, scale, self.damping.trust_radius), optimizer

    def _judged(
        self,
        plan: NewtonPlan,
        data: Data,
        score: ScoreEstimate,
        curvature: Curvature,
        particles: Array,
        proposed: Array,
        newton: Array,
        where: np.ndarray,
        before: NewtonState,
        solution: Solution,
    ) -> tuple[Array, Array, Array]:
        target = plan.target
        own: Score | ScoreEstimate = score
        if not isinstance(plan.estimator, Minibatch | Full):
            # Noise and reduced variance are not of the density of the rows.
            own = self._score_of_rows(target, particles, data, score.indices)
        old = own.log_prior + own.log_likelihood / target.likelihood_temperature
        new = self._log_density(target, proposed, data, score.indices)
        gain = (own.score[:, where] * newton).sum(axis=1)
        fall = 0.5 * (newton * curvature.product(newton)).sum(axis=1)
        return judge(gain, fall, old, new, before.damping, solution.solved)

    def _other_moves(
        self,
        plan: NewtonPlan,
        before: NewtonState,
        particles: Array,
        proposed: Array,
        score: ScoreEstimate,
        loss: Array,
    ) -> tuple[Array, Any]:
        others = plan.others
        kernel = default_kernel()
        phi, _ = kernel.direction(
            kernel.init(particles[:, others]), particles[:, others], score.score[:, others]
        )
        optimizer = self.optim.update(-phi, before.optimizer, value=loss)
        return proposed.at[:, others].set(self.optim.get_params(optimizer)), optimizer


def _rows_of_a_step(estimator: GradientEstimator, target: LogDensity) -> Indices | None:
    """Rows of the shape that the estimator's batches have."""
    while isinstance(estimator, Noisy):
        estimator = estimator.inner(target)
    return None if isinstance(estimator, Full) or not target.plates else target.first_rows()
