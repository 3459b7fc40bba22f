"""Random numbers of JAX, drawn in the form that XLA compiles soonest.

JAX numbers the entries of an array axis by axis, which XLA works out again for every operation of
the generator: of a shape such as (100, 10) a program on a CPU takes 0.6 s longer to compile than of
(1000,), whose numbers are the same.
"""

from __future__ import annotations

import math
from typing import Any

from jax import Array, random


def standard_normal(rng_key: Array, shape: tuple[int, ...], dtype: Any = float) -> Array:
    """The numbers of ``jax.random.normal``, drawn as one vector."""
    return random.normal(rng_key, (math.prod(shape),), dtype).reshape(shape)


def standard_gumbel(rng_key: Array, shape: tuple[int, ...], dtype: Any = float) -> Array:
    """The numbers of ``jax.random.gumbel``, drawn as one vector."""
    return random.gumbel(rng_key, (math.prod(shape),), dtype).reshape(shape)
