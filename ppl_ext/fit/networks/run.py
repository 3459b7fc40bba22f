"""Chains of the weights of a network, and what is kept of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from jaxtyping import Float

from ppl_ext.fit.ladder.by_chains import CHAINS
from ppl_ext.fit.networks.outputs import Positions
from ppl_ext.fit.networks.rows_seen import Anchor, RowsSeen
from ppl_ext.fit.problem.problem import Problem
from ppl_ext.microcanonical.chains import Dynamics, Microcanonical
from ppl_ext.microcanonical.functions import Eager
from ppl_ext.microcanonical.tuning import ENERGY_VARIANCE, Schedule
from ppl_ext.start.paths import SpentError

#: Draws of each chain that are kept at most: beyond, every second one is left out.
MOST_KEPT = 200
#: Draws of each chain that are kept at least, and without which nothing is judged.
LEAST_KEPT = 12
#: Numbers that the kept draws of all chains hold, 320 MB; beyond, fewer draws are kept.
MOST_NUMBERS = 40_000_000
#: Arrays as large as all positions that moves hold at once.
ARRAYS = 12
#: Further ones with minibatches: the anchor and what is known there.
OF_MINIBATCHES = 6
#: What the moves are computed with: NumPy, at once.
FUNCTIONS = Eager(np)


@dataclass
class Run:
    """Chains of one kind, and what is kept of them.

    Attributes
    ----------
    moves : Microcanonical
    rows : RowsSeen
    generator : numpy.random.Generator
    z : array (C, D)
    dynamics : Dynamics
    number, total : int
        Moves so far, and those of the warm-up.
    most : int
        Draws of each chain that are kept.
    """

    moves: Microcanonical
    rows: RowsSeen
    generator: np.random.Generator
    z: Positions
    dynamics: Dynamics
    number: int
    total: int
    most: int
    every: int = 1
    diverged: int = 0
    anchor: Anchor | None = None
    kept: list[Positions] = field(default_factory=list)

    @classmethod
    def begun(
        cls,
        problem: Problem,
        rows: RowsSeen,
        generator: np.random.Generator,
        z: Positions,
        total: int,
        before: Run | None = None,
    ) -> Run:
        """Chains before their warm-up.

        They are adjusted where a run of unadjusted ones came ``before``, from which they take over
        the scale and the step.
        """
        adjusted = before is not None
        moves = Microcanonical(
            problem.dim,
            FUNCTIONS,
            ENERGY_VARIANCE,
            adjusted,
            problem.epsilon,
            noisy=rows.minibatches is not None,
        )
        noise = generator.standard_normal((len(z), moves.whole))
        spare = generator.standard_normal((len(z), moves.spare))
        dynamics = moves.first(z, noise, spare, total, rows.every)
        number = 0
        if before is not None:
            number, known = Schedule(total).moving, before.dynamics
            dynamics = dynamics._replace(
                scale=known.scale,
                score=dynamics.score * known.scale,
                step=known.step,
                length=0.0 * known.length + math.sqrt(moves.whole),
            )
        return cls(moves, rows, generator, z, dynamics, number, total, kept_of(problem.dim))

    def go_on(self, moves: int, may_go_on: Callable[[], bool]) -> bool:
        """Make so many moves; False where the budget ended before."""
        for _ in range(moves):
            if not may_go_on():
                return False
            before = self.generator.bit_generator.state
            normal = partial(self.generator.standard_normal, (len(self.z), self.moves.whole))
            uniform = self.generator.uniform(size=len(self.z) + 1)
            try:
                self.anchor, evaluate = self.rows.of_move(
                    self.anchor, self.z, self.number, self.generator
                )
                self.z, self.dynamics, diverged = self.moves.move(
                    self.dynamics,
                    self.z,
                    self.number,
                    self.total,
                    normal,
                    np.log(uniform[1:]),
                    uniform[0],
                    evaluate,
                )
            except SpentError:
                self.generator.bit_generator.state = before
                return False
            self.number += 1
            if self.number > self.total:
                self.diverged += int(diverged.sum())
                self._keep()
        return True

    def _keep(self) -> None:
        if (self.number - self.total) % self.every == 0:
            self.kept.append(self.z.copy())
        if len(self.kept) == self.most:
            self.kept, self.every = self.kept[1::2], 2 * self.every

    @property
    def made(self) -> int:
        """Moves after the warm-up."""
        return max(0, self.number - self.total)

    @property
    def draws(self) -> Float[np.ndarray, "N C D"]:
        """Positions that are kept."""
        # In memory chain by chain, as :func:`flat` wants them, which then copies nothing.
        draws: np.ndarray = np.stack(self.kept, 1).transpose(1, 0, 2)
        return draws

    @property
    def quality(self) -> Float[np.ndarray, " C"]:
        """By chain: probability of acceptance, or the energy's variance for each dimension."""
        mean: np.ndarray = np.asarray(self.dynamics.squares) / max(1.0, float(self.dynamics.moves))
        return np.sqrt(mean) if self.moves.adjusted else mean / self.moves.dim


def kept_of(dim: int) -> int:
    """Draws of each chain that are kept of so many weights."""
    return max(LEAST_KEPT, min(MOST_KEPT, MOST_NUMBERS // (CHAINS * dim)))


def memory_of(dim: int, by_minibatches: bool = False) -> str:
    """What chains of so many weights take, in words."""
    # What is kept is copied to be judged.
    arrays = 2 * kept_of(dim) + ARRAYS + OF_MINIBATCHES * by_minibatches
    numbers = arrays * CHAINS * dim
    return f"{CHAINS} chains of {dim:,} weights take about {8e-6 * numbers:,.0f} MB"


def flat(draws: Float[np.ndarray, "N C D"]) -> Positions:
    """Chain by chain, as the hosts' MCMC gives them."""
    return draws.transpose(1, 0, 2).reshape(-1, draws.shape[2])
