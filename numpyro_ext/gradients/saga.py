"""Minibatch scores with reduced variance: differences to a table of every row's latest gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.gradients.estimator import EstimatorState, GradientEstimator, ScoreEstimate
from numpyro_ext.gradients.minibatch import Minibatch, Sampling
from numpyro_ext.gradients.svrg import check_no_local_latents
from ppl_ext.density import tempered
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count

#: Rows whose gradients are computed at once when the table is made.
ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class SAGA(GradientEstimator):
    """Score with a table that holds, for every row and position, the row's latest gradient.

    With g_n the gradient of row n's log likelihood and t_n the table's entry, the estimate from a
    minibatch B of N rows is

        grad log prior + (N / |B|) sum_B (g_n - t_n) + sum_n t_n,

    which is unbiased; then t_n becomes g_n for the rows of B. The first step fills the table by a
    sweep over all rows, so that it is exact. Unlike ``SVRG`` there is no other sweep, and the
    table takes N P D numbers.

    Parameters
    ----------
    sampling : {"reshuffle", "replacement", "cyclic"}
        See :class:`~numpyro_ext.gradients.Minibatch`.
    max_bytes : int
        A larger table is refused.

    Raises
    ------
    ArgumentError
        An option is out of range. From ``init``: the table would be too large, the model does not
        subsample exactly one plate itself, or has latents inside it.

    References
    ----------
    A. Defazio, F. Bach and S. Lacoste-Julien, "SAGA: A fast incremental gradient method with
    support for non-strongly convex composite objectives", NeurIPS 2014.
    """

    sampling: Sampling = "reshuffle"
    max_bytes: int = 2**30

    def __post_init__(self) -> None:
        check_count("max_bytes", self.max_bytes)
        self._minibatch()

    def _minibatch(self) -> Minibatch:
        return Minibatch(self.sampling)

    def init(
        self, target: LogDensity, data: Data, rng_key: Array, num_positions: int
    ) -> EstimatorState:
        """State: that of the minibatches, the table, its sum, and whether it is filled."""
        check_no_local_latents(target, type(self).__name__)
        minibatch = self._minibatch().init(target, data, rng_key, num_positions)
        shape = table_shape(target, num_positions, self.max_bytes)
        return {
            "minibatch": minibatch,
            "table": jnp.zeros(shape, target.dtype),
            "sum": jnp.zeros(shape[1:], target.dtype),
            "filled": jnp.asarray(False),
        }

    def estimate(
        self, target: LogDensity, state: EstimatorState, z: Array, data: Data
    ) -> tuple[ScoreEstimate, EstimatorState]:
        """Score at positions (P, D), and the next state."""
        (name,) = target.plates
        number = target.plates[name].size

        def row(index: Array) -> tuple[Array, Array, Array, Array]:
            # A single row is scaled as all rows.
            parts = target.score_parts(z, data, {name: index[None]})
            return parts.likelihood / number, parts.prior, parts.log_prior, parts.log_likelihood

        def fill() -> tuple[Array, Array]:
            rows = jnp.arange(number)
            table = lax.map(lambda index: row(index)[0], rows, batch_size=ROWS_AT_ONCE)
            return table, table.sum(0)

        table, total = lax.cond(state["filled"], lambda: (state["table"], state["sum"]), fill)
        indices, minibatch = self._minibatch().draw(target, state["minibatch"], len(z))
        rows = indices[name]
        gradient, prior, log_prior, log_likelihood = jax.vmap(row)(rows)
        change = gradient - table[rows]
        likelihood = number * change.mean(0) + total
        # A row that was drawn twice changes the table once.
        again = (rows[:, None] == rows[None]) & jnp.tri(len(rows), k=-1, dtype=bool)
        first = ~again.any(1)
        following = {
            "minibatch": minibatch,
            "table": table.at[rows].set(gradient),
            "sum": total + jnp.where(first[:, None, None], change, 0.0).sum(0),
            "filled": jnp.asarray(True),
        }
        score = tempered(prior[0], likelihood, target.likelihood_temperature)
        return ScoreEstimate(score, log_prior[0], log_likelihood.mean(0), indices), following

    def evaluations_per_step(self, target: LogDensity) -> float:
        """That of a minibatch; the first step's sweep is not counted."""
        return self._minibatch().evaluations_per_step(target)


def table_shape(target: LogDensity, num_positions: int, max_bytes: int) -> tuple[int, int, int]:
    """Shape (N, P, D) of the table.

    Raises
    ------
    ArgumentError
        It would be too large, or there is more than one plate.
    """
    if len(target.plates) != 1:
        raise ArgumentError(
            f"Expected one subsampled plate with SAGA, found {sorted(target.plates)}. Use SVRG, "
            "which takes several."
        )
    (plate,) = target.plates.values()
    shape = (plate.size, num_positions, target.dim)
    needed = math.prod(shape) * target.dtype.itemsize
    if needed > max_bytes:
        raise ArgumentError(
            f"Expected a table of at most max_bytes={max_bytes} bytes, found {needed}: {shape[0]} "
            f"rows times {shape[1]} positions times {shape[2]} latent dimensions. Use SVRG, which "
            "has no table, or raise max_bytes."
        )
    return shape
