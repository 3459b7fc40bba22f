"""By which rows the chains of a network move: by all, or by minibatches with reduced variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ppl_ext.fit.networks.outputs import Positions
from ppl_ext.fit.problem.problem import Meter, Problem
from ppl_ext.start.paths import Evaluate
from ppl_ext.start.rows import Minibatches

#: Moves from one anchor to the next at most: some tens of them fall into the warm-up.
MOST_MOVES = 200


class Anchor(NamedTuple):
    """Where the log density (C,) and the score (C, D) of all rows are known, positions (C, D)."""

    z: Positions
    values: Float[np.ndarray, " C"]
    scores: Positions


@dataclass(frozen=True)
class RowsSeen:
    """By which rows chains move: by all, or by minibatches with reduced variance.

    Once a pass, density and score of all rows are evaluated at an anchor. At any position nearby a
    minibatch tells how both differ from those at the anchor: R. Johnson and T. Zhang, "Accelerating
    stochastic gradient descent using predictive variance reduction", NeurIPS 2013. Chains move
    little in a pass, so that this difference has little noise, and steps may be longer.

    Parameters
    ----------
    every : callable
        Evaluates with all rows.
    few : callable
        With those of the minibatch.
    minibatches : Minibatches, optional
        Default: all rows always.
    """

    every: Evaluate
    few: Evaluate
    minibatches: Minibatches | None = None

    @classmethod
    def of(cls, problem: Problem, meter: Meter) -> RowsSeen:
        """Those of a problem, counted."""
        minibatches = problem.minibatches
        every = meter.of(problem.evaluate)
        if minibatches is None:
            return cls(every, every)
        few = meter.of(minibatches.evaluate, share=minibatches.share)
        return cls(every, few, minibatches)

    @property
    def moves(self) -> int:
        """Moves of a pass, after which an anchor is renewed."""
        if self.minibatches is None:
            return 1
        return min(MOST_MOVES, round(1.0 / self.minibatches.share))

    def of_move(
        self, anchor: Anchor | None, z: Positions, number: int, generator: np.random.Generator
    ) -> tuple[Anchor | None, Evaluate]:
        """The anchor and the evaluations of a move from z, before which ``number`` were made.

        All evaluations of a move are of one minibatch: their energies are compared.
        """
        if self.minibatches is None:
            return None, self.every
        if anchor is None or number % self.moves == 0:
            anchor = Anchor(z, *self.every(z))
        self.minibatches.draw(generator)
        known, there = anchor, list[tuple[Float[np.ndarray, " C"], Positions]]()

        def reduced(z: Positions) -> tuple[Float[np.ndarray, " C"], Positions]:
            if not there:
                values, scores = self.few(known.z)
                there.append((known.values - values, known.scores - scores))
            values, scores = self.few(z)
            more, slope = there[0]
            # The scores are the slopes of these log densities, so that a change of the energy tells
            # of a step's error and not of a difference between rows.
            return values + more + ((z - known.z) * slope).sum(1), scores + slope

        return anchor, reduced


__all__ = ["Anchor", "RowsSeen"]
