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

from typing import Any, NamedTuple

#: In mean square, the latest scores may be so many times those before; and those before so many
#: times the latest.
WILD, SPOILT = 1e8, 1e12
#: How much more is let in after each time that scores were left out.
LENIENCE = 1.5


class Overflow(NamedTuple):
    """Whether the latest scores, or those before them, come from an overflow."""

    wild: Any
    spoilt: Any

    @property
    def sound(self) -> Any:
        """Whether neither does."""
        # ``^ True`` is "not" for truth values of Python, tensors and JAX's arrays alike.
        return (self.wild | self.spoilt) ^ True


def compared(seen: Any, latest: Any) -> tuple[Any, Any]:
    """Whether scores of the mean square ``latest`` are wild after some of ``seen``; or ``seen`` is.

    Zeros are no scores: nothing was seen before, or the density is flat.
    """
    both = (seen > 0.0) & (latest > 0.0)
    return both & (latest > WILD * seen), both & (seen > SPOILT * latest)
