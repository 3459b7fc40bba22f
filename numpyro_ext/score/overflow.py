"""Scores that come from an overflow, which closed forms and matches leave out.

A draw far out can meet a density that overflows, with a score that is finite and yet thirty orders
too large. In a running average, or a guide that follows it at once, it would rule for ever. So the
mean square of the latest scores is compared with that of those before, both in coordinates that
the present guide whitens: noise of finite variance is beyond ``WILD`` times its mean with a
probability below 1 / ``WILD``. Scores that are wilder count for nothing but that the next may be
wilder, by ``LENIENCE``, so that a density that does change is followed in the end. Where it is the
earlier ones that are beyond ``SPOILT`` times the latest, it was they, and all begins anew.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

T = TypeVar("T")

#: In mean square, the latest scores may be so many times those before; and those before so many
#: times the latest.
WILD, SPOILT = 1e8, 1e12
#: How much more is let in after each time that scores were left out.
LENIENCE = 1.5


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
