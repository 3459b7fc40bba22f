"""Fixed steps of the differential equations in the programs of both hosts; NumPy only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

#: Steps between two observations of populations.
POPULATION_STEPS = 3
#: Steps to the first observation of a drug, and between two later ones.
DRUG_FIRST_STEPS, DRUG_STEPS = 10, 2

# The symmetric splitting of order four with six stages of Blanes and Moan (2002, Journal of
# Computational and Applied Mathematics 142, 313-330): the first half of each sequence.
_FIRST = (0.0792036964311957, 0.353172906049774, -0.0420650803577195, 0.2193769557534996)
_SECOND = (0.209515106613362, -0.143851773179818, 0.434336666566456)


class Turns(NamedTuple):
    """Turns of two quantities of which each in turn moves while the other stands still.

    All arrays are of shape (M,), with `each` turns from one time to the next.
    """

    first: np.ndarray
    """How long the first quantity moves."""
    first_clock: np.ndarray
    """What time it is for the first quantity after that."""
    second: np.ndarray
    """How long the second quantity moves; zero in the last turn before each time."""
    second_clock: np.ndarray
    """What time it is for the second quantity while the first one moves."""
    each: int


def turns(times: Any, steps: int = POPULATION_STEPS) -> Turns:
    """Turns from the first of N times to the last, `steps` steps of order four between two."""
    forth, back = np.array([*_FIRST, *_FIRST[-2::-1]]), np.array([*_SECOND, *_SECOND[::-1]])
    first = np.zeros(steps * len(back) + 1)
    for step in range(steps):
        # The last turn of one step and the first one of the next are one.
        first[step * len(back) :][: len(forth)] += forth
    second = np.append(np.tile(back, steps), 0.0)
    first, second = first / steps, second / steps
    clocks = np.cumsum(first), np.concatenate([[0.0], np.cumsum(second)[:-1]])
    begin = np.asarray(times, float)[:-1, None]
    length = np.diff(np.asarray(times, float))[:, None]
    return Turns(
        (length * first).ravel(),
        (begin + length * clocks[0]).ravel(),
        (length * second).ravel(),
        (begin + length * clocks[1]).ravel(),
        len(first),
    )


def drug_times(start: float, times: Any) -> np.ndarray:
    """Ends and middles (2 S + 1,) of the steps from a dose at `start` to the last of `times`.

    Steps to the first observation grow with the cube of their number: where the concentration at
    which elimination saturates is small, it does so within a moment of the dose.
    """
    times = np.asarray(times, float)
    growing = start + (times[0] - start) * np.linspace(0.0, 1.0, DRUG_FIRST_STEPS + 1) ** 3
    even = np.linspace(times[:-1], times[1:], DRUG_STEPS, endpoint=False, axis=1).ravel()
    ends = np.concatenate([growing[:-1], even, times[-1:]])
    return np.interp(np.arange(0.0, len(ends) - 0.5, 0.5), np.arange(len(ends)), ends)
