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
    """Examples
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
