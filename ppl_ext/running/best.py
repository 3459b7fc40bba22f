"""The best state of a run, and a word at its end when it ends far above it.

A step size that is too large can carry an engine away from a good state, by amounts that are
finite and so raise no error. So a run is looked at twenty times: a state is judged by a figure in
nats, of which less is better, over the steps just before it. Guides are judged by minus the
evidence lower bound at the draws of a step, all others by their loss, minus a log density. Figures
of single steps are noisy, those of minibatches above all: a state counts as much as the upper
quartile of its steps, which a single draw does not move and which rises where the end of them does.
The state before the first step has one figure alone, and is better than a later one only when that
is below nine tenths of the later one's.

A run ends *far* above its best when its last steps are so by ten nats for each latent, and by five
times the range between the quartiles of the best steps, which is noise. The one figure of the
state before the first step has no range: the last steps are far above it when all later figures,
a hundred or more, are above it. Particles that set out at a mode are not warned of: their log
density falls by about half a nat a latent as they spread.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ppl_ext.errors import LostFitWarning
from ppl_ext.running.piece import Piece

#: Looks in a run, steps from one to the next at least, and steps by which a state is judged.
LOOKS, LEAST_APART, WINDOW = 20, 20, 50
#: How far above the best is far: in nats a latent, and in ranges of the best's figures.
FAR, FAR_RANGES = 10.0, 5.0
#: Later figures that show that the state before the first step was better.
LATER = 100
#: States of more bytes are kept only when that is asked for.
LARGEST = 2**26


class Best(NamedTuple):
    """The best state of a run.

    Parameters
    ----------
    step : int
        Steps that had been taken then, from the engine's first.
    loss : float
        What it is judged by, in nats: the upper quartile of minus the evidence lower bound, for a
        guide, or of the loss, for all other engines, over the 50 steps before it. Infinite where
        none was finite.
    last : float
        The same at the end of the run; NaN where none was finite.
    lost : bool
        Whether the run ended far above it.
    state : object, optional
        In NumPyro an ``EngineState``, in Pyro a ``SavedState``, which ``engine.load`` takes. None
        where states are not kept.
    """

    step: int
    loss: float
    last: float
    lost: bool
    state: Any = None


class Figures(NamedTuple):
    """What some steps are judged by: a tenth and three quarters are below, and the range."""

    tenth: float
    high: float
    range: float


class Watch:
    """Looks at a run.

    Parameters
    ----------
    dim : int
        Number of latents.
    judge : callable
        From a piece of the run to what its steps are judged by (steps,).
    keep : callable, optional
        A copy of the present state; None where states are not kept.
    """

    def __init__(
        self, dim: int, judge: Callable[[Piece], Any], keep: Callable[[], Any] | None
    ) -> None:
        self._dim, self._judge, self._keep = dim, judge, keep
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._best: Best | None = None
        # The best that was looked at; the state before the first step may be better.
        self._steps: Figures | None = None
        # The first figure, and of all others their number and the least.
        self._first, self._count, self._least = math.inf, 0, math.inf

    def start(self, position: int) -> None:
        """Before the first step."""
        self._keep_now(position, math.inf)

    def take(self, piece: Piece) -> None:
        """After some steps."""
        figures = np.asarray(self._judge(piece), np.float64)
        figures = figures[np.isfinite(figures)]
        if self._best is not None and self._first == math.inf and len(figures):
            # That of the state before the first step.
            self._first = float(figures[0])
            self._best = self._best._replace(loss=self._first)
            figures = figures[1:]
        self._recent.extend(figures[-WINDOW:])
        self._count += len(figures)
        self._least = min(self._least, figures.min(initial=math.inf))

    def look(self, position: int) -> None:
        """At the present state."""
        found = self._judged()
        if self._best is None or found is None:
            return
        if self._steps is None or found.high <= self._steps.high:
            best = self._best.loss
            # The start's one figure is lower than most by chance in many runs.
            if (found.high if best != self._first else found.tenth) <= best:
                self._keep_now(position, found.high)
            self._steps = found

    def end(self) -> Best | None:
        """The best state; None before the start."""
        found = self._judged()
        if self._best is None or found is None:
            return self._best
        far = FAR * self._dim
        lost = self._count >= LATER and self._least > self._first and found.high > self._first + far
        if self._steps is not None:
            far += FAR_RANGES * self._steps.range
            lost |= found.high > self._steps.high + far
        return self._best._replace(last=found.high, lost=bool(lost))

    def _keep_now(self, position: int, loss: float) -> None:
        # The earlier one is dropped first, so that there are never two.
        self._best = None
        state = None if self._keep is None else self._keep()
        self._best = Best(position, loss, math.nan, False, state)

    def _judged(self) -> Figures | None:
        if not self._recent:
            return None
        tenth, low, high = np.quantile(self._recent, [0.1, 0.25, 0.75]).tolist()
        return Figures(tenth, high, high - low)


def warn_if_lost(name: str, best: Best | None, how: str) -> None:
    """Say so when a run of the engine of this name has ended far above its best.

    ``how`` is how to go on from there.
    """
    if best is None or not best.lost:
        return
    state = (
        "Its state is in result.best.state: " + how
        if best.state is not None
        else "Its state, which is large, was not kept: run(keep_best=True) keeps it."
    )
    warnings.warn(
        f"Expected {name} to end near its best, found {best.last:.4g} nats at the end of the run "
        f"and {best.loss:.4g} after step {best.step} (less is better). {state} Lower the learning "
        "rate, or take more draws or rows a step.",
        LostFitWarning,
        stacklevel=4,
    )
