"""Sequences of noisy figures: how far they still go, and how far they swing.

*Windows.* With t the steps so far and c = 3/2, each figure is averaged over the steps from t / c
to t, those from t / c^2 to t / c, and so on, four times. The changes from average to average are,
the last first, v, u and w. The standard error e of v comes from the differences of eight
neighbouring parts of each window (von Neumann's estimate), which a drift hardly enters, and noise
that hangs together over less than a part does.

*How far it still goes.* A change is noise where it is within some standard errors, by the number of
figures, and the looks of the last window are worth eight independent ones: the way left is then at
most |v| + 2 e. Any other is a drift. Windows grow by c, so a drift whose changes shrink by
g = |v| / |u| from one to the next has |v| g / (1 - g) to go, and any way where g is 1 or more. At a
constant speed, as of a step size that is tiny, g is c; in a random walk the root of c; in averages
of all steps so far one over this root; where what is left falls as 1 / t one over c; and it goes to
zero where that falls exponentially. A figure's own g counts where it moves far more than the others
do. All others share one, the larger of median |v| / median |u| and the root of median |v| /
median |w|, but at least one over c, since a single figure of a walk or of an average says little.
A drift that has made a quarter of all its moves in the last window has not slowed down either.

*How far it swings.* The state that a run returns is one of many: the standard deviation of single
looks over the last quarter of the run is its noise.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

#: How much longer each window is than the one before.
LONGER = 1.5
#: Parts of a window by which its noise is known.
PARTS = 8
#: Share of runs in which noise alone passes for a drift of some figure, and the degrees of freedom
#: of a standard error.
LEVEL, DEGREES = 0.05, 10.0
#: Standard errors that are added to a drift.
MARGIN = 2.0
#: A drift has moved in the last window by this share of all it has moved at the most.
LATE_SHARE = 0.25
#: Independent looks that the last window must be worth for a change in it to be noise.
LEAST_NUMBER = 8.0
#: The g that all figures share is at least this.
LEAST_RATIO = 2.0 / 3.0
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
    ends = [count, *(round(count * LONGER**-number) for number in range(1, 5))]
    windows = [looks[end:start] for start, end in itertools.pairwise(ends)]
    late, middle = windows[:2]
    means = [window.mean(0) for window in windows]
    change, before, first = (later - earlier for later, earlier in itertools.pairwise(means))
    size, earlier = np.abs(change), np.abs(before)
    size[size <= rounding] = 0.0
    error = np.sqrt(_square_error(late) + _square_error(middle))
    chance = stdtrit(DEGREES, 1.0 - 0.5 * LEVEL / len(size))
    is_noise = (size <= chance * error) & (_effective_number(late) >= LEAST_NUMBER)
    # Figures that never move say nothing of the others.
    moves = np.maximum(size, earlier) > rounding
    sizes = [
        float(np.median(np.abs(each)[moves])) if moves.any() else 0.0
        for each in (change, before, first)
    ]
    typical = sizes[0]
    shared = max(_ratio(*sizes[:2]).item(), math.sqrt(_ratio(*sizes[::2])), LEAST_RATIO)
    far = size > FROM_MEDIAN * typical * (1.0 + math.sqrt(2.0 * math.log(len(size) + 1.0)))
    ratio = np.where(far, _ratio(size, earlier), shared)
    left = np.divide(size * ratio, 1.0 - ratio, out=np.full_like(size, np.inf), where=ratio < 1.0)
    left[np.ptp(late, axis=0) > LATE_SHARE * np.ptp(looks, axis=0)] = np.inf
    left[size == 0.0] = 0.0
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
    return len(window) * (1.0 - correlation) / (1.0 + correlation)


def _ratio(change: Any, before: Any) -> np.ndarray:
    """How much smaller a change is than the one before it; one at the most, zero where both are."""
    smaller = np.asarray(change < before)
    whole = np.where(np.asarray(change) > 0.0, 1.0, 0.0)
    return np.divide(change, before, out=whole, where=smaller)


def _square_error(window: Float[np.ndarray, "n M"]) -> Float[np.ndarray, " M"]:
    """Squared standard error of a window's mean."""
    length = len(window) // PARTS
    parts = window[-PARTS * length :].reshape(PARTS, length, -1).mean(1)
    square: np.ndarray = 0.5 * np.square(np.diff(parts, axis=0)).mean(0) / PARTS
    return square
