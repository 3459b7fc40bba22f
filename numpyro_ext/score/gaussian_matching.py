"""What ``GSM`` and ``BaM`` share: closed-form updates of a full Normal guide from exact scores.

See :mod:`ppl_ext.score_matching.matching`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float

from numpyro_ext.density import Data
from numpyro_ext.engine import EngineState
from numpyro_ext.guides.flat_density import Parameters
from numpyro_ext.score.guide_engine import GuidePlan
from numpyro_ext.score.overflow import judged
from ppl_ext.score_matching.matching import RECENT, pull
from ppl_ext.score_matching.regression.overflow import LENIENCE


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
    score_square: Float[Array, ""]


def first_state(engine: Any, plan: GuidePlan, start: Parameters, data: Data) -> MatchingState:
    """The state before the first step."""
    return MatchingState(start, jnp.zeros((), jnp.result_type(*start.values())))


def step(
    engine: Any, plan: GuidePlan, state: EngineState, data: Data
) -> tuple[EngineState, Array, dict[str, Array]]:
    """One step: the next state, the loss and further figures."""
    target, density, (parameters, seen) = plan.target, plan.density, state.algorithm
    rng_key, sample_key = random.split(state.rng_key)
    theta = density.sample(parameters, sample_key, plan.num_samples)
    log_q, present = density.log_prob_and_score(parameters, theta)
    score, estimator = plan.estimator.estimate(target, state.estimator, theta, data)
    loss = jnp.square(present - score.score).sum(-1).mean()
    log_p = score.log_density(target.likelihood_temperature)
    moments = density.moments(parameters)
    whitened = score.score @ moments.scale
    latest = jnp.square(whitened).sum(-1).mean().astype(seen.dtype)
    verdict = judged(seen, latest)
    after = jnp.where(seen > 0.0, seen + RECENT * (latest - seen), latest)
    before = seen
    seen = verdict.choose(lambda: LENIENCE * before, lambda: latest, lambda: after)
    moments = engine._matched(moments, theta, score.score, state.step)
    proposed = density.set_moments(parameters, moments)
    sound = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(proposed)]).all()
    sound &= ~verdict.wild
    parameters = jax.tree.map(lambda new, old: jnp.where(sound, new, old), proposed, parameters)
    # Scores that are not finite make the loss so, which is the engine's business.
    rejected = jnp.where(jnp.isfinite(loss) & ~sound, 1.0, 0.0)
    state = state._replace(
        algorithm=MatchingState(parameters, seen), estimator=estimator, rng_key=rng_key
    )
    info = {
        "log_p": log_p.mean(),
        "log_q": log_q.mean(),
        "pull": pull(whitened),
        "rejected": rejected,
    }
    return state, loss, info
