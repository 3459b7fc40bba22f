"""Chains of stochastic gradient MCMC, and which of their draws are kept."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bnn.methods import GUIDE_DRAWS, Floats, Method, Setting


def kept_steps(setting: Setting) -> list[int]:
    """Steps after which all chains give a draw: evenly over the last half of the run.

    Together the chains give as many draws as a guide, or a few more.
    """
    number = -(-GUIDE_DRAWS // setting.particles)
    points = np.linspace(setting.steps / 2, setting.steps, number + 1)[1:]
    return sorted({max(1, round(point)) for point in points.tolist()})


class ChainTrainer:
    """Runs of chains; see :class:`~benchmarks.bnn.methods.Trainer`.

    A candidate is a step size for the mean over rows of the log density, as that of gradient
    descent is, so that one serves sets of all sizes. It is the same throughout a run.
    Until a draw is kept the networks are those at which the chains are. A subclass says how
    chains begin, move and are read.
    """

    def __init__(self, method: Method, setting: Setting) -> None:
        self._method, self._setting = method, setting
        self._kept_steps = kept_steps(setting)

    @abstractmethod
    def _begin(self, x: Floats, y: NDArray[Any], seed: int, step_size: float) -> None:
        """Put the chains at their start."""

    @abstractmethod
    def _move(self, steps: int) -> None:
        """Let the chains take so many steps."""

    @abstractmethod
    def _networks(self) -> dict[str, Floats]:
        """Networks at which the chains are."""

    def start(self, x: Floats, y: NDArray[Any], seed: int, candidate: float) -> None:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        self._begin(x, y, seed, candidate / self._setting.rows)
        self._taken = 0
        self._kept: list[dict[str, Floats]] = []

    def advance(self, steps: int) -> None:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        end = self._taken + steps
        for point in [step for step in self._kept_steps if self._taken < step <= end]:
            self._move(point - self._taken)
            self._taken = point
            self._kept.append(self._networks())
        self._move(end - self._taken)
        self._taken = end

    def draws(self) -> dict[str, Floats]:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        if not self._kept:
            return self._networks()
        return {name: np.concatenate([draw[name] for draw in self._kept]) for name in self._kept[0]}
