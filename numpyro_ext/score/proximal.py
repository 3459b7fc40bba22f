"""Proximal score-matching variational inference (``ProximalScoreVI``).

What it is stands in :mod:`ppl_ext.score_matching.proximal`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jax import Array

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.engine import EngineState
from numpyro_ext.guides.flat_density import FlatDensity, Parameters
from numpyro_ext.score.gradient_steps import GradientSolver
from numpyro_ext.score.guide_engine import (
    GuideEngine,
    GuidePlan,
    divided_optimizer,
    host_optimizer,
)
from numpyro_ext.score.regression import CLOSED_FORMS, RegressionSolver, structure_of
from ppl_ext.score_matching.options import GradientSteps, ProximalSolver, Regression
from ppl_ext.score_matching.proximal import ProximalShell


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
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> guide = numpyro.infer.autoguide.AutoMultivariateNormal(model)
    >>> engine = nx.ProximalScoreVI(model, guide)
    >>> result = engine.run(jax.random.key(0), 100, y)
    >>> print(f"{guide.median(result.params)['mean']:.1f}")
    2.0
    """

    _structure = staticmethod(structure_of)
    _by_gradient = staticmethod(GradientSolver.plan)

    @staticmethod
    def _by_regression(
        options: Regression, structure: str, density: FlatDensity
    ) -> RegressionSolver:
        return RegressionSolver.plan(options, CLOSED_FORMS[structure], density)

    # -- engine hooks -------------------------------------------------------------------------

    def _plan(self, target: LogDensity, rng_key: Array, data: Data) -> ProximalPlan:
        found = super()._plan(target, rng_key, data)
        executor = self._executor(found.density, found.density.initial_parameters())
        decided = self._carried_out_by(executor)
        if isinstance(executor.options, GradientSteps):
            optim = host_optimizer(executor.options.optim)
            decided["optim"] = divided_optimizer(optim, found.density, target.layout)
        decided["keeps_state"] = executor.in_place
        return ProximalPlan(**{**vars(found), **decided})

    def _init_algorithm(self, plan: ProximalPlan, start: Parameters, data: Data) -> Any:
        return plan.executor.initial(self, plan, start)

    def _step(
        self, plan: ProximalPlan, state: EngineState, data: Data
    ) -> tuple[EngineState, Array, dict[str, Array]]:
        return plan.executor.update(self, plan, state, data)
