"""The full closed form without one of its parts, in NumPyro."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import Array, random

from benchmarks.noisy_scores.rivals import COLD_COORDINATES
from numpyro_ext import ProximalScoreVI
from numpyro_ext.score.regression.forms import FullForm
from numpyro_ext.score.regression.solver import RegressionSolver
from ppl_ext.score_matching.regression.base import Draws, Observed
from ppl_ext.score_matching.regression.diagonal import schedule
from ppl_ext.score_matching.regression.full import BlockMoments, FullRegression, Step, limited

#: Of how many standard errors a change of an eigenvalue is significant.
SIGNIFICANT = 2.0


class WithoutPull(FullForm):
    """Plain least squares: no proximal pull towards the present guide."""

    @classmethod
    def whitened_step(cls, block: BlockMoments, number: Any, trust: float) -> Step:
        # The pull falls with the number of pairs. What else that decides is the degrees of
        # freedom of the residual, which matter only at first.
        return super().whitened_step(block, math.inf, trust)


class SymmetricTrust(FullForm):
    """Widens as fast as it narrows, by c a step, whatever the noise."""

    @staticmethod
    def limited(precision: Array, noise: Array, trust: float) -> Array:
        return limited(precision, jnp.zeros_like(noise), trust)


class SignificantTrust(FullForm):
    """Widens by c where the change is significant, and by the less the less it is."""

    @classmethod
    def whitened_step(cls, block: BlockMoments, number: Any, trust: Any) -> Step:
        both: Any = (trust, number)
        return super().whitened_step(block, number, both)

    @staticmethod
    def limited(precision: Array, noise: Array, trust: Any) -> Array:
        most, number = trust
        # ``noise`` is D r, and r / n the variance of the slope in a direction.
        error = jnp.sqrt(noise / len(precision) / number)
        share = jnp.minimum(jnp.abs(precision - 1.0) / (SIGNIFICANT * error + 1e-300), 1.0)
        return jnp.clip(precision, 1.0 / (1.0 + (most - 1.0) * share), most)


class WithoutMirrors(FullForm):
    """Two independent draws in place of a mirrored pair; they still share their minibatch."""

    def evaluated_draw(self, parameters: Any, generator: Array, num: int) -> Draws:
        draw = super().evaluated_draw
        first, second = (draw(parameters, key, num) for key in random.split(generator))
        half = num // 2

        def joined(one: Array, other: Array) -> Array:
            return jnp.concatenate([one[:half], other[:half]])

        return Draws(
            joined(first.theta, second.theta),
            joined(first.log_prob, second.log_prob),
            joined(first.score, second.score),
            first.known,
        )


class ColdStart(FullForm):
    """With the temperature of the entropy by which the diagonal form starts cold."""

    def update(
        self, state: FullRegression, parameters: Any, given: Observed
    ) -> tuple[FullRegression, Any]:
        dtype = given.theta.dtype
        count = state.seen.num_updates.astype(dtype)
        length = jnp.asarray(given.total, dtype)

        def temperature(iteration: Array) -> Array:
            return schedule(iteration, length, COLD_COORDINATES).temperature

        # Scores over the temperature are those of a target for which the entropy counts once.
        now = temperature(count)
        change = temperature(count - 1.0) / now
        block = state.block
        state = state._replace(
            mean_score=change * state.mean_score,
            block=BlockMoments(
                block.covariance,
                change * block.cross_covariance,
                change**2 * block.score_covariance,
            ),
        )
        return super().update(state, parameters, given._replace(score=given.score / now))


ABLATIONS: dict[str, type[FullForm]] = {
    "without the pull": WithoutPull,
    "symmetric trust region": SymmetricTrust,
    "trust by significance": SignificantTrust,
    "without mirrored pairs": WithoutMirrors,
    "with a cold start": ColdStart,
}


def engine_of(form: type[FullForm]) -> type[ProximalScoreVI]:
    """``ProximalScoreVI`` with another closed form for a full covariance."""

    class Ablated(ProximalScoreVI):
        @staticmethod
        def _by_regression(options: Any, structure: str, density: Any) -> RegressionSolver:
            return RegressionSolver.plan(options, form, density)

    return Ablated
