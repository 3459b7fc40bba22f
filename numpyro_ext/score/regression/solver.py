"""The proximal step in closed form (``Regression``), for Normals and mixtures of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from jax import Array, random
from jaxtyping import Float

from numpyro_ext.density import Data
from numpyro_ext.descent import run_length
from numpyro_ext.engine import EngineState
from numpyro_ext.guides.flat_density import Parameters
from numpyro_ext.score.guide_engine import GuideEngine, GuidePlan
from ppl_ext.score_matching.proximal import RegressionExecutor
from ppl_ext.score_matching.regression.base import Observed


class RegressionState(NamedTuple):
    """State of the fit.

    Parameters
    ----------
    parameters : dict of arrays
        Unconstrained parameters of the guide, by host name.
    regression : pytree
        What the closed form has seen.
    """

    parameters: Parameters
    regression: Any


class RegressionSolver(RegressionExecutor):
    in_place = False

    def initial(
        self, engine: GuideEngine, plan: GuidePlan, parameters: Parameters
    ) -> RegressionState:
        """The state before the first iteration."""
        return RegressionState(parameters, self.form.initial(parameters))

    def update(
        self, engine: GuideEngine, plan: GuidePlan, state: EngineState, data: Data
    ) -> tuple[EngineState, Float[Array, ""], dict[str, Float[Array, ""]]]:
        """One iteration."""
        target, form, fit = plan.target, self.form, state.algorithm
        rng_key, sample_key = random.split(state.rng_key)
        draws = form.evaluated_draw(fit.parameters, sample_key, plan.num_samples)
        found, estimator = plan.estimator.estimate(target, state.estimator, draws.theta, data)
        log_p = found.log_density(target.likelihood_temperature)
        loss, info = form.figures(fit.parameters, draws, found.score, log_p)
        total = run_length(engine, state)
        given = Observed(draws.theta, found.score, total, log_p, draws.known)
        regression, parameters = form.update(fit.regression, fit.parameters, given)
        fit = RegressionState(parameters, regression)
        state = state._replace(algorithm=fit, estimator=estimator, rng_key=rng_key)
        return state, loss, info
