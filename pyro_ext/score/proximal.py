"""Proximal score-matching variational inference (``ProximalScoreVI``).

What it is stands in :mod:`ppl_ext.score_matching.proximal`. A model's graph is gone before the
guide is updated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Generator

from ppl_ext.score_matching.options import ProximalSolver, Regression
from ppl_ext.score_matching.proximal import ProximalShell
from pyro_ext.density import Data, LogDensity
from pyro_ext.engine import Update
from pyro_ext.guides.flat_density import FlatDensity
from pyro_ext.score.gradient_steps import GradientSolver
from pyro_ext.score.guide_engine import GuideEngine, GuidePlan, GuideState
from pyro_ext.score.regression import RegressionSolver, closed_form, structure_of


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

    # The solver prints these two.
    num_samples: int = field(repr=False, compare=False)
    clip_norm: float | None = field(repr=False, compare=False)
    solver: ProximalSolver
    executor: GradientSolver | RegressionSolver = field(repr=False, compare=False)


class ProximalScoreVI(ProximalShell, GuideEngine):
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
        The host's model, used as it is.
    guide : AutoContinuous
        An autoguide of the model that has a log density over the flat unconstrained vector:
        ``AutoDiagonalNormal``, ``AutoMultivariateNormal``, ``AutoLowRankMultivariateNormal``
        (closed-form scores), ``AutoMatrixNormal``, ``AutoGaussianMixture``, ``AutoPlanarFlow`` and
        the like; or the class, which is then called with the model. In Pyro the guide object
        holds the fit at any time, so that ``guide.median()``, ``guide.quantiles()``,
        ``Predictive(model, guide=guide)`` and ``SVI`` work with it, and it starts from the values
        that it has. In NumPyro ``run(...).params`` are the guide's parameters for
        ``guide.sample_posterior``, ``guide.median``, ``Predictive`` and
        ``SVI.init(..., init_params=...)``.
    solver : {"gradient", "regression"}, GradientSteps or Regression, optional
        :class:`~ppl_ext.score_matching.options.GradientSteps` is the paper's,
        :class:`~ppl_ext.score_matching.options.Regression` the closed form; the names stand for
        their defaults. Default: the closed form for the guides that have one, which are
        ``AutoDiagonalNormal``, ``AutoMultivariateNormal``, ``AutoLowRankMultivariateNormal`` of a
        rank below the number of latents, ``AutoLayerLowRankNormal``, ``AutoMatrixNormal`` and
        ``AutoGaussianMixture`` with full covariances; gradient steps for all others.
    initial_scale : float, optional
        Standard deviation of every coordinate, in the unconstrained space, at the start, for
        Normal guides. Default: the guide's own. Networks want a small one, such as 0.01.
    total_steps : int, optional
        T when steps are taken one by one. ``run`` sets T to the steps taken so far plus its own,
        so that a run resumed for its remaining steps has the T of the uninterrupted one. Steps
        taken after a run has ended are outside it and have this T again, not the run's. While T
        is unknown, t/T is taken as 0: the default optimizer keeps its first learning rate, and
        the paper's proximal weight is 0.
    **options
        Options of every engine but ``init_strategy``; see the package's ``Engine``. In Pyro the
        guide is converted to ``dtype``.

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
    >>> guide = pyro.infer.autoguide.AutoMultivariateNormal(model)
    >>> engine = px.ProximalScoreVI(model, guide, seed=0)
    >>> result = engine.run(100, y)
    >>> print(f"{guide.median()['mean']:.1f}")
    2.0
    """

    _structure = staticmethod(structure_of)
    _by_gradient = staticmethod(GradientSolver.plan)

    @staticmethod
    def _by_regression(
        options: Regression, structure: str, density: FlatDensity
    ) -> RegressionSolver:
        return RegressionSolver.plan(options, closed_form(structure, density), density)

    # -- engine hooks --------------------------------------------------------------------------

    def _plan(self, target: LogDensity, generator: Generator, data: Data) -> ProximalPlan:
        found = super()._plan(target, generator, data)
        executor = self._executor(found.density, found.density.live_parameters())
        return ProximalPlan(**{**vars(found), **self._carried_out_by(executor)})

    def _initialize(self, plan: ProximalPlan, data: Data) -> GuideState:
        super()._initialize(plan, data)
        return plan.executor.initial(self, plan)

    def _update(self, plan: ProximalPlan, state: GuideState, data: Data) -> Update:
        return plan.executor.update(self, plan, state, data)

    def _algorithm_state(self, state: GuideState) -> dict[str, Any]:
        method = self.plan.executor.saved(state.method)
        return {**super()._algorithm_state(state), "method": method}

    def _load_algorithm_state(self, plan: Any, state: GuideState, saved: dict[str, Any]) -> Any:
        method = plan.executor.restored(state.method, saved["method"])
        return super()._load_algorithm_state(plan, state, {**saved, "method": method})
