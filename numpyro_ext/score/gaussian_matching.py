"""What ``GSM`` and ``BaM`` share: closed-form updates of a full Normal guide from exact scores.

A step draws from the guide, evaluates the scores of the target at the draws, and replaces mean
and covariance by a function of these. Nothing is averaged over steps, so noise in the scores
goes straight into the fit; but steps with scores that come from an overflow are left out, see
:mod:`numpyro_ext.score.overflow`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, random
from numpyro.infer.autoguide import AutoMultivariateNormal

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.engine import EngineState
from numpyro_ext.gradients import Full, GradientEstimator
from numpyro_ext.guides.flat_density import Moments, Parameters
from numpyro_ext.score.guide_engine import GuideEngine, GuidePlan
from numpyro_ext.score.overflow import judged
from ppl_ext.errors import ArgumentError
from ppl_ext.regression.overflow import LENIENCE

#: Weight of the latest step in the mean square of the scores.
RECENT = 0.1


class MatchingState(NamedTuple):
    """State of the fit.

    Parameters
    ----------
    parameters : dict of arrays
        Unconstrained parameters of the guide, by host name.
    score_square : array ()
        Mean square of the scores seen, whitened by the guide; 0 before there are any.
    """

    parameters: Parameters
    score_square: Array


class GaussianMatching(GuideEngine):
    """Base of the engines that update a full Normal guide in closed form.

    A subclass fills in ``_matched``. A covariance that is not positive definite is not taken: the
    guide stays as it was in that step, and ``info["rejected"]`` is 1; so is one from scores that
    are beyond all that was seen.

    Parameters
    ----------
    model : callable
        NumPyro model, used as it is.
    guide : AutoMultivariateNormal, optional
        The guide of the model, or the class. Default: ``AutoMultivariateNormal(model)``.
    num_samples : int
        Draws S per step.
    estimator, likelihood_temperature, particle_chunk, data_chunk, on_nonfinite
        See :class:`~numpyro_ext.engine.Engine`.

    Raises
    ------
    ArgumentError
        Another guide was given, or an option is out of range.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Any = None,
        num_samples: int = 2,
        *,
        estimator: GradientEstimator | None = None,
        likelihood_temperature: float = 1.0,
        particle_chunk: int | None = None,
        data_chunk: int | None = None,
        on_nonfinite: str = "raise",
    ) -> None:
        guide = AutoMultivariateNormal if guide is None else guide
        guide_class = guide if isinstance(guide, type) else type(guide)
        if not issubclass(guide_class, AutoMultivariateNormal):
            raise ArgumentError(
                f"Expected AutoMultivariateNormal, the only guide that {type(self).__name__} can "
                f"update in closed form, found {guide_class.__name__}. Leave the guide out, or use "
                "ProximalScoreVI, which takes every guide with a flat log density."
            )
        super().__init__(
            model,
            guide,
            None,
            num_samples,
            estimator=estimator,
            likelihood_temperature=likelihood_temperature,
            particle_chunk=particle_chunk,
            data_chunk=data_chunk,
            on_nonfinite=on_nonfinite,
        )

    @abstractmethod
    def _matched(self, moments: Moments, theta: Array, score: Array, step: Array) -> Moments:
        """New moments from the present ones and the scores (S, D) of the target at draws theta.

        Not finite where the update gives no positive definite covariance. ``step`` counts the
        steps taken.
        """

    def _plan(self, target: LogDensity, rng_key: Array, data: Data) -> GuidePlan:
        plan = super()._plan(target, rng_key, data)
        estimator = plan.estimator
        if not isinstance(estimator, Full) or estimator.evaluations_per_step(target) != 1.0:
            self._warn_of_noise(
                plan,
                "Its update follows their noise instead of averaging it, and the covariance comes "
                "out wrong.",
            )
        return plan

    def _init_algorithm(self, plan: GuidePlan, start: Parameters, data: Data) -> MatchingState:
        return MatchingState(start, jnp.zeros((), jnp.result_type(*start.values())))

    def _step(
        self, plan: GuidePlan, state: EngineState, data: Data
    ) -> tuple[EngineState, Array, dict[str, Array]]:
        target, density, (parameters, seen) = plan.target, plan.density, state.algorithm
        rng_key, sample_key = random.split(state.rng_key)
        theta = density.sample(parameters, sample_key, plan.num_samples)
        log_q, present = density.log_prob_and_score(parameters, theta)
        score, estimator = plan.estimator.estimate(target, state.estimator, theta, data)
        loss = jnp.square(present - score.score).sum(-1).mean()
        log_p = score.log_density(target.likelihood_temperature)
        moments = density.moments(parameters)
        latest = jnp.square(score.score @ moments.scale).sum(-1).mean().astype(seen.dtype)
        verdict = judged(seen, latest)
        after = jnp.where(seen > 0.0, seen + RECENT * (latest - seen), latest)
        seen = verdict.choose(LENIENCE * seen, latest, after)
        moments = self._matched(moments, theta, score.score, state.step)
        proposed = density.set_moments(parameters, moments)
        sound = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(proposed)]).all()
        sound &= ~verdict.wild
        parameters = jax.tree.map(lambda new, old: jnp.where(sound, new, old), proposed, parameters)
        # Scores that are not finite make the loss so, which is the engine's business.
        rejected = jnp.where(jnp.isfinite(loss) & ~sound, 1.0, 0.0)
        state = state._replace(
            algorithm=MatchingState(parameters, seen), estimator=estimator, rng_key=rng_key
        )
        info = {"log_p": log_p.mean(), "log_q": log_q.mean(), "rejected": rejected}
        return state, loss, info
