"""Closed form for diagonal Normal guides: damped natural-gradient steps that start cold.

The guide has means m and standard deviations s, and precisions P = 1 / s^2; what follows holds for
each coordinate. At temperature tau the bound is E_q[log pi] + tau H(q), with the entropy H. With
the target's score g(theta), it is stationary where

    E_q[g] = 0   and   P = h / tau,   h = -E_q[dg / dtheta].

A natural-gradient step on it, of length a for the mean and b for the precision, is

    m+ = m + a E_q[g] / (tau P),   P+ = (1 - b) P + b h / tau

(Khan and Lin, 2017, "Conjugate-computation variational inference",
https://arxiv.org/abs/1703.04265; with h averaged over steps,
the "variational online Newton" of Khan et al., 2018, https://arxiv.org/abs/1806.04854). Here
P+ = P (h / (tau P))^b is taken instead, which agrees to first order in h / (tau P) - 1 and cannot
become negative.

*The curvature is regressed.* Draws come in mirrored pairs m + d and m - d, with d = s z; see
:mod:`ppl_ext.score_matching.regression.pairs`. Half the difference of their scores is e. By Stein's
identity y = -e / s is a regression on z with slope h: E[y z] = h. Running averages keep

    Z = E[z^2],   A = E[y z],   R = E[y^2],

A / Z is the least-squares slope and exact for a Normal target with independent coordinates. The
residual (R - A^2 / Z) s^4, over 1 - 1 / n, is the noise r in units of the present precision, n
being the number of pairs that the averages are worth. A noisy slope is pulled towards the present
precision by rho = tau^2 r / n: the factor that P should change by, if all at once, is

    M = (A s^2 / tau + rho) / (Z + rho)   and   P+ = P M^b, with M limited to [1/4, 4].

*The mean knows its noise.* v is the average of (g - u)^2, with u an average of g over at most
the last ten steps, so that v has noise, and swings from step to step, but not a drift. The mean
moves by

    m+ - m = a c_t u / (max(M, 1) tau P),   a = 0.3 / (1 + x),   x = 0.3 v s^2 / (20 tau),

at most by s. A guide that is still too wide would overshoot, which max(M, 1) prevents; it knows
what precision is to come. c_t falls from 1 to 0 along a half cosine over the run.

*Cold at first.* Curvature is that of the place where the guide now is. A network that has not been
learnt yet predicts with a large error, finds a small curvature, and a guide that followed at once
would widen until it is the prior, where nothing is left to learn from. Many coordinates do this
together. So tau starts at (10 / D)^2, but at least at 1/1000 and at most at 1, and rises to 1,
geometrically, over the first half of the run. The means are found first, by narrow guides, and the
widths open up to those of the target from inside. With ten coordinates or fewer nothing is cold:
narrow guides follow the density to its mode, which in a centred hierarchical model is far from the
mass. Both numbers were chosen on such models and on networks. While it is cold the mean has a way
to go, and noise would make it creep where the posterior is very narrow beside the noise, as that of
a likelihood at a low temperature is. So what x has beyond X = 10^4 counts as X (x / X)^(1 - k / 2),
with k falling from 1 to 0 meanwhile: at k = 1 steps are those of u over the root of v, as Adam's.

*Lengths in shares of the run.* b = 20 / T, with T the number of iterations (at most 1/2), so that
the precision takes some twenty of its time constants at any T, and the averages forget no slower
than with rate 20 / T (at most 1/5), as what was found where the guide was long ago is of no use. So
short runs of a few tens of iterations converge when there is no noise, and long ones average.

*Patient at last.* A precision that follows noisy slopes wanders, the further the fewer its time
constants average, and a guide that happens to be wide there sees the more noise. With lambda rising
from 0 to 1 over the second half of the run, b is divided by 1 + 10 lambda rho and the noise
tolerated in the mean, 20 above, is multiplied by 10^-lambda: coordinates with much noise settle
early and average for longer, and those without it are left as they are. When T is unknown, rates
are those in the middle of a run of 2 t iterations, and at least 2,000, with the steps of the mean
falling as 1 / t.

*Overflow.* Pairs with scores that are finite and yet many orders too large are left out, see
:mod:`ppl_ext.score_matching.regression.overflow`; the schedule goes on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Float

from ppl_ext.guides.flat_density import Moments
from ppl_ext.scalars import at_least, at_most, chosen, half_cosine
from ppl_ext.score_matching.regression.base import ClosedForm, Observed
from ppl_ext.score_matching.regression.full import SPARE_PAIRS, free_share
from ppl_ext.score_matching.regression.overflow import LENIENCE
from ppl_ext.score_matching.regression.pairs import (
    Count,
    advanced,
    averaged,
    halves,
    mean_of,
    next_weight,
)

#: Coordinates up to which tau starts at 1, the least tau, and the share of the run in which it
#: rises to 1.
WARM_COORDINATES, COLDEST, COLD_SHARE = 10.0, 1e-3, 0.5
#: Time constants of the averages and of the precision in a run.
TIME_CONSTANTS = 20.0
#: Limits of b, the share of the step to the new log precision, and of the averages' rate.
LARGEST_STEP, LARGEST_RATE = 0.5, 0.2
#: Step a of the mean when there is no noise, and the noise that halves a step of length one.
MEAN_STEP, TOLERATED_NOISE = 0.3, 20.0
#: The noise x of the mean beyond which only its root counts, while the start is cold.
GREAT_NOISE = 1e4
#: At the end of the run: the factor by which less noise is tolerated in the mean, and how much the
#: noise of a slope damps the step of its precision.
LATE_TOLERANCE, LATE_DAMPING = 0.1, 10.0
#: M is limited to this factor and its inverse.
LARGEST_FACTOR = 4.0
#: Share of the run, and number of its iterations at the most, over which a mean score is averaged.
AVERAGED_SHARE, AVERAGED_SCORES = 0.01, 10.0
#: Iterations that a run of unknown length has at least.
LEAST_ITERATIONS = 2000


class DiagonalRegression(NamedTuple):
    """What was seen so far.

    ``square`` is Z = E[z^2], ``slope`` A = E[y z], ``response`` R = E[y^2], ``mean_score`` u and
    ``score_noise`` v, (D,) each, and ``temperature`` the latest tau.
    """

    seen: Count
    square: Float[Any, " D"]
    slope: Float[Any, " D"]
    response: Float[Any, " D"]
    mean_score: Float[Any, " D"]
    score_noise: Float[Any, " D"]
    temperature: Any


class Schedule(NamedTuple):
    """Where in the run an iteration is.

    ``temperature`` is tau, ``coldness`` k, ``patience`` lambda, ``cooling`` c_t, ``step`` b,
    ``rate`` the least weight of the latest iteration in the averages and ``score_rate`` that in the
    mean score.
    """

    temperature: Any
    coldness: Any
    patience: Any
    cooling: Any
    step: Any
    rate: Any
    score_rate: Any


def schedule(iteration: Any, total: Any, dim: int) -> Schedule:
    """Schedule of iteration t = 0, 1, ... of ``total`` (0: not known), for ``dim`` coordinates.

    Of numbers, or of floating-point arrays without axes.
    """
    # The first tau; ``cold**coldness`` below rises to 1 geometrically as the coldness falls
    # linearly.
    cold = min(max((WARM_COORDINATES / dim) ** 2, COLDEST), 1.0)
    horizon = chosen(total > 0, total, at_least(2.0 * (iteration + 1.0), LEAST_ITERATIONS))
    progress = at_most(iteration / horizon, 1.0)
    cooling = half_cosine(progress)
    share = TIME_CONSTANTS / horizon
    coldness = at_least(1.0 - progress / COLD_SHARE, 0.0)
    return Schedule(
        cold**coldness,
        # Zero of the same type, since JAX's loops want one type for both cases.
        coldness if cold < 1.0 else 0.0 * coldness,
        at_least(progress - COLD_SHARE, 0.0) / (1.0 - COLD_SHARE),
        chosen(total > 0, cooling, cooling * LEAST_ITERATIONS / horizon),
        at_most(share, LARGEST_STEP),
        at_most(share, LARGEST_RATE),
        at_most(at_least(1.0 / (AVERAGED_SHARE * horizon), 1.0 / AVERAGED_SCORES), 1.0),
    )


class DiagonalForm(ClosedForm[DiagonalRegression]):
    """The closed form for ``AutoDiagonalNormal``. O(D) memory: a state of five vectors."""

    @staticmethod
    def search_share(dim: int) -> float:
        return COLD_SHARE if dim > WARM_COORDINATES else 0.0

    @staticmethod
    def now(state: DiagonalRegression, total: Any, dim: int) -> Schedule:
        """The schedule of the present iteration."""
        return schedule(state.seen.num_updates, total, dim)

    def initial(self, parameters: Any) -> DiagonalRegression:
        mean, arrays = self.density.mean(parameters), self.arrays
        square, slope, response, score, noise = (arrays.filled(mean.shape, mean) for _ in range(5))
        count, temperature = arrays.first_count(mean), arrays.first_count(mean).squared_weights
        return DiagonalRegression(count, square, slope, response, score, noise, temperature)

    def update(
        self, state: DiagonalRegression, parameters: Any, given: Observed
    ) -> tuple[DiagonalRegression, Any]:
        theta, score, total = given.theta, given.score, given.total
        before, moments = state, self.density.moments(parameters)
        now = self.now(state, total, len(moments.mean))
        # Steps after a run, or in a longer one, do not cool down again what has been found.
        now = now._replace(
            temperature=at_least(now.temperature, state.temperature),
            coldness=chosen(state.temperature >= 1.0, 0.0, now.coldness),
        )
        # In units of the present scales.
        square, whitened = self.arrays.xp.square, halves(score) * moments.scale
        seen = (state.response * square(square(moments.scale))).sum()
        latest = square(whitened).sum() / len(whitened)
        verdict = self.arrays.judged(seen, latest)
        # The schedule goes on in all cases.
        later = state.seen.num_updates + 1

        def lenient() -> DiagonalRegression:
            return before._replace(
                seen=before.seen._replace(num_updates=later),
                response=LENIENCE * before.response,
                temperature=now.temperature,
            )

        def fresh() -> DiagonalRegression:
            none = self.initial(parameters)
            return none._replace(
                seen=none.seen._replace(num_updates=later), temperature=now.temperature
            )

        def moved(parameters: Any) -> Any:
            return self.density.set_moments(
                parameters, self.updated_moments(state, moments, now, self.trust)
            )

        state = verdict.choose(
            lenient, fresh, lambda: self.observe(before, moments, theta, score, self.decay, now)
        )
        ready = verdict.sound & (state.seen.num_pairs >= 1 + SPARE_PAIRS)
        return state, self.arrays.where_ready(ready, moved, parameters)

    @classmethod
    def observe(
        cls,
        state: DiagonalRegression,
        moments: Moments,
        theta: Float[Any, "S D"],
        score: Float[Any, "S D"],
        decay: float,
        now: Schedule,
    ) -> DiagonalRegression:
        """Add scores (2 K, D) taken at mirrored points theta (2 K, D), which this guide drew."""
        z, y = halves(theta) / moments.scale, -halves(score) / moments.scale
        center = mean_of(score)
        # The zeros at the start, or after all began anew, are no averages: the first pairs replace
        # them. ``next_weight`` alone would not, since it counts updates.
        first = state.seen.num_pairs == 0
        weight = chosen(first, 1.0, at_least(next_weight(state.seen, decay), now.rate))
        count = advanced(state.seen, len(z), weight)
        # The average of the first scores is a plain one, whatever its rate.
        score_weight = at_least(now.score_rate, chosen(first, 1.0, 1.0 / count.num_updates))
        before = state.square, state.slope, state.response, state.score_noise
        latest = (
            mean_of(z * z),
            mean_of(y * z),
            mean_of(y * y),
            # Against the average before these scores, which are in the next one.
            cls.arrays.xp.square(center - state.mean_score),
        )
        square, slope, response, score_noise = averaged(before, latest, weight)
        mean_score = averaged(state.mean_score, center, score_weight)
        averages = square, slope, response, mean_score, score_noise
        return DiagonalRegression(count, *averages, now.temperature)

    @classmethod
    def updated_moments(
        cls, state: DiagonalRegression, moments: Moments, now: Schedule, trust: float
    ) -> Moments:
        """Moments of the next guide, from the running averages and the present guide's."""
        mean, scale = moments
        number, variance = state.seen.worth, scale * scale
        residual = state.response - state.slope * state.slope / state.square
        noise = residual.clip(min=0.0) * variance * variance / free_share(1, number)
        pull = now.temperature**2 * noise / number
        tempered = variance / now.temperature
        # The least-squares slope A / Z, in units of P tau, with the pull towards 1.
        factor = (tempered * state.slope + pull) / (state.square + pull)
        mean_noise = tempered * state.score_noise
        tolerated = TOLERATED_NOISE * LATE_TOLERANCE**now.patience
        relative = MEAN_STEP * mean_noise / tolerated
        excess = (relative / GREAT_NOISE).clip(min=1.0)
        length = MEAN_STEP / (1.0 + relative * excess ** (-0.5 * now.coldness))
        move = now.cooling * length * tempered * state.mean_score / factor.clip(min=1.0)
        # Each coordinate is a regression of its own, so its move is limited on its own.
        mean = mean + move.clip(-scale, scale)
        # P^+ = P M^b, and the scale is one over the root of P.
        step = now.step / (1.0 + LATE_DAMPING * now.patience * pull)
        change = factor.clip(1.0 / LARGEST_FACTOR, LARGEST_FACTOR) ** step
        return Moments(mean, scale / cls.arrays.xp.sqrt(change.clip(1.0 / trust, trust)))
