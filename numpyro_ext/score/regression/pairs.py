"""Mirrored pairs of draws, and running averages over them.

The method is told in :mod:`ppl_ext.regression.pairs`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from ppl_ext.regression.pairs import FORGETTING

T = TypeVar("T")


class Count(NamedTuple):
    """How much was seen.

    ``squared_weights`` is the sum of the squared weights of the pairs in the running averages.
    All are 0-d arrays.
    """

    num_updates: jax.Array
    num_pairs: jax.Array
    squared_weights: jax.Array

    @property
    def worth(self) -> jax.Array:
        """Number n of pairs that the averages are worth."""
        return 1.0 / self.squared_weights


def initial_count(dtype: Any) -> Count:
    """Nothing seen yet."""
    return Count(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), jnp.zeros((), dtype))


def next_weight(count: Count, decay: float, forgetting: jax.Array | float = 1.0) -> jax.Array:
    """Weight of the next iteration in a running average, times ``forgetting`` and at most one."""
    power = (count.num_updates + 1).astype(count.squared_weights.dtype) ** -decay
    return jnp.minimum(forgetting * power, 1.0).astype(power.dtype)


def next_mean_weight(count: Count, decay: float, total: jax.Array | int) -> jax.Array:
    """Weight of the next iteration in the averages that give the guide's mean.

    ``forgetting`` is ``FORGETTING`` at first and falls linearly to one over a run of ``total``
    iterations, if that is known (not 0): a mean that is still on its way must forget where it came
    from, as the target is no Normal there, and one that has arrived should average.
    """
    # Divided as numbers of the state's type: integers would be divided in float32.
    progress = count.num_updates.astype(count.squared_weights.dtype) / jnp.maximum(total, 1)
    left = jnp.where(total > 0, 1.0 - progress, 1.0)
    return next_weight(count, decay, 1.0 + (FORGETTING - 1.0) * jnp.maximum(left, 0.0))


def advanced(count: Count, pairs: int, weight: jax.Array) -> Count:
    """The count after one iteration more, of this weight, which its pairs share."""
    squared = (1.0 - weight) ** 2 * count.squared_weights + weight**2 / pairs
    return Count(count.num_updates + 1, count.num_pairs + pairs, squared)


def averaged(old: T, new: T, weight: jax.Array) -> T:
    """Running averages, a tree of arrays, with the latest values ``new``."""
    averages: T = jax.tree.map(lambda before, latest: before + weight * (latest - before), old, new)
    return averages


def antithetic(theta: jax.Array, mean: jax.Array) -> jax.Array:
    """Draws (K, D) and their mirror images about the mean, (2 K, D): row k and row K + k pair."""
    return jnp.concatenate([theta, 2.0 * mean - theta])


def halves(values: jax.Array) -> jax.Array:
    """Half the difference (K, D) of the two rows of each pair in (2 K, D)."""
    half = len(values) // 2
    return 0.5 * (values[:half] - values[half:])
