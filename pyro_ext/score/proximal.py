"""Proximal score-matching variational inference (``ProximalScoreVI``).

What it is stands in :mod:`ppl_ext.proximal`. A model's graph is gone before the guide is updated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Generator

from ppl_ext.proximal import ProximalShell
from ppl_ext.score import ProximalSolver, Regression
from pyro_ext.density import Data, LogDensity
from pyro_ext.engine import Update
from pyro_ext.guides.flat_density import FlatDensity
from pyro_ext.score.gradient_steps import GradientSolver
from pyro_ext.score.guide_engine import GuideEngine, GuidePlan
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

    def _initialize(self, plan: ProximalPlan, data: Data) -> None:
        super()._initialize(plan, data)
        self._solver_state: Any = plan.executor.initial(self, plan)

    def _update(self, plan: ProximalPlan, data: Data) -> Update:
        self._solver_state, update = plan.executor.update(self, plan, self._solver_state, data)
        return update

    def _algorithm_state(self) -> dict[str, Any]:
        state = self.plan.executor.saved(self._solver_state)
        return {**super()._algorithm_state(), "solver": state}

    def _load_algorithm_state(self, state: dict[str, Any]) -> None:
        super()._load_algorithm_state(state)
        self._solver_state = self.plan.executor.restored(self._solver_state, state["solver"])
