"""Random numbers of JAX, drawn in the form that XLA compiles soonest.

JAX numbers the entries of an array axis by axis, which XLA works out again for every operation of
the generator: of a shape such as (100, 10) a program on a CPU takes 0.6 s longer to compile than of
(1000,), whose numbers are the same.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jax import Array, random
from numpyro.util import is_prng_key

from ppl_ext.errors import ArgumentError


def check_key(rng_key: Any, verb: str = "", then: str = "model") -> None:
    """See that a key is one, which comes first in a call of ``verb``, before ``then``.

    Raises
    ------
    ArgumentError
        It is something else.
    """
    if not is_prng_key(rng_key):
        # A whole number is meant as a seed. Anything else is probably the model, given where the
        # key belongs.
        first = verb and not isinstance(rng_key, int | str | None)
        more = f" The key comes first: {verb}(jax.random.key(0), {then}, ...)." if first else ""
        raise ArgumentError(
            "Expected rng_key to be a JAX key, such as jax.random.key(0), found "
            f"{type(rng_key).__name__}.{more}"
        )


def key_or(rng_key: Any, default: Any = None) -> Array:
    """A key that may be left out, then ``default`` or ``jax.random.key(0)``.

    Raises
    ------
    ArgumentError
        It is something else.
    """
    if rng_key is None:
        return random.key(0) if default is None else default
    check_key(rng_key)
    return rng_key


def standard_normal(rng_key: Array, shape: tuple[int, ...], dtype: Any = float) -> Array:
    """The numbers of ``jax.random.normal``, drawn as one vector."""
    return random.normal(rng_key, (math.prod(shape),), dtype).reshape(shape)


def same_normal(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Standard normal numbers of NumPy's, the same each time, for which nothing is compiled.

    For a look at draws of one's own, which belong to no state.
    """
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def standard_gumbel(rng_key: Array, shape: tuple[int, ...], dtype: Any = float) -> Array:
    """The numbers of ``jax.random.gumbel``, drawn as one vector."""
    return random.gumbel(rng_key, (math.prod(shape),), dtype).reshape(shape)
