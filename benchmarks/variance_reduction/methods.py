"""Methods of the comparisons, their costs, and what a run offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Decay of RMSProp's mean of squares, and what is added to its root.
DECAY, FUDGE = 0.9, 1e-6


@dataclass(frozen=True)
class Method:
    """One way of fitting.

    Attributes
    ----------
    reduced : bool
        Scores with reduced variance.
    reset : bool
        The optimizer starts anew at every anchor, or as often without anchors.
    point : bool
        Maximum likelihood by gradient descent, instead of particles.
    equal_budget : bool
        As many gradients as variance reduction takes, by more steps.
    """

    reduced: bool = False
    reset: bool = False
    point: bool = False
    equal_budget: bool = False


METHODS = {
    "SVGD": Method(),
    "SVGD, reset": Method(reset=True),
    "SVGD, equal gradients": Method(equal_budget=True),
    "SVRG, point estimate": Method(reduced=True, point=True),
    "SVGD-VR": Method(reduced=True),
    "SVGD-VR, reset": Method(reduced=True, reset=True),
}


@dataclass(frozen=True)
class Schedule:
    """How rows are taken.

    Attributes
    ----------
    rows, batch : int
    anchor_every : int
        Steps from one anchor to the next.
    particles : int
    ordered : bool
        Rows one after the other, as for online learning; otherwise reshuffled every epoch.
    falling_over : int
        Steps over which the step size falls to 0 along a cosine; 0 where it does not fall.
    """

    rows: int
    batch: int
    anchor_every: int
    particles: int
    ordered: bool = False
    falling_over: int = 0

    def gradients_per_step(self, method: Method) -> float:
        """Gradients of a step for each particle, in sweeps over the data."""
        plain = self.batch / self.rows
        return 2.0 * plain + 1.0 / self.anchor_every if method.reduced else plain

    def steps(self, method: Method, steps: float) -> float:
        """Steps of a run: those given, or as many as take the gradients of variance reduction."""
        if not method.equal_budget:
            return steps
        reduced = self.gradients_per_step(METHODS["SVGD-VR"])
        return steps * reduced / self.gradients_per_step(method)


class Trainer(Protocol):
    """A run in progress."""

    def advance(self, steps: int) -> None:
        """Take so many steps."""

    def draws(self) -> dict[str, Floats]:
        """Values of the latent sites, the particles along the first axis."""

    def variance_ratio(self, batches: int) -> float:
        """Norm of the standard deviation of the reduced score over that of a minibatch's.

        At the present particles and anchor, over so many fresh batches.
        """


Arguments = tuple[NDArray[Any], ...]
