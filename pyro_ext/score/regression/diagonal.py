"""Closed form for diagonal Normal guides: damped natural-gradient steps that start cold.

The method is told in :mod:`ppl_ext.regression.diagonal`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

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
from pyro_ext.guides.flat_density import Moments, Parameters
from pyro_ext.score.overflow import Verdict, judged
from pyro_ext.score.regression.base import ClosedForm
from pyro_ext.score.regression.full import free_share
from pyro_ext.score.regression.pairs import Count, advanced, averaged, halves, next_weight


class DiagonalRegression(NamedTuple):
    """What was seen so far.

    ``square`` is Z = E[z^2], ``slope`` A = E[y z], ``response`` R = E[y^2], ``mean_score`` u and
    ``score_noise`` v, (D,) each, and ``temperature`` the latest tau.
    """

    seen: Count
    square: Tensor
    slope: Tensor
    response: Tensor
    mean_score: Tensor
    score_noise: Tensor
    temperature: float


class Schedule(NamedTuple):
    """Where in the run an iteration is.

    ``temperature`` is tau, ``coldness`` k, ``patience`` lambda, ``cooling`` c_t, ``step`` b,
    ``rate`` the least weight of the latest iteration in the averages and ``score_rate`` that in the
    mean score.
    """

    temperature: float
    coldness: float
    patience: float
    cooling: float
    step: float
    rate: float
    score_rate: float


def schedule(iteration: int, total: int, dim: int) -> Schedule:
    """Schedule of iteration t = 0, 1, ... of ``total`` (0: not known), for ``dim`` coordinates."""
    cold = min(max((WARM_COORDINATES / dim) ** 2, COLDEST), 1.0)
    horizon = total if total > 0 else max(2 * (iteration + 1), LEAST_ITERATIONS)
    progress = min(iteration / horizon, 1.0)
    cooling = 0.5 * (1.0 + math.cos(math.pi * progress))
    share = TIME_CONSTANTS / horizon
    coldness = max(1.0 - progress / COLD_SHARE, 0.0)
    return Schedule(
        cold**coldness,
        coldness if cold < 1.0 else 0.0,
        max(progress - COLD_SHARE, 0.0) / (1.0 - COLD_SHARE),
        cooling if total > 0 else cooling * LEAST_ITERATIONS / horizon,
        min(share, LARGEST_STEP),
        min(share, LARGEST_RATE),
        min(max(1.0 / (AVERAGED_SHARE * horizon), 1.0 / AVERAGED_SCORES), 1.0),
    )


class DiagonalForm(ClosedForm[DiagonalRegression]):
    """The closed form for ``AutoDiagonalNormal``. O(D) memory: a state of five vectors."""

    def initial(self, parameters: Parameters) -> DiagonalRegression:
        mean = self.density.mean(parameters)
        square, slope, response, score, noise = (torch.zeros_like(mean) for _ in range(5))
        return DiagonalRegression(Count(), square, slope, response, score, noise, 0.0)

    def update(
        self,
        state: DiagonalRegression,
        parameters: Parameters,
        theta: Tensor,
        score: Tensor,
        total: int = 0,
        log_density: Tensor | None = None,
    ) -> tuple[DiagonalRegression, Parameters]:
        moments = self.density.moments(parameters)
        now = schedule(state.seen.num_updates, total, len(moments.mean))
        # Steps after a run, or in a longer one, do not cool down again what has been found.
        warm = state.temperature >= 1.0
        now = now._replace(
            temperature=max(now.temperature, state.temperature),
            coldness=0.0 if warm else now.coldness,
        )
        verdict = _verdict(state, moments, score)
        if not verdict.sound:
            return verdict.choose(*_left_out(state, now), state), parameters
        state = observe(state, moments, theta, score, self.decay, now)
        if state.seen.num_pairs < 1 + SPARE_PAIRS:
            return state, parameters
        moments = updated_moments(state, moments, now, self.trust)
        return state, self.density.set_moments(parameters, moments)


def _verdict(state: DiagonalRegression, moments: Moments, score: Tensor) -> Verdict:
    """Of the latest scores (2 K, D) and those seen before, in units of the present scales."""
    seen = (state.response * moments.scale.square().square()).sum()
    latest = (halves(score) * moments.scale).square().sum(-1).mean()
    return judged(float(seen), float(latest))


def _left_out(
    state: DiagonalRegression, now: Schedule
) -> tuple[DiagonalRegression, DiagonalRegression]:
    """The next states without the latest pairs, and without any: the schedule goes on in both."""
    later = state.seen._replace(num_updates=state.seen.num_updates + 1)
    lenient = state._replace(
        seen=later, response=LENIENCE * state.response, temperature=now.temperature
    )
    none = Count(later.num_updates)
    square, slope, response, score, noise = (torch.zeros_like(x) for x in state[1:-1])
    return lenient, DiagonalRegression(none, square, slope, response, score, noise, now.temperature)


def observe(
    state: DiagonalRegression,
    moments: Moments,
    theta: Tensor,
    score: Tensor,
    decay: float,
    now: Schedule,
) -> DiagonalRegression:
    """Add scores (2 K, D) taken at mirrored points theta (2 K, D), which this guide drew."""
    z, y = halves(theta) / moments.scale, -halves(score) / moments.scale
    center = score.mean(0)
    first = state.seen.num_pairs == 0
    weight = 1.0 if first else max(next_weight(state.seen, decay), now.rate)
    count = advanced(state.seen, len(z), weight)
    # The average of the first scores is a plain one, whatever its rate.
    score_weight = max(now.score_rate, 1.0 if first else 1.0 / count.num_updates)
    before = state.square, state.slope, state.response, state.score_noise
    latest = (
        z.square().mean(0),
        (y * z).mean(0),
        y.square().mean(0),
        (center - state.mean_score).square(),
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
    number, variance = state.seen.worth, scale.square()
    residual = state.response - state.slope.square() / state.square
    noise = residual.clamp_min(0.0) * variance * variance / free_share(1, number)
    pull = now.temperature**2 * noise / number
    tempered = variance / now.temperature
    factor = (tempered * state.slope + pull) / (state.square + pull)
    mean_noise = tempered * state.score_noise
    tolerated = TOLERATED_NOISE * LATE_TOLERANCE**now.patience
    relative = MEAN_STEP * mean_noise / tolerated
    excess = (relative / GREAT_NOISE).clamp_min(1.0)
    length = MEAN_STEP / (1.0 + relative * excess ** (-0.5 * now.coldness))
    move = now.cooling * length * tempered * state.mean_score / factor.clamp_min(1.0)
    # Each coordinate is a regression of its own, so its move is limited on its own.
    mean = mean + torch.clamp(move, -scale, scale)
    step = now.step / (1.0 + LATE_DAMPING * now.patience * pull)
    change = factor.clamp(1.0 / LARGEST_FACTOR, LARGEST_FACTOR) ** step
    return Moments(mean, scale / change.clamp(1.0 / trust, trust).sqrt())
