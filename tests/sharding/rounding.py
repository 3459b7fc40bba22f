"""How far a run on many devices may be from one device's: as far as rounding alone takes it.

A layout changes the order of sums. Most engines make little of that: 1e-6 in single precision. A
step that solves an ill-conditioned system makes much of it, and of any other change of the last
bit. So its yardstick is one device itself, on data that are changed in their last bit.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

#: Differences that are rounding alone, in the units of the numbers or, for large ones, of these.
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
#: Engines whose steps solve ill-conditioned systems: Newton's, and of covariances from few draws.
AMPLIFYING = ("SVN", "BaM", "GSM")
#: Changes of the data that are tried, and the times of what the largest does that a layout may do.
#: Every step has sums whose order a layout changes, and the data are changed once.
CHANGES, TIMES = range(4), 8.0


def in_last_bit(values: np.ndarray, seed: int) -> np.ndarray:
    """The numbers next to these in their precision, above or below at random."""
    ends = np.asarray([-np.inf, np.inf], values.dtype)
    return np.nextafter(values, np.random.default_rng(seed).choice(ends, values.shape))


def allowed(precision: str, by_changes: Iterable[float] = ()) -> float:
    """The greatest difference of a layout from one device.

    Parameters
    ----------
    precision : str
        A key of :data:`TOLERANCE`.
    by_changes : iterable of float
        Differences of one device's results by changes of the data.
    """
    return max(TOLERANCE[precision], TIMES * max(by_changes, default=0.0))
