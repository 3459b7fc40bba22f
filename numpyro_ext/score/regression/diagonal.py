"""Closed form for diagonal Normal guides: damped natural-gradient steps that start cold.

The method is told in :mod:`ppl_ext.regression.diagonal`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from numpyro_ext.guides.flat_density import Moments, Parameters
from numpyro_ext.score.overflow import Verdict, judged
from numpyro_ext.score.regression.base import ClosedForm
from numpyro_ext.score.regression.full import free_share
from numpyro_ext.score.regression.pairs import (
    Count,
    advanced,
    averaged,
    halves,
    initial_count,
    next_weight,
)
from ppl_ext.regression.diagonal import (
    AVERAGED_SCORES,
    AVERAGED_SHARE,
    COLD_SHARE,
    COLDEST,
    GREAT_NOISE,
    LARGEST_FACTOR,
    LARGEST_RATE,
    LARGEST_STEP,
    LATE_DAMPING,
    LATE_TOLERANCE,
    LEAST_ITERATIONS,
    MEAN_STEP,
    TIME_CONSTANTS,
    TOLERATED_NOISE,
    WARM_COORDINATES,
)
from ppl_ext.regression.full import SPARE_PAIRS
from ppl_ext.regression.overflow import LENIENCE


class DiagonalRegression(NamedTuple):
    """What was seen so far.

    ``square`` is Z = E[z^2], ``slope`` A = E[y z], ``response`` R = E[y^2], ``mean_score`` u and
    ``score_noise`` v, (D,) each, and ``temperature`` the latest tau.
    """

    seen: Count
    square: jax.Array
    slope: jax.Array
    response: jax.Array
    mean_score: jax.Array
    score_noise: jax.Array
    temperature: jax.Array


class Schedule(NamedTuple):
    """Where in the run an iteration is.

    ``temperature`` is tau, ``coldness`` k, ``patience`` lambda, ``cooling`` c_t, ``step`` b,
    ``rate`` the least weight of the latest iteration in the averages and ``score_rate`` that in the
    mean score.
    """

    temperature: jax.Array
    coldness: jax.Array
    patience: jax.Array
    cooling: jax.Array
    step: jax.Array
    rate: jax.Array
    score_rate: jax.Array


def schedule(iteration: jax.Array | int, total: jax.Array | int, dim: int, dtype: Any) -> Schedule:
    """Schedule of iteration t = 0, 1, ... of ``total`` (0: not known), for ``dim`` coordinates."""
    cold = min(max((WARM_COORDINATES / dim) ** 2, COLDEST), 1.0)
    t, total = jnp.asarray(iteration, dtype), jnp.asarray(total, dtype)
    horizon = jnp.where(total > 0, total, jnp.maximum(2.0 * (t + 1.0), LEAST_ITERATIONS))
    progress = jnp.minimum(t / horizon, 1.0)
    cooling = 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
    share = TIME_CONSTANTS / horizon
    coldness = jnp.maximum(1.0 - progress / COLD_SHARE, 0.0)
    return Schedule(
        cold**coldness,
        coldness if cold < 1.0 else jnp.zeros_like(coldness),
        jnp.maximum(progress - COLD_SHARE, 0.0) / (1.0 - COLD_SHARE),
        jnp.where(total > 0, cooling, cooling * LEAST_ITERATIONS / horizon),
        jnp.minimum(share, LARGEST_STEP),
        jnp.minimum(share, LARGEST_RATE),
        jnp.clip(1.0 / (AVERAGED_SHARE * horizon), 1.0 / AVERAGED_SCORES, 1.0),
    )


class DiagonalForm(ClosedForm[DiagonalRegression]):
    """The closed form for ``AutoDiagonalNormal``. O(D) memory: a state of five vectors."""

    def initial(self, parameters: Parameters) -> DiagonalRegression:
        mean = self.density.mean(parameters)
        square, slope, response, score, noise = (jnp.zeros_like(mean) for _ in range(5))
        count, temperature = initial_count(mean.dtype), jnp.zeros((), mean.dtype)
        return DiagonalRegression(count, square, slope, response, score, noise, temperature)

    def update(
        self,
        state: DiagonalRegression,
        parameters: Parameters,
        theta: jax.Array,
        score: jax.Array,
        total: jax.Array | int = 0,
        log_density: jax.Array | None = None,
    ) -> tuple[DiagonalRegression, Parameters]:
        moments = self.density.moments(parameters)
        now = schedule(state.seen.num_updates, total, len(moments.mean), moments.mean.dtype)
        # Steps after a run, or in a longer one, do not cool down again what has been found.
        now = now._replace(
            temperature=jnp.maximum(now.temperature, state.temperature),
            coldness=jnp.where(state.temperature >= 1.0, 0.0, now.coldness),
        )
        observed = observe(state, moments, theta, score, self.decay, now)
        verdict = _verdict(state, moments, score)
        state = verdict.choose(*_left_out(state, now), observed)

        def moved(parameters: Parameters) -> Parameters:
            updated: Parameters = self.density.set_moments(
                parameters, updated_moments(state, moments, now, self.trust)
            )
            return updated

        ready = verdict.sound & (state.seen.num_pairs >= 1 + SPARE_PAIRS)
        return state, lax.cond(ready, moved, lambda same: same, parameters)


def _verdict(state: DiagonalRegression, moments: Moments, score: jax.Array) -> Verdict:
    """Of the latest scores (2 K, D) and those seen before, in units of the present scales."""
    variance = jnp.square(moments.scale)
    seen = (state.response * jnp.square(variance)).sum()
    return judged(seen, jnp.square(halves(score) * moments.scale).sum(-1).mean())


def _left_out(
    state: DiagonalRegression, now: Schedule
) -> tuple[DiagonalRegression, DiagonalRegression]:
    """The next states without the latest pairs, and without any: the schedule goes on in both."""
    later = state.seen._replace(num_updates=state.seen.num_updates + 1)
    lenient = state._replace(
        seen=later, response=LENIENCE * state.response, temperature=now.temperature
    )
    none = initial_count(state.square.dtype)._replace(num_updates=later.num_updates)
    square, slope, response, score, noise = (jnp.zeros_like(x) for x in state[1:-1])
    return lenient, DiagonalRegression(none, square, slope, response, score, noise, now.temperature)


def observe(
    state: DiagonalRegression,
    moments: Moments,
    theta: jax.Array,
    score: jax.Array,
    decay: float,
    now: Schedule,
) -> DiagonalRegression:
    """Add scores (2 K, D) taken at mirrored points theta (2 K, D), which this guide drew."""
    z, y = halves(theta) / moments.scale, -halves(score) / moments.scale
    center = score.mean(0)
    weight = jnp.maximum(next_weight(state.seen, decay), now.rate)
    first = state.seen.num_pairs == 0
    weight = jnp.where(first, 1.0, weight).astype(weight.dtype)
    count = advanced(state.seen, len(z), weight)
    # The average of the first scores is a plain one, whatever its rate.
    score_weight = jnp.maximum(now.score_rate, jnp.where(first, 1.0, 1.0 / count.num_updates))
    before = state.square, state.slope, state.response, state.score_noise
    latest = (
        jnp.square(z).mean(0),
        (y * z).mean(0),
        jnp.square(y).mean(0),
        jnp.square(center - state.mean_score),
    )
    square, slope, response, score_noise = averaged(before, latest, weight)
    mean_score = averaged(state.mean_score, center, score_weight)
    averages = square, slope, response, mean_score, score_noise
    return DiagonalRegression(count, *averages, now.temperature)


def updated_moments(
    state: DiagonalRegression, moments: Moments, now: Schedule, trust: float
) -> Moments:
    """Moments of the next guide, from the running averages and the present guide's."""
    mean, scale = moments
    number, variance = state.seen.worth, jnp.square(scale)
    residual = state.response - jnp.square(state.slope) / state.square
    noise = jnp.maximum(residual, 0.0) * variance * variance / free_share(1, number)
    pull = jnp.square(now.temperature) * noise / number
    tempered = variance / now.temperature
    factor = (tempered * state.slope + pull) / (state.square + pull)
    mean_noise = tempered * state.score_noise
    tolerated = TOLERATED_NOISE * LATE_TOLERANCE**now.patience
    relative = MEAN_STEP * mean_noise / tolerated
    excess = jnp.maximum(relative / GREAT_NOISE, 1.0)
    length = MEAN_STEP / (1.0 + relative * excess ** (-0.5 * now.coldness))
    move = now.cooling * length * tempered * state.mean_score / jnp.maximum(factor, 1.0)
    # Each coordinate is a regression of its own, so its move is limited on its own.
    mean = mean + jnp.clip(move, -scale, scale)
    step = now.step / (1.0 + LATE_DAMPING * now.patience * pull)
    change = jnp.clip(factor, 1.0 / LARGEST_FACTOR, LARGEST_FACTOR) ** step
    return Moments(mean, scale / jnp.sqrt(jnp.clip(change, 1.0 / trust, trust)))
