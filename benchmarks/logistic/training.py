"""Methods of the comparison, and what a package's trainer offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PARTICLES, ANCHOR_EVERY = 100, 128
#: Shape and rate of the precision's Gamma prior, decay of RMSProp's mean of squares.
PRIOR, DECAY = (1.0, 0.01), 0.9


@dataclass(frozen=True)
class Method:
    """One way of fitting.

    Attributes
    ----------
    reduced : bool
        Scores with reduced variance.
    reset : bool
        The optimizer starts anew every ``ANCHOR_EVERY`` steps.
    point : bool
        Maximum likelihood by gradient descent, instead of particles with the Gamma prior.
    equal_budget : bool
        As many gradients as variance reduction takes, by more steps.
    """

    reduced: bool = False
    reset: bool = False
    point: bool = False
    equal_budget: bool = False

    def gradients_per_step(self, rows: int, batch: int) -> float:
        """Gradients of a step for each particle, in sweeps over the data."""
        plain = batch / rows
        return 2.0 * plain + 1.0 / ANCHOR_EVERY if self.reduced else plain


METHODS = {
    "SVGD": Method(),
    "SVGD, reset": Method(reset=True),
    "SVGD, equal gradients": Method(equal_budget=True),
    "SVRG, point estimate": Method(reduced=True, point=True),
    "SVGD-VR": Method(reduced=True),
    "SVGD-VR, reset": Method(reduced=True, reset=True),
}


@dataclass(frozen=True)
class Task:
    """Rows and how they are taken.

    Attributes
    ----------
    x : array (N, D)
        With a column of ones.
    y : array (N,)
        0 or 1.
    batch : int
    ordered : bool
        Rows one after the other, as for online learning; otherwise reshuffled every epoch.
    """

    x: Floats
    y: NDArray[Any]
    batch: int
    ordered: bool = False


class Trainer(Protocol):
    """A run in progress."""

    def advance(self, steps: int) -> None:
        """Take so many steps."""

    def weights(self) -> Floats:
        """Weights of the particles, (P, D)."""

    def variance_ratio(self, batches: int) -> float:
        """Norm of the standard deviation of the reduced score over that of a minibatch's.

        At the present particles and anchor, over so many fresh batches.
        """


def make_trainer(backend: str, task: Task, method: Method, rate: float, seed: int) -> Trainer:
    """Start a run."""
    if backend == "numpyro":
        from benchmarks.logistic.numpyro_training import NumPyroTrainer

        return NumPyroTrainer(task, method, rate, seed)
    from benchmarks.logistic.pyro_training import PyroTrainer

    return PyroTrainer(task, method, rate, seed)


def judge(weights: Floats, x: Floats, y: NDArray[Any]) -> dict[str, float]:
    """Accuracy and mean log likelihood of the mean prediction."""
    chances = np.zeros(len(x))
    for w in weights:
        chances += 1.0 / (1.0 + np.exp(-np.clip(x @ w, -60.0, 60.0))) / len(weights)
    chances = np.clip(chances, 1e-12, 1.0 - 1e-12)
    return {
        "accuracy": 100.0 * float(np.mean((chances > 0.5) == (y > 0))),
        "log likelihood": float(np.mean(np.where(y > 0, np.log(chances), np.log1p(-chances)))),
    }
