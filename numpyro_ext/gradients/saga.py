"""Minibatch scores with reduced variance: differences to a table of every row's latest gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from numpyro_ext.density import Data, LogDensity, ScoreParts
from numpyro_ext.gradients.estimator import EstimatorState, GradientEstimator, ScoreEstimate
from numpyro_ext.gradients.minibatch import Minibatch
from ppl_ext.gradients import reduced_variance
from ppl_ext.gradients.reduced_variance import table_shape
from ppl_ext.target.scores import tempered

#: Rows whose gradients are computed at once when the table is made.
ROWS_AT_ONCE = 256


class SAGA(reduced_variance.SAGA, GradientEstimator):
    _minibatches = Minibatch

    def init(
        self, target: LogDensity, data: Data, rng_key: Array, num_positions: int
    ) -> EstimatorState:
        """State: that of the minibatches, the table, its sum, and whether it is filled."""
        minibatch = self._rows_at_first(target, data, rng_key, num_positions)
        shape = table_shape(target, num_positions, target.dtype.itemsize, self.max_bytes)
        return {
            "minibatch": minibatch,
            "table": jnp.zeros(shape, target.dtype),
            "sum": jnp.zeros(shape[1:], target.dtype),
            "filled": jnp.asarray(False),
        }

    def estimate(
        self, target: LogDensity, state: EstimatorState, z: Float[Array, "P D"], data: Data
    ) -> tuple[ScoreEstimate, EstimatorState]:
        (name,) = target.plates
        number = target.plates[name].size

        def row(index: Array) -> ScoreParts[Array]:
            # A single row is scaled as all rows.
            parts = target.score_parts(z, data, {name: index[None]})
            return parts._replace(likelihood=parts.likelihood / number)

        def fill() -> tuple[Array, Array]:
            rows = jnp.arange(number)
            table = lax.map(lambda index: row(index).likelihood, rows, batch_size=ROWS_AT_ONCE)
            return table, table.sum(0)

        table, total = lax.cond(state["filled"], lambda: (state["table"], state["sum"]), fill)
        indices, minibatch = self._minibatch().draw(target, state["minibatch"], len(z))
        rows = indices[name]
        parts = jax.vmap(row)(rows)
        change = parts.likelihood - table[rows]
        likelihood = number * change.mean(0) + total
        # A row that was drawn twice changes the table once.
        again = (rows[:, None] == rows[None]) & jnp.tri(len(rows), k=-1, dtype=bool)
        first = ~again.any(1)
        following = {
            "minibatch": minibatch,
            "table": table.at[rows].set(parts.likelihood),
            "sum": total + jnp.where(first[:, None, None], change, 0.0).sum(0),
            "filled": jnp.asarray(True),
        }
        score = tempered(parts.prior[0], likelihood, target.likelihood_temperature)
        log_likelihood = parts.log_likelihood.mean(0)
        return ScoreEstimate(score, parts.log_prior[0], log_likelihood, indices), following
