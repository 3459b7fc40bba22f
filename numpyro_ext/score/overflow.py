"""Scores that come from an overflow, which closed forms and matches leave out.

The method is told in :mod:`ppl_ext.regression.overflow`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from ppl_ext.regression.overflow import SPOILT, WILD

T = TypeVar("T")


class Verdict(NamedTuple):
    """Whether the latest scores, or those before them, come from an overflow; arrays of bool."""

    wild: jax.Array
    spoilt: jax.Array

    @property
    def sound(self) -> jax.Array:
        """Whether neither does."""
        return ~(self.wild | self.spoilt)

    def choose(self, before: T, fresh: T, after: T) -> T:
        """Of three trees of arrays the one for wild scores, for spoilt ones, or for sound ones."""
        found: T = jax.tree.map(
            lambda *values: jnp.where(
                self.wild, values[0], jnp.where(self.spoilt, values[1], values[2])
            ),
            before,
            fresh,
            after,
        )
        return found


def judged(seen: jax.Array, latest: jax.Array) -> Verdict:
    """What to make of scores of the mean square ``latest`` after some of the mean square ``seen``.

    Zeros are no scores: nothing was seen before, or the density is flat.
    """
    both = (seen > 0.0) & (latest > 0.0)
    return Verdict(both & (latest > WILD * seen), both & (seen > SPOILT * latest))
