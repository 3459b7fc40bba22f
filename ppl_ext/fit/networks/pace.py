"""How long the stages of a network's fit are, and what they cost."""

from __future__ import annotations

import math
from typing import NamedTuple

from ppl_ext.fit.ladder.by_chains import CHAINS
from ppl_ext.fit.networks.run import LEAST_KEPT
from ppl_ext.fit.problem.problem import Problem
from ppl_ext.start.rows import Minibatches

#: Passes over the rows in which members climb by minibatches at least.
PASSES = 50
#: Evaluations with a minibatch that a move of the warm-up takes: before and after the move, at the
#: anchor, and the share of a pass over all rows.
WARM_COST = 4.0
#: Evaluations before the warm-up at most: members' first positions, those of the prior and the
#: chains', and the look at slopes.
AT_THE_START = 3 * CHAINS + 64


class Pace(NamedTuple):
    """How long the stages of a fit are.

    Parameters
    ----------
    ensemble : int
        Steps of Adam from draws of the prior, by which members of an ensemble come near where the
        mass is. The warm-up brings them the rest of the way (arXiv:2502.06335).
    rate : float
        Its first step size, which falls to 0.
    warm_up, look : int
        Moves of the first warm-up, and from its end to the first look.
    """

    ensemble: int
    rate: float
    warm_up: int
    look: int

    @classmethod
    def of(cls, minibatches: Minibatches | None) -> Pace:
        """With these minibatches, or with all rows."""
        if minibatches is None:
            return ALL_ROWS
        pace = BY_MINIBATCHES
        return pace._replace(ensemble=max(pace.ensemble, round(PASSES / minibatches.share)))

    def evaluations(self, problem: Problem, has_ensemble: bool = True) -> tuple[int, int]:
        """Evaluations up to the end of the warm-up at most, and of the fewest draws.

        Those with minibatches count as the share of the rows that they take, and are about so many.
        """
        ensemble = self.ensemble if has_ensemble else 0
        share, cost = 1.0, 1.0
        if problem.minibatches is not None:
            share, cost = problem.minibatches.share, WARM_COST
        warm_up = CHAINS * share * (ensemble + cost * self.warm_up)
        begins = AT_THE_START if has_ensemble else CHAINS
        return math.ceil(warm_up) + begins, math.ceil(CHAINS * share * cost * LEAST_KEPT)


#: With all rows. Chains of networks for classes agree at the first look, and others go on from it.
ALL_ROWS = Pace(100, 0.03, 250, 100)
#: With minibatches, whose noise asks for shorter steps: chains and members need more of them.
BY_MINIBATCHES = Pace(2_000, 0.01, 2_000, 2_000)
