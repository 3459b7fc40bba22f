"""How far chains are from their limit, by pairs of them that meet.

N. Biswas, P. Jacob and P. Vanetti, "Estimating convergence of Markov chains with L-lag couplings"
(2019): two copies of a chain, one of them L transitions behind, are driven by the same random
numbers until they meet after tau transitions of the first. Then the law of a chain after t
transitions is at most E max(0, ceil((tau - L - t) / L)) away from the chain's limit, in total
variation: no event has a probability that differs by more. The limit is what chains from these
starts come to. A part of the posterior that no start and no jump reaches is not in it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import betaincinv

from ppl_ext.chains.hamiltonian import Chains, Positions
from ppl_ext.chains.sampler import Kernel
from ppl_ext.start.paths import Evaluate, SpentError

#: Probability with which a bound holds: that of the share of pairs which have not met yet.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Coupled:
    """Pairs of chains, and when they met.

    Attributes
    ----------
    pairs : int
    apart : int
        Pairs that had not met when the last transition was made.
    transitions : int
        Transitions t after which the distance is bounded.
    slowest : int
        Transitions that the last pair to meet took; of pairs that did not, those they made.
    bound : float or None
        Upper bound on the total variation distance, with a confidence of 95 %. None where pairs are
        apart.
    reason : str
        Why there were no pairs; empty where there were.
    """

    pairs: int
    apart: int = 0
    transitions: int = 0
    slowest: int = 0
    bound: float | None = None
    reason: str = ""

    @classmethod
    def of(cls, times: Float[np.ndarray, " P"], lag: int, transitions: int, last: int) -> Coupled:
        """Pairs of a lag that met after so many transitions (P,), infinitely many where not yet.

        Parameters
        ----------
        times : array (P,)
        lag : int
        transitions : int
            After which the distance is bounded.
        last : int
            Transitions that were made.
        """
        if apart := int(np.isinf(times).sum()):
            return cls(len(times), apart, transitions, last)
        bound = upper_bound(times, lag, transitions)
        return cls(len(times), 0, transitions, int(times.max()) - lag, bound)

    @property
    def told(self) -> str:
        """What it says, in words."""
        if self.reason:
            return f"How much still depends on where chains started is not known: {self.reason}."
        if self.bound is None:
            return (
                "How much still depends on where chains started is not known: "
                f"{self.apart} of {self.pairs} pairs of chains from far apart had not met after "
                f"{self.slowest:,} transitions."
            )
        return (
            f"All {self._met}: with {CONFIDENCE:.0%} confidence, where chains start changes the "
            f"probability of any event by at most {self.bound:.1%}."
        )

    @property
    def note(self) -> str:
        """The same for a table of what was done."""
        return self.told if self.bound is None else self._met

    @property
    def _met(self) -> str:
        unit = "transition" if self.slowest == 1 else "transitions"
        return f"{self.pairs} pairs of chains from far apart met within {self.slowest:,} {unit}"


def upper_bound(times: Float[np.ndarray, " P"], lag: int, transitions: int) -> float:
    """Upper bound on the total variation distance after so many transitions, 1 at most.

    The share of pairs that have not met by then is bounded by the exact limit of C. Clopper and E.
    Pearson, "The use of confidence or fiducial limits" (1934); what the pairs that are late by more
    than a lag add is taken as it was found.
    """
    counts = np.maximum(0.0, np.ceil((times - lag - transitions) / lag))
    late, number = int((counts > 0.0).sum()), len(counts)
    if late == number:
        return 1.0
    share = float(betaincinv(late + 1.0, number - late, CONFIDENCE))
    return min(1.0, share + float(np.maximum(0.0, counts - 1.0).mean()))


@np.errstate(all="ignore")
def meetings(
    first: Float[np.ndarray, " P"],
    second: Float[np.ndarray, " P"],
    proposed: Float[np.ndarray, "T P"],
    log_uniforms: Float[np.ndarray, "T P"],
    lag: int,
) -> Float[np.ndarray, " P"]:
    """Transitions (P,) after which pairs of chains of independent jumps meet, infinite if never.

    Both chains of a pair are proposed the same draw and decide by the same uniform number: they
    meet when both take it. So logarithms of importance ratios tell all.

    Parameters
    ----------
    first, second : array (P,)
        Log ratios where the chains start, minus infinity outside of the support.
    proposed : array (T, P)
        Log ratios of what is proposed, in turn.
    log_uniforms : array (T, P)
    lag : int
        Transitions that the first chain is ahead.
    """

    def takes(row: int, own: Float[np.ndarray, " P"]) -> Bool[np.ndarray, " P"]:
        is_better = np.isneginf(own) & ~np.isneginf(proposed[row])
        return is_better | (log_uniforms[row] < proposed[row] - own)

    times = np.full(len(first), np.inf)
    for row in range(len(proposed)):
        both = np.ones(len(first), bool)
        for is_behind in (False, True):
            if is_behind and row < lag:
                both[:] = False
                continue
            own = second if is_behind else first
            taken = takes(row, own)
            both &= taken
            own = np.where(taken, proposed[row], own)
            first, second = (first, own) if is_behind else (own, second)
        times = np.where(both & np.isinf(times), row + 1.0, times)
    return times


class Pairs:
    """Pairs of chains with any kernel, which meet where both take the same jump; their lag is 1.

    Parameters
    ----------
    kernel : Kernel
        Stays as it is.
    positions : tuple of array (P, D)
        Where the chains of pairs start.
    generator : numpy.random.Generator
    """

    def __init__(
        self,
        kernel: Kernel,
        positions: tuple[Positions, Positions],
        generator: np.random.Generator,
    ) -> None:
        self._recalled = _Recalled(kernel.evaluate)
        self._kernel, self._generator = replace(kernel, evaluate=self._recalled), generator
        self._positions, self._made = positions, 0
        self._times = np.full(len(positions[0]), np.inf)
        self._apart = np.arange(len(positions[0]))
        self._chains: tuple[Chains, Chains] | None = None

    @np.errstate(all="ignore")
    def go_on(self, transitions: int, has_budget: Callable[[], bool]) -> Coupled:
        """Run until all have met, and say so.

        Parameters
        ----------
        transitions : int
            After which the distance is bounded at the latest: sooner where all pairs have met
            before. The pairs have made twice as many at most.
        has_budget : callable
            Whether there may be another transition.
        """
        with suppress(SpentError):
            if self._chains is None:
                self._begin()
            while len(self._apart) and self._made < 2 * transitions + 1 and has_budget():
                self._move()
        slowest = self._times.max() - 1.0
        return Coupled.of(self._times, 1, int(min(transitions, slowest)), self._made)

    def _begin(self) -> None:
        own = self._kernel
        ahead, behind = (Chains.at(own.ordered(one), self._recalled) for one in self._positions)
        self._chains, self._made = (own(ahead, self._generator)[0], behind), 1

    def _move(self) -> None:
        assert self._chains is not None
        self._recalled.forget()
        seed = self._generator.integers(2**32, size=4)
        ahead, behind = (self._kernel(one, np.random.default_rng(seed))[0] for one in self._chains)
        self._made += 1
        one, other = (self._kernel.ordered(each.positions) for each in (ahead, behind))
        met = (one == other).all(1)
        self._times[self._apart[met]] = self._made
        self._apart, self._chains = self._apart[~met], (ahead.rows(~met), behind.rows(~met))


class _Recalled:
    """Evaluations that are made once of the same positions."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._known: dict[bytes, tuple[Float[np.ndarray, " P"], Positions]] = {}

    def forget(self) -> None:
        """Begin anew."""
        self._known = {}

    def __call__(self, positions: Positions) -> tuple[Float[np.ndarray, " P"], Positions]:
        """Log densities (P,) and scores (P, D) at positions (P, D)."""
        key = positions.tobytes()
        if key not in self._known:
            self._known[key] = self._evaluate(positions)
        return self._known[key]
