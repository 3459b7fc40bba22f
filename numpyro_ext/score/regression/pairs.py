"""Mirrored pairs of draws.

Running averages over them are in :mod:`ppl_ext.score_matching.regression.pairs`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ppl_ext.score_matching.regression.pairs import Count


def initial_count(dtype: Any) -> Count:
    """Nothing seen yet."""
    return Count(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), jnp.zeros((), dtype))


def antithetic(theta: Float[Array, "K D"], mean: Float[Array, " D"]) -> Float[Array, "S D"]:
    """Draws (K, D) and their mirror images about the mean, (2 K, D): row k and row K + k pair."""
    return jnp.concatenate([theta, 2.0 * mean - theta])


__all__ = ["Count", "antithetic", "initial_count"]
