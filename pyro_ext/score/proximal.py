"""Proximal score-matching variational inference (``ProximalScoreVI``).

Fits a guide q to the target by matching scores, grad log q to grad log pi, at draws from the
present guide. It needs no reparameterised gradient and no second derivative of the model, takes
noisy (minibatch) scores, and evaluates the model once per iteration, whose graph is gone before
the guide is updated.

After M. Kim, "Large-scale Score-based Variational Posterior Inference for Bayesian Deep Neural
Networks", equations 7-9 and Algorithm 1. The closed-form solver for Normal guides is this
project's; see :mod:`pyro_ext.score.regression`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator

from ppl_ext.errors import ArgumentError
from ppl_ext.score import GradientSteps, ProximalSolver, Regression, SolverName, as_solver
from pyro_ext.density import Data, LogDensity
from pyro_ext.engine import Update
from pyro_ext.gradients import GradientEstimator
from pyro_ext.score.gradient_steps import GradientSolver
from pyro_ext.score.guide_engine import GuideEngine, GuidePlan
from pyro_ext.score.regression import CLOSED_FORMS, RegressionSolver, structure_of


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
        Pyro model, used as it is.
    guide : AutoContinuous
        A Pyro autoguide of the model that has a log density over the flat unconstrained vector:
        ``AutoDiagonalNormal``, ``AutoMultivariateNormal``, ``AutoLowRankMultivariateNormal``
        (closed-form scores), ``AutoMatrixNormal``, ``AutoGaussianMixture``, ``AutoPlanarFlow`` and
        the like; or the class, which is then called with the model. The guide object holds the fit
        at any time, so that ``guide.median()``, ``guide.quantiles()``,
        ``Predictive(model, guide=guide)`` and ``SVI`` work with it. It starts from the values that
        it has.
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
        T when steps are taken with ``step``. ``run(n)`` sets T to the steps taken so far plus n,
        so that a run resumed for its remaining steps has the T of the uninterrupted one. While T
        is unknown, and for steps after the end of a run, t/T is taken as 0: the proximal weight
        is 0 and the default optimizer's rate is its first.
    estimator, likelihood_temperature, particle_chunk, data_chunk, evaluation, on_nonfinite, seed, \
dtype
        See :class:`~pyro_ext.engine.Engine`. The guide is converted to ``dtype``.

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
        evaluation: str = "graph",
        on_nonfinite: str = "raise",
        seed: int | None = None,
        dtype: torch.dtype | None = None,
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
            evaluation=evaluation,
            on_nonfinite=on_nonfinite,
            seed=seed,
            dtype=dtype,
        )
        self.solver = solver
        # Checked at once.
        self._chosen_solver()
        self._solver_state: Any = None

    def _chosen_solver(self) -> ProximalSolver:
        closed = structure_of(self.guide) is not None
        return as_solver(self.solver, type(self.guide).__name__, closed)

    # -- engine hooks --------------------------------------------------------------------------

    def _plan(self, target: LogDensity, generator: Generator, data: Data) -> ProximalPlan:
        found = super()._plan(target, generator, data)
        density, options = found.density, self._chosen_solver()
        executor: GradientSolver | RegressionSolver | None = None
        structure = structure_of(self.guide)
        if isinstance(options, Regression) and structure is not None:
            executor = RegressionSolver.plan(options, CLOSED_FORMS[structure], density)
            # The guide's shape is known only now.
            reason = executor.form.unsuited(density.live_parameters())
            if reason is not None and self.solver is not None:
                raise ArgumentError(reason)
            if reason is not None:
                executor, options = None, GradientSteps()
        if isinstance(options, GradientSteps):
            executor = GradientSolver.plan(options, density)
        assert executor is not None and executor.options.num_samples is not None
        options = executor.options
        return ProximalPlan(
            target,
            found.estimator,
            density,
            executor.options.num_samples,
            executor.learning_rate,
            options.clip_norm if isinstance(options, GradientSteps) else None,
            options,
            executor,
        )

    def _settings(self) -> dict[str, str]:
        # Before all that follows from it; the plan says more of it.
        settings = super()._settings()
        solver = type(self._chosen_solver()).__name__
        return {"guide": settings["guide"], "solver": solver, **settings}

    def _initialize(self, plan: ProximalPlan, data: Data) -> None:
        super()._initialize(plan, data)
        self._solver_state = plan.executor.initial(self, plan)

    def _update(self, plan: ProximalPlan, data: Data) -> Update:
        self._solver_state, update = plan.executor.update(self, plan, self._solver_state, data)
        return update

    def _algorithm_state(self) -> dict[str, Any]:
        state = self.plan.executor.saved(self._solver_state)
        return {**super()._algorithm_state(), "solver": state}

    def _load_algorithm_state(self, state: dict[str, Any]) -> None:
        super()._load_algorithm_state(state)
        self._solver_state = self.plan.executor.restored(self._solver_state, state["solver"])
