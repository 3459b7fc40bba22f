"""Minibatch scores of a model whose batches are its arguments, from a list of batches.

Engines with a ``step`` are called with a new batch each time. A host's ``MCMC`` is called once,
and the batches have to come from somewhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from numpyro_ext.density import Data, LogDensity, Score
from numpyro_ext.gradients.estimator import EstimatorState, GradientEstimator, ScoreEstimate
from numpyro_ext.gradients.full_data import FullData, batches_of, check_rows, num_rows
from numpyro_ext.gradients.permutation import draw_order, next_rows
from ppl_ext.errors import ArgumentError


@dataclass(frozen=True)
class BatchArguments(GradientEstimator):
    """Score of one of the given batches, in an order that is drawn anew for every round.

    Parameters
    ----------
    batches : iterable of tuples
        The model's positional arguments of each batch, such as ``(x, y)``; together they hold
        each row once. The model's plate scales a batch up to all rows by its size, as in
        ``plate("data", N, subsample_size=len(x))``. Keyword arguments are those of the call.
    own_rows : bool
        Draw a batch for each position apart, as independent chains need them.

    Raises
    ------
    ArgumentError
        The batches are none, or differ in shape: one compiled program serves all. From ``init``:
        the model looks up its rows itself, or the batches do not hold each row once.
    """

    batches: FullData = field(compare=False, repr=False)
    own_rows: bool = False

    def __post_init__(self) -> None:
        batches = batches_of(self.batches)
        # An iterable may be good for one pass only.
        object.__setattr__(self, "batches", list(batches))
        shapes = {tuple(np.shape(leaf) for leaf in jax.tree.leaves(batch)) for batch in batches}
        if len(shapes) > 1:
            raise ArgumentError(
                "Expected batches of one shape, since one compiled program serves all, found "
                f"{sorted(shapes)}. Leave out the last one, or take a size that divides the rows."
            )

    def _stacked(self) -> tuple[Any, ...]:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *self.batches)

    def init(
        self, target: LogDensity, data: Data, rng_key: Array, num_positions: int
    ) -> EstimatorState:
        """State: a key, the order of the batches and the position in it."""
        batches = tuple(self.batches)
        check_rows(target, data, batches)
        return {
            "rng_key": rng_key,
            "order": draw_order(rng_key, (num_positions,) if self.own_rows else ()),
            # A position past the end makes the first draw start with a fresh order.
            "position": jnp.asarray(len(batches), jnp.int32),
        }

    def draw(self, state: EstimatorState) -> tuple[Array, EstimatorState]:
        """Number of the next batch, or (P,) of them, and the next state."""
        rng_key, key = random.split(state["rng_key"])
        number = len(tuple(self.batches))
        chosen, order, position = next_rows(key, number, 1, state["order"], state["position"])
        return chosen[..., 0], {"rng_key": rng_key, "order": order, "position": position}

    def score(self, target: LogDensity, chosen: Array, z: Array, data: Data) -> Score:
        """Score at positions (P, D) of the batch ``chosen``, or of (P,) batches."""
        stacked = self._stacked()

        def of_batch(z: Array, number: Array) -> Score:
            batch = jax.tree.map(lambda leaf: leaf[number], stacked)
            return target.score(z, target.bind(*batch, **data.kwargs))

        if chosen.ndim == 0:
            return of_batch(z, chosen)
        return jax.tree.map(
            lambda leaf: leaf[:, 0],
            jax.vmap(lambda z, number: of_batch(z[None], number))(z, chosen),
        )

    def estimate(
        self, target: LogDensity, state: EstimatorState, z: Array, data: Data
    ) -> tuple[ScoreEstimate, EstimatorState]:
        """Score at positions (P, D) of the next batch."""
        chosen, state = self.draw(state)
        return ScoreEstimate(*self.score(target, chosen, z, data), indices=None), state

    def needs_new_arguments(self, target: LogDensity) -> bool:
        """Never: it has the batches."""
        return False

    def with_own_rows(self, target: LogDensity) -> BatchArguments:
        """The same batches, drawn for each position apart."""
        return replace(self, own_rows=True)

    def evaluations_per_step(self, target: LogDensity) -> float:
        """Share of the rows in one batch."""
        batches = tuple(self.batches)
        return num_rows(batches[0]) / sum(map(num_rows, batches))
