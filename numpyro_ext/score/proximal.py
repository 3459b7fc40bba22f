"""Proximal score-matching variational inference (``ProximalScoreVI``).

Fits a guide q to the target by matching scores, grad log q to grad log pi, at draws from the
present guide. It needs no reparameterised gradient and no second derivative of the model, takes
noisy (minibatch) scores, and evaluates the model once per iteration, before the guide is updated.

After M. Kim, "Large-scale Score-based Variational Posterior Inference for Bayesian Deep Neural
Networks", equations 7-9 and Algorithm 1. The closed-form solver for Normal guides is this
project's; see :mod:`numpyro_ext.score.regression`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jax import Array

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.engine import EngineState
from numpyro_ext.gradients import GradientEstimator
from numpyro_ext.guides.flat_density import Parameters
from numpyro_ext.score.gradient_steps import GradientSolver
from numpyro_ext.score.guide_engine import (
    GuideEngine,
    GuidePlan,
    divided_optimizer,
    host_optimizer,
)
from numpyro_ext.score.regression import CLOSED_FORMS, RegressionSolver, structure_of
from ppl_ext.errors import ArgumentError
from ppl_ext.score import GradientSteps, ProximalSolver, Regression, SolverName, as_solver


@dataclass(frozen=True)
class ProximalPlan(GuidePlan):
    """What ``ProximalScoreVI`` decides when it meets the model's arguments.

    Parameters
    ----------
    solver : GradientSteps or Regression
        With the defaults of the guide.
    executor : GradientSolver or RegressionSolver
        What carries it out.
    """

    solver: ProximalSolver
    executor: GradientSolver | RegressionSolver = field(repr=False, compare=False)


class ProximalScoreVI(GuideEngine):
    """Proximal score-matching variational inference.

    Each iteration t of T draws theta from the present guide q_t, evaluates the (minibatch) score
    s of the target there once, and then lowers

        alpha_t |grad log q - grad log q_t|^2 + |grad log q - s|^2

    averaged over the draws, in the guide's parameters, by optimizer steps
    (``solver=GradientSteps(...)``) or, for Normal guides, in closed form
    (``solver=Regression(...)``).

    Parameters
    ----------
    model : callable
        NumPyro model, used as it is.
    guide : AutoContinuous
        A NumPyro autoguide of the model that has a log density over the flat unconstrained
        vector: ``AutoDiagonalNormal``, ``AutoMultivariateNormal``,
        ``AutoLowRankMultivariateNormal`` (closed-form scores), ``AutoMatrixNormal``,
        ``AutoGaussianMixture``, ``AutoPlanarFlow`` and the like; or the class, which is then
        called with the model. ``run(...).params`` are the guide's
        parameters for ``guide.sample_posterior``, ``guide.median``, ``Predictive`` and
        ``SVI.init(..., init_params=...)``.
    solver : {"gradient", "regression"}, GradientSteps or Regression, optional
        :class:`~ppl_ext.score.GradientSteps` is the paper's,
        :class:`~ppl_ext.score.Regression` the closed form; the names stand for their defaults.
        Default: the closed form for the guides that have one, which are
        ``AutoDiagonalNormal``, ``AutoMultivariateNormal``, ``AutoLowRankMultivariateNormal`` of a
        rank below the number of latents, ``AutoMatrixNormal`` and ``AutoGaussianMixture`` with
        full covariances; gradient steps for all others.
    initial_scale : float, optional
        Standard deviation of every coordinate, in the unconstrained space, at the start, for
        Normal guides. Default: the guide's own. Networks want a small one, such as 0.01.
    total_steps : int, optional
        T when steps are taken with ``update``. ``run`` sets T to the steps taken so far plus its
        own, so that a run resumed for its remaining steps has the T of the uninterrupted one.
        Steps taken with ``update`` after a run has ended are outside it and have this T again,
        not the run's. While T is unknown, t/T is taken as 0: the default optimizer keeps its
        first learning rate, and the paper's proximal weight is 0.
    estimator, likelihood_temperature, particle_chunk, data_chunk, on_nonfinite
        See :class:`~numpyro_ext.engine.Engine`.

    Notes
    -----
    The loss is the mean of |grad log q_t - s|^2 over the draws; ``info`` holds the means of
    log p (tempered as the target is, from the minibatch) and of log q at the draws. With the
    closed form for mixtures, all three are weighted as the components that drew.
    Latents inside a subsampled plate are refused, as these guides cannot hold them.

    Raises
    ------
    ArgumentError
        The guide has no flat log density, or an option is out of range.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Any,
        solver: SolverName | ProximalSolver | None = None,
        *,
        initial_scale: float | None = None,
        total_steps: int | None = None,
        estimator: GradientEstimator | None = None,
        likelihood_temperature: float = 1.0,
        particle_chunk: int | None = None,
        data_chunk: int | None = None,
        on_nonfinite: str = "raise",
    ) -> None:
        super().__init__(
            model,
            guide,
            initial_scale=initial_scale,
            total_steps=total_steps,
            estimator=estimator,
            likelihood_temperature=likelihood_temperature,
            particle_chunk=particle_chunk,
            data_chunk=data_chunk,
            on_nonfinite=on_nonfinite,
        )
        self.solver = solver
        # Checked at once.
        options = self._chosen_solver()
        if isinstance(options, GradientSteps):
            host_optimizer(options.optim)

    def _chosen_solver(self) -> ProximalSolver:
        closed = structure_of(self.guide) is not None
        return as_solver(self.solver, type(self.guide).__name__, closed)

    # -- engine hooks -------------------------------------------------------------------------

    def _plan(self, target: LogDensity, rng_key: Array, data: Data) -> ProximalPlan:
        found = super()._plan(target, rng_key, data)
        density, options = found.density, self._chosen_solver()
        executor: GradientSolver | RegressionSolver | None = None
        structure = structure_of(self.guide)
        if isinstance(options, Regression) and structure is not None:
            executor = RegressionSolver.plan(options, CLOSED_FORMS[structure], density)
            # The guide's shape is known only now.
            reason = executor.form.unsuited(density.initial_parameters())
            if reason is not None and self.solver is not None:
                raise ArgumentError(reason)
            if reason is not None:
                executor, options = None, GradientSteps()
        if isinstance(options, GradientSteps):
            executor = GradientSolver.plan(options, density)
        assert executor is not None and executor.options.num_samples is not None
        options, optim, clip_norm = executor.options, None, None
        if isinstance(options, GradientSteps):
            optim = divided_optimizer(host_optimizer(options.optim), density, target.layout)
            clip_norm = options.clip_norm
        return ProximalPlan(
            target,
            found.estimator,
            rng_key,
            density,
            optim,
            executor.options.num_samples,
            executor.learning_rate,
            clip_norm,
            options,
            executor,
            keeps_state=executor.in_place,
        )

    def _settings(self) -> dict[str, str]:
        # Before all that follows from it; the plan says more of it.
        settings = super()._settings()
        solver = type(self._chosen_solver()).__name__
        return {"guide": settings["guide"], "solver": solver, **settings}

    def _init_algorithm(self, plan: ProximalPlan, start: Parameters, data: Data) -> Any:
        return plan.executor.initial(self, plan, start)

    def _step(
        self, plan: ProximalPlan, state: EngineState, data: Data
    ) -> tuple[EngineState, Array, dict[str, Array]]:
        return plan.executor.update(self, plan, state, data)
