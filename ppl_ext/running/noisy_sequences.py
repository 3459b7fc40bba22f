"""Sequences of noisy figures: how far they still go, and how far they swing.

*Windows.* With t the steps so far and c = 3/2, each figure is averaged over the steps from t / c
to t, those from t / c^2 to t / c, and so on, five times. The changes from average to average are,
the last first, v, u and so on. The standard error e of v comes from the differences of eight
neighbouring parts of each window (von Neumann's estimate), which a drift hardly enters, and noise
that hangs together over less than a part does.

*How far it still goes.* A change is noise where it is within some standard errors, by the number of
figures, and the looks of the last window are worth eight independent ones: the way left is then at
most |v| + 2 e. For any other it is that which it would go in six windows more, when the run is
eleven times as long, where changes grow by g from one to the next: |v| (g + g^2 + ... + g^6) + 2 e.

A figure that has gone one way in all windows has g = |v| / |u|: it is c at a constant speed and
1 / c where what is left falls as 1 / t. It is not taken below the root of 1 / c, as what is left
may fall as slowly as one over the root of t, after it has fallen fast. Random walks, of which g is
the root of c, and averages of all steps so far, of which it is one over this root, go one way by
chance now and then, and a single ratio of theirs says little: so g counts only where more figures
go one way than by chance, or where one goes further than the others. The others have the least g if
their last three changes have one sign, and 1 / c if they turn.

Where most go one way and the median of their g is 1.2 or more, nothing slows down, and the way left
is taken to be infinite, however short the last change is: so it is with a step size that is tiny.
The same holds where the median change has grown over two windows beyond chance, as that of many
figures on walks does.

*How far it swings.* The state that a run returns is one of many: the standard deviation of single
looks over the last quarter of the run is its noise.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

#: How much longer each window is than the one before, and their number.
LONGER, WINDOWS = 1.5, 5
#: Parts of a window by which its noise is known.
PARTS = 8
#: Share of runs in which noise alone passes for a drift of some figure, and the degrees of freedom
#: of a standard error.
LEVEL, DEGREES = 0.05, 10.0
#: Standard errors that are added to a drift.
MARGIN = 2.0
#: Independent looks that the last window must be worth for a change in it to be noise.
LEAST_NUMBER = 8.0
#: g of figures whose last changes, so many, have one sign, at least, and of those that turn.
LATELY, SLOW, TURNING = 3, LONGER**-0.5, 1.0 / LONGER
#: Windows ahead: the run is then eleven times as long.
AHEAD = 6
#: Share of the figures of a random walk that go one way in all windows by chance, standard
#: deviations of it that are no chance, and the share that never is.
ONE_WAY, SPREAD, MOST_SHARE = 0.19, 3.0, 0.99
#: From which median g figures that go one way have not begun to slow down.
ENDLESS = 1.2
#: Four standard deviations of the logarithm of a ratio of medians, times the root of the number of
#: figures, over two.
SPREAD_OF_MEDIANS = 4.0
#: Standard deviation of a Normal over the median of its absolute values.
FROM_MEDIAN = 1.4826


class Figures(NamedTuple):
    """What a run is judged by: for each figure, in its unit, how far it goes and swings (M,)."""

    drift: Float[np.ndarray, " M"]
    noise: Float[np.ndarray, " M"]


def judged(looks: Float[np.ndarray, "n M"], rounding: Float[np.ndarray, " M"]) -> Figures:
    """How far figures still go, and how far they swing.

    Parameters
    ----------
    looks : array (n, M)
        The figures at n looks at equal distances, each in its unit, n being 64 or more.
    rounding : array (M,)
        Changes up to this are none.
    """
    count = len(looks)
    ends = [count, *(round(count * LONGER**-number) for number in range(1, WINDOWS + 1))]
    windows = [looks[end:start] for start, end in itertools.pairwise(ends)]
    late, middle = windows[:2]
    means = np.stack([window.mean(0) for window in windows])
    changes = means[:-1] - means[1:]
    changes[np.abs(changes) <= rounding] = 0.0
    size, before, earlier = np.abs(changes[:3])
    error = np.sqrt(_square_error(late) + _square_error(middle))
    # A quantile for all figures together (Bonferroni): of many some change by two standard errors
    # by chance.
    chance = stdtrit(DEGREES, 1.0 - 0.5 * LEVEL / len(size))
    is_noise = (size <= chance * error) & (_effective_number(late) >= LEAST_NUMBER)
    # Figures that never move say nothing of the others.
    moves = size + before > 0.0
    signs = np.sign(changes)
    one_way = (np.abs(signs.sum(0)) == len(signs)) & moves
    lately = (np.abs(signs[:LATELY].sum(0)) == LATELY) & moves
    growth = np.divide(size, before, out=np.full_like(size, LONGER), where=before > 0.0)
    counts = one_way
    endless = False
    if moves.any():
        typical, once = (float(np.median(each[moves])) for each in (size, earlier))
        share = float(one_way[moves].mean())
        spread = math.sqrt(ONE_WAY * (1.0 - ONE_WAY) / moves.sum())
        if share <= min(ONE_WAY + SPREAD * spread, MOST_SHARE):
            # As many as go one way by chance: those that move no further than others do not count.
            far = FROM_MEDIAN * typical * (1.0 + math.sqrt(2.0 * math.log(len(size) + 1.0)))
            counts = one_way & (size > far)
        endless = share > 0.5 and float(np.median(growth[one_way])) >= ENDLESS
        endless |= typical > once * math.exp(SPREAD_OF_MEDIANS / math.sqrt(moves.sum()))
    ratio = np.where(lately, SLOW, TURNING)
    ratio = np.where(counts, growth.clip(SLOW, LONGER), ratio)
    left = np.full_like(size, np.inf) if endless else size * _series(ratio)
    return Figures(
        np.where(is_noise, size, left) + MARGIN * error,
        looks[-(count // 4) :].std(0, ddof=1),
    )


def _effective_number(window: Float[np.ndarray, "n M"]) -> Float[np.ndarray, " M"]:
    """Independent looks that those of a window are worth, by their correlation with the next."""
    centred = window - window.mean(0)
    square = np.square(centred).sum(0)
    products = (centred[1:] * centred[:-1]).sum(0)
    correlation = np.divide(products, square, out=np.zeros_like(square), where=square > 0.0)
    correlation = correlation.clip(0.0)
    # Of a series whose correlations fall geometrically.
    return len(window) * (1.0 - correlation) / (1.0 + correlation)


def _series(ratio: Float[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
    """Sum of the next changes, each by this ratio larger than the one before, the last being 1."""
    return np.sum([ratio**power for power in range(1, AHEAD + 1)], axis=0)


def _square_error(window: Float[np.ndarray, "n M"]) -> Float[np.ndarray, " M"]:
    """Squared standard error of a window's mean."""
    length = len(window) // PARTS
    parts = window[-PARTS * length :].reshape(PARTS, length, -1).mean(1)
    # Half the mean squared difference of neighbours is the variance of a part's mean, whatever
    # drifts slowly; over the number of parts it is that of the window's.
    return 0.5 * np.square(np.diff(parts, axis=0)).mean(0) / PARTS
