"""Hamiltonian Monte Carlo of many chains at once, on NumPy arrays.

R. M. Neal, "MCMC using Hamiltonian dynamics", in Handbook of Markov Chain Monte Carlo (2011). The
kernel leaves the density exactly as it is. Coordinates are whitened by a root of a covariance, so
that one step size serves all, and trajectories have random lengths about a quarter of a period.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from ppl_ext.start.paths import Evaluate

#: Mean length of a trajectory, in standard deviations: a quarter of a Normal's period; and the
#: range of lengths, since one length may be a period of some coordinate.
LENGTH, RANGE = 0.5 * math.pi, (0.7, 1.3)
#: Most leapfrog steps of a trajectory.
MOST_STEPS = 64
#: Error of the energy, in nats, from which on a trajectory diverges, as in the hosts' NUTS.
DIVERGENT = 1000.0

Positions = Float[np.ndarray, "M D"]
Factor = Float[np.ndarray, "D D"] | Float[np.ndarray, " D"] | Float[np.ndarray, "M D D"]


@dataclass
class Chains:
    """Present positions of M chains, with log densities and scores there.

    Attributes
    ----------
    positions, scores : arrays (M, D)
    values : array (M,)
        Log densities.
    """

    positions: Positions
    values: Float[np.ndarray, " M"]
    scores: Positions

    @classmethod
    def at(cls, positions: Positions, evaluate: Evaluate) -> Chains:
        """Chains at positions."""
        return cls(positions, *evaluate(positions))

    def rows(self, which: Bool[np.ndarray, " M"] | Int[np.ndarray, " K"]) -> Chains:
        """Some of the chains."""
        return Chains(self.positions[which], self.values[which], self.scores[which])

    def where(self, taken: Bool[np.ndarray, " M"], others: Chains) -> Chains:
        """Each chain from ``others`` where ``taken`` is true, and from these elsewhere."""
        return Chains(
            np.where(taken[:, None], others.positions, self.positions),
            np.where(taken, others.values, self.values),
            np.where(taken[:, None], others.scores, self.scores),
        )


def trajectory(
    evaluate: Evaluate,
    chains: Chains,
    factor: Factor,
    step_size: float,
    generator: np.random.Generator,
    length: float = LENGTH,
    log_chance: Callable[[Positions], Float[np.ndarray, " M"]] | None = None,
) -> tuple[Chains, Float[np.ndarray, " M"], Bool[np.ndarray, " M"]]:
    """One transition of each chain.

    Parameters
    ----------
    evaluate : callable
        Log densities (M,) and scores (M, D).
    chains : Chains
    factor : array (D, D) or (D,)
        Root of the covariance that positions are whitened by; or (M, D, D), one for each chain.
    step_size : float
        In standard deviations.
    generator : numpy.random.Generator
    length : float
        Mean length of a trajectory, in standard deviations.
    log_chance : callable, optional
        Log probabilities (M,) with which each chain would have chosen its factor at positions
        (M, D), where that depends on them.

    Returns
    -------
    Chains, probabilities of acceptance (M,), and which trajectories diverged (M,).
    """

    def from_white(moves: Positions) -> Positions:
        if factor.ndim == 3:
            return np.einsum("mij,mj->mi", factor, moves)
        return moves * factor if factor.ndim == 1 else moves @ factor.T

    def to_white(scores: Positions) -> Positions:
        if factor.ndim == 3:
            return np.einsum("mji,mj->mi", factor, scores)
        return scores * factor if factor.ndim == 1 else scores @ factor

    length = length * generator.uniform(*RANGE)
    count = int(np.clip(round(length / step_size), 1, MOST_STEPS))
    momenta = generator.normal(size=chains.positions.shape)
    before = chains.values - 0.5 * np.square(momenta).sum(-1)
    diverged = np.zeros(len(before), bool)
    positions, values, scores = chains.positions, chains.values, chains.scores
    momenta = momenta + 0.5 * step_size * to_white(scores)
    for number in range(count):
        positions = positions + from_white(step_size * momenta)
        values, scores = evaluate(positions)
        # A trajectory that has left the support has no energy, and has not diverged.
        error = values - 0.5 * np.square(momenta).sum(-1) - before
        diverged |= np.isfinite(error) & (error < -DIVERGENT)
        share = 1.0 if number < count - 1 else 0.5
        momenta = momenta + share * step_size * to_white(scores)
    gain = values - 0.5 * np.square(momenta).sum(-1) - before
    if log_chance is not None:
        gain = gain + log_chance(positions) - log_chance(chains.positions)
    gain = np.where(np.isfinite(gain), gain, -np.inf)
    chance = np.exp(np.minimum(0.0, gain))
    taken = generator.uniform(size=len(chance)) < chance
    return chains.where(taken, Chains(positions, values, scores)), chance, diverged
