"""How much the noise of minibatches widens a chain's draws, from the scores at one position."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ppl_ext.engines.judgement import DEVIATION

#: Scores at one position, of all chains together and of each chain at least.
SCORES, EACH = 32, 8
#: Variance beside the posterior's that is let pass, relative to it.
LET_PASS = math.exp(2.0 * DEVIATION) - 1.0


def scores_each(num_chains: int) -> int:
    """Scores that are taken at the position of each chain."""
    return max(EACH, -(-SCORES // num_chains))


def heat_by_site(
    total: Float[Any, "C D"],
    squares: Float[Any, "C D"],
    number: int,
    heat: Any,
    slices: Mapping[str, slice],
) -> list[Float[Any, " C"]]:
    """Mean over the coordinates of each site of what noise adds to their variance.

    Parameters
    ----------
    total, squares : array (C, D)
        Sums of scores at one position, less the first of them, and of their squares.
    number : int
        Scores that were summed, the first one included.
    heat : float or array that broadcasts to (C, D)
        Variance that a variance of 1 in the scores adds, relative to the posterior's.
    slices : mapping of str to slice
        Coordinates of each site.
    """
    # Scores less the first are ``number`` values of which one is zero: the variance does not
    # change.
    variance = heat * (squares - total**2 / number) / (number - 1)
    return [variance[:, where].mean(-1) for where in slices.values()]


def judged_heat(
    heat: Float[np.ndarray, "C sites"], names: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What speaks against draws, and what else is told, of the figures of :func:`heat_by_site`."""
    means = np.asarray(heat, float).reshape(-1, len(names)).mean(0)
    if not np.any(means > 0.0):
        return (), ()
    worst = int(np.argmax(means))
    line = (
        f"The noise of minibatches makes the variance of '{names[worst]}' up to some "
        f"{1.0 + means[worst]:,.3g} times the posterior's; rows that are taken in rounds, as by "
        "default, add less where a round is short beside what chains need to move"
    )
    if means[worst] <= LET_PASS:
        return (), (f"{line}.",)
    advice = (
        f"{line}. Take a smaller step size, in proportion, larger minibatches, "
        "`estimator=ControlVariate(...)` or `SVRG(...)`, or in `SGHMC` more friction."
    )
    return (advice,), ()
