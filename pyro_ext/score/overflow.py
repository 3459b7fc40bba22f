"""Scores that come from an overflow, which closed forms and matches leave out.

The method is told in :mod:`ppl_ext.regression.overflow`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from ppl_ext.regression.overflow import SPOILT, WILD

T = TypeVar("T")


class Verdict(NamedTuple):
    """Whether the latest scores, or those before them, come from an overflow."""

    wild: bool
    spoilt: bool

    @property
    def sound(self) -> bool:
        """Whether neither does."""
        return not (self.wild or self.spoilt)

    def choose(self, before: T, fresh: T, after: T) -> T:
        """Of three values the one for wild scores, for spoilt ones, or for sound ones."""
        if self.wild:
            return before
        return fresh if self.spoilt else after


def judged(seen: float, latest: float) -> Verdict:
    """What to make of scores of the mean square ``latest`` after some of the mean square ``seen``.

    Zeros are no scores: nothing was seen before, or the density is flat.
    """
    both = seen > 0.0 and latest > 0.0
    return Verdict(both and latest > WILD * seen, both and seen > SPOILT * latest)
