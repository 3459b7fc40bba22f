"""Closed form for diagonal Normal guides."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from numpyro_ext.guides.flat_density import Moments, Parameters
from numpyro_ext.score.regression.base import ClosedForm
from numpyro_ext.score.regression.full import SPARE_PAIRS, free_share, limited
from numpyro_ext.score.regression.pairs import Count, advanced, averaged, halves, initial_count


class DiagonalRegression(NamedTuple):
    """Running averages of d^2, e d and e^2 and of the pairs' centres, (D,) each."""

    seen: Count
    mean_theta: jax.Array
    mean_score: jax.Array
    covariance: jax.Array
    cross_covariance: jax.Array
    score_covariance: jax.Array


class DiagonalForm(ClosedForm[DiagonalRegression]):
    """The closed form for ``AutoDiagonalNormal``: a regression for each coordinate."""

    def initial(self, parameters: Parameters) -> DiagonalRegression:
        mean = self.density.mean(parameters)
        averages = (jnp.zeros_like(mean) for _ in range(5))
        return DiagonalRegression(initial_count(mean.dtype), *averages)

    def update(
        self,
        state: DiagonalRegression,
        parameters: Parameters,
        theta: jax.Array,
        score: jax.Array,
        total: jax.Array | int = 0,
    ) -> tuple[DiagonalRegression, Parameters]:
        d, e = halves(theta), halves(score)
        count, weight = advanced(state.seen, len(d), self.decay)
        latest = (theta.mean(0), score.mean(0), (d * d).mean(0), (e * d).mean(0), (e * e).mean(0))
        state = DiagonalRegression(count, *averaged(tuple(state[1:]), latest, weight))

        def moved(parameters: Parameters) -> Parameters:
            moments = _updated(state, self.density.moments(parameters), self.trust)
            updated: Parameters = self.density.set_moments(parameters, moments)
            return updated

        warm = count.num_pairs >= 1 + SPARE_PAIRS
        return state, lax.cond(warm, moved, lambda same: same, parameters)


def _updated(state: DiagonalRegression, moments: Moments, trust: float) -> Moments:
    mean, scale = moments
    number = state.seen.worth
    # Whitened; the cross-covariance of scale * score and theta / scale is that of the two.
    spread = state.covariance / jnp.square(scale)
    cross = state.cross_covariance
    residual = state.score_covariance * jnp.square(scale) - jnp.square(cross) / spread
    noise = jnp.maximum(residual, 0.0) / free_share(1, number)
    pull = noise / number
    precision = limited((pull - cross) / (spread + pull), noise, trust)
    move = (state.mean_theta - mean) / scale + scale * state.mean_score / precision
    # Each coordinate is a regression of its own, so its move is limited on its own.
    move = jnp.clip(move / (1.0 + pull), -1.0, 1.0)
    return Moments(mean + scale * move, scale / jnp.sqrt(precision))
