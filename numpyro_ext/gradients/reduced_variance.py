"""Minibatch scores with reduced variance; see :mod:`ppl_ext.gradients.reduced_variance`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from numpyro_ext.density import Data, LogDensity, Score, ScoreParts
from numpyro_ext.gradients.estimator import (
    EstimatorState,
    GradientEstimator,
    ScoreEstimate,
)
from numpyro_ext.gradients.minibatch import BatchArguments, Minibatch
from ppl_ext.gradients import reduced_variance
from ppl_ext.gradients.reduced_variance import changes_of_table, table_shape
from ppl_ext.target.scores import tempered


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
        # A condition, so that only the steps that set an anchor sweep over the data.
        anchor, exact = lax.cond(
            due,
            lambda: (z, self._score_of_all_rows(target, z, data)),
            lambda: (state["anchor"], state["exact"]),
        )
        score, rows = self._by_differences(target, state["minibatch"], z, anchor, exact, data)
        age = jnp.where(due, 1, state["anchor_age"] + 1)
        following = {"minibatch": rows, "anchor": anchor, "exact": exact, "anchor_age": age}
        return score, following


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
        likelihood, gradient, change = changes_of_table(
            jnp, parts.likelihood, table[rows], total, number
        )
        # A row that was drawn twice changes the table once.
        again = (rows[:, None] == rows[None]) & jnp.tri(len(rows), k=-1, dtype=bool)
        first = ~again.any(1)
        following = {
            "minibatch": minibatch,
            "table": table.at[rows].set(gradient),
            "sum": total + jnp.where(first[:, None, None], change, 0.0).sum(0),
            "filled": jnp.asarray(True),
        }
        # The prior is the same whichever row it is found with.
        score = tempered(parts.prior[0], likelihood, target.likelihood_temperature)
        log_likelihood = parts.log_likelihood.mean(0)
        return ScoreEstimate(score, parts.log_prior[0], log_likelihood, indices), following


class ControlVariate(reduced_variance.ControlVariate, GradientEstimator):
    """Differences to the scores at a fixed position, found before: a mode, or a guide's centre.

    With s_B the score of a minibatch B and a the anchor, the estimate at position z is

        s_B(z) - s_B(a) + s(a),

    which is unbiased for any anchor, and the less noisy the nearer z is to it: near a mode the
    noise is that of the curvature times the distance. The exact score s(a) takes one sweep over
    all rows, when the estimator is set up; ``SVRG`` instead moves its anchors along.

    Parameters
    ----------
    anchor : mapping of str to array
        Latent sites in their supports, without a leading axis of draws: ``guide.median()`` of an
        autoguide (``guide.median(params)`` or ``AutoDelta.median`` in NumPyro), or the mean of an
        engine's draws.
    sampling : {"reshuffle", "replacement", "cyclic"}
        See ``Minibatch``.
    batches : iterable of tuples, optional
        For models whose batches are their arguments; see ``BatchArguments``.
    own_rows : bool
        See ``Minibatch``.

    Raises
    ------
    ArgumentError
        An option is out of range. From ``init``: the anchor lacks a site or has another shape or
        no finite score; the model has latents inside a subsampled plate, or leaves no rows to
        draw.

    References
    ----------
    J. Baker, P. Fearnhead, E. B. Fox and C. Nemeth, "Control variates for stochastic gradient
    MCMC", Statistics and Computing 2019, https://arxiv.org/abs/1706.05439.

    Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y), subsample_size=2) as rows:
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> estimator = nx.ControlVariate({"mean": jnp.array(2.0)})  # such as a mode
    >>> kernel = nx.SGLD(model, 0.02, estimator=estimator)
    >>> mcmc = numpyro.infer.MCMC(kernel, num_warmup=100, num_samples=2000)
    >>> mcmc.run(jax.random.key(0), y)
    >>> print(f"{mcmc.get_samples()['mean'].mean():.0f}")
    2
    """

    _minibatches, _batch_arguments = Minibatch, BatchArguments

    def init(
        self, target: LogDensity, data: Data, rng_key: Array, num_positions: int
    ) -> EstimatorState:
        """State: that of the minibatches, the anchor (1, D) and its exact score."""
        self._check(target, data)
        minibatch = self._rows().init(target, data, rng_key, num_positions)
        values = {name: jnp.asarray(value)[None] for name, value in self.anchor.items()}
        anchor = target.unconstrain(values, data)
        exact = self._score_of_all_rows(target, anchor, data)
        return {"minibatch": minibatch, "anchor": anchor, "exact": exact}

    def check(self, state: EstimatorState) -> None:
        """See that the score at the anchor is finite."""
        self._check_finite(bool(np.isfinite(np.asarray(state["exact"].score)).all()))

    def estimate(
        self, target: LogDensity, state: EstimatorState, z: Float[Array, "P D"], data: Data
    ) -> tuple[ScoreEstimate, EstimatorState]:
        # One anchor for all, unless every position has rows of its own to compare at.
        anchor = jnp.broadcast_to(state["anchor"], z.shape) if self.own_rows else state["anchor"]
        return self._estimated(target, state, z, anchor, data)
