"""Scores that come from an overflow, which closed forms and matches leave out.

The method is told in :mod:`ppl_ext.score_matching.regression.overflow`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor

from ppl_ext.score_matching.regression import overflow

T = TypeVar("T")


class Overflow(overflow.Overflow):
    """Whether the latest scores, or those before them, come from an overflow; bools."""

    def choose(self, before: Callable[[], T], fresh: Callable[[], T], after: Callable[[], T]) -> T:
        """The value of one of three functions.

        ``before`` where the latest scores come from an overflow (wild), ``fresh`` where those
        before them do (spoilt), ``after`` where neither does (sound).
        """
        if self.wild:
            return before()
        return fresh() if self.spoilt else after()


def judged(seen: Float[Tensor, ""] | float, latest: Float[Tensor, ""] | float) -> Overflow:
    """What to make of scores of the mean square ``latest`` after some of the mean square ``seen``.

    Zeros are no scores: nothing was seen before, or the density is flat.
    """
    return Overflow(*overflow.compared(float(seen), float(latest)))
