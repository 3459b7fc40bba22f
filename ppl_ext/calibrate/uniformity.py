"""Whether ranks are uniform, with simultaneous bands for their distribution function.

The test is that of T. Säilynoja, P.-C. Bürkner and A. Vehtari, "Graphical test for discrete
uniformity and its applications in goodness-of-fit evaluation and multiple sample comparison"
(2022): at each possible value the number of ranks below it is binomial, and the least likely of
these numbers is the figure. Its distribution is computed exactly, going through the values one by
one, so that there are no simulations and the picture and the p-value say the same.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int
from scipy.special import gammaln
from scipy.stats import binom

#: Halvings that find the critical figure of a band.
_HALVINGS = 40
#: Two figures are the same within this share.
_ROUNDING = 1e-9

Bounds = tuple[Int[np.ndarray, " L"], Int[np.ndarray, " L"]]


def p_value(ranks: Int[np.ndarray, " N"], num_draws: int) -> float:
    """Probability of a figure at least as unlikely, if ranks are uniform.

    Parameters
    ----------
    ranks : array (N,)
        Numbers from 0 to L.
    num_draws : int
        L, the number of draws that was ranked among.

    Returns
    -------
    float
        Right to about 1e-12, below which there is rounding.
    """
    number = len(ranks)
    below = np.cumsum(np.bincount(ranks, minlength=num_draws + 1))[:-1]
    tails = _tails(number, num_draws)
    least = float(tails[np.arange(num_draws), below].min())
    # Figures that are as unlikely count, however they are rounded.
    outside = 1.0 - _within(number, num_draws, least * (1.0 + _ROUNDING))
    return float(min(1.0, max(outside, least)))


def band(number: int, num_draws: int, level: float) -> Bounds:
    """Least and largest number of ranks below 1, ..., L; N ranks stay inside with this probability.

    Parameters
    ----------
    number : int
        N ranks.
    num_draws : int
        L, the number of draws that are ranked among.
    level : float
        Probability, at least, that all numbers of uniform ranks are within the band.
    """
    # The logarithm of the critical figure. It is 1 - level at most, the chance of one value alone
    # to be that unlikely.
    low, high = -30.0, np.log(1.0 - level)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if _within(number, num_draws, float(np.exp(middle))) >= level:
            low = middle
        else:
            high = middle
    return _bounds(number, num_draws, float(np.exp(low)))


@lru_cache(maxsize=4)
def _tails(number: int, num_draws: int) -> Float[np.ndarray, "L K"]:
    """Smaller tail probability of each number of ranks, 0 to N, below each value 1, ..., L."""
    shares = np.arange(1, num_draws + 1)[:, None] / (num_draws + 1)
    counts = np.arange(number + 1)
    # ``sf`` is of more than its argument: one less gives the probability of so many or more.
    return np.minimum(binom.cdf(counts, number, shares), binom.sf(counts - 1, number, shares))


def _bounds(number: int, num_draws: int, least: float) -> Bounds:
    """The numbers of ranks below each value whose tail probability is greater than ``least``."""
    inside = _tails(number, num_draws) > least
    # Tail probabilities rise to the middle and fall behind it, so that the counts inside have no
    # gap.
    return inside.argmax(1), number - inside[:, ::-1].argmax(1)


def _within(number: int, num_draws: int, least: float) -> float:
    """Probability that all tail probabilities of N uniform ranks are greater than ``least``."""
    if not (_tails(number, num_draws) > least).any(1).all():
        return 0.0
    low, high = _bounds(number, num_draws, least)
    logs = gammaln(np.arange(number + 2) + 1.0)
    counts, masses = np.zeros(1, int), np.ones(1)
    # A Markov chain in the number of ranks below each value. ``masses`` are the probabilities of
    # the counts that have been within the bounds so far.
    for place in range(num_draws):
        # Of the ranks that are not below the last value, each is below this one with this chance.
        chance = 1.0 / (num_draws + 1 - place)
        following = np.arange(low[place], high[place] + 1)
        left, more = number - counts[:, None], following - counts[:, None]
        possible = (more >= 0) & (more <= left)
        more = np.where(possible, more, 0)
        terms = logs[left] - logs[more] - logs[left - more]
        terms += more * np.log(chance) + (left - more) * np.log1p(-chance)
        masses = masses @ np.where(possible, np.exp(terms), 0.0)
        counts = following
    return float(masses.sum())
