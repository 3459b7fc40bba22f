"""Minibatch scores with reduced variance: differences to an anchor where the score is exact."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from numpyro_ext.density import Data, LogDensity, Score
from numpyro_ext.gradients.estimator import (
    EstimatorState,
    GradientEstimator,
    ScoreEstimate,
    corrected,
)
from numpyro_ext.gradients.minibatch import Minibatch
from ppl_ext.gradients import reduced_variance


class SVRG(reduced_variance.SVRG, GradientEstimator):
    _minibatches = Minibatch

    def init(
        self, target: LogDensity, data: Data, rng_key: Array, num_positions: int
    ) -> EstimatorState:
        """State: that of the minibatches, the anchors with their scores, and the steps since."""
        self._check(target, data)
        rows = {}
        if self.full_data is None:
            rows = self._minibatch().init(target, data, rng_key, num_positions)
        shapes = (num_positions, target.dim), (num_positions,), (num_positions,)
        return {
            "minibatch": rows,
            "anchor": jnp.zeros(shapes[0], target.dtype),
            "exact": Score(*(jnp.zeros(shape, target.dtype) for shape in shapes)),
            # The first step sets an anchor.
            "anchor_age": jnp.asarray(self.anchor_every, jnp.int32),
        }

    def estimate(
        self, target: LogDensity, state: EstimatorState, z: Float[Array, "P D"], data: Data
    ) -> tuple[ScoreEstimate, EstimatorState]:
        due = state["anchor_age"] >= self.anchor_every
        anchor, exact = lax.cond(
            due,
            lambda: (z, self._score_of_all_rows(target, z, data)),
            lambda: (state["anchor"], state["exact"]),
        )
        indices, minibatch = None, state["minibatch"]
        if self.full_data is None:
            indices, minibatch = self._minibatch().draw(target, minibatch, len(z))
        here = target.score(z, data, indices)
        there = target.score(anchor, data, indices)
        score = corrected(here, there, exact, indices)
        age = jnp.where(due, 1, state["anchor_age"] + 1)
        following = {"minibatch": minibatch, "anchor": anchor, "exact": exact, "anchor_age": age}
        return score, following
