"""Scores that come from an overflow, which closed forms and matches leave out.

The method is told in :mod:`ppl_ext.score_matching.regression.overflow`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ppl_ext.score_matching.regression import overflow

T = TypeVar("T")


class Overflow(overflow.Overflow):
    """Whether the latest scores, or those before them, come from an overflow; arrays of bool."""

    def choose(self, before: Callable[[], T], fresh: Callable[[], T], after: Callable[[], T]) -> T:
        """Arrays from one of three functions, entry by entry; all three are called.

        Those of ``before`` where the latest scores come from an overflow (wild), of ``fresh`` where
        those before them do (spoilt), of ``after`` where neither does (sound).
        """

        def chosen(wild: Array, spoilt: Array, sound: Array) -> Array:
            return jnp.where(self.wild, wild, jnp.where(self.spoilt, spoilt, sound))

        return jax.tree.map(chosen, before(), fresh(), after())


def judged(seen: Float[Array, "*K"], latest: Float[Array, "*K"]) -> Overflow:
    """What to make of scores of the mean square ``latest`` after some of the mean square ``seen``.

    Zeros are no scores: nothing was seen before, or the density is flat.
    """
    return Overflow(*overflow.compared(seen, latest))
