"""Chains from a fit's draws until they have come to rest and are worth enough draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular

from ppl_ext.chains.convergence import Convergence, convergence
from ppl_ext.chains.hamiltonian import LENGTH, Chains, Factor, Positions, trajectory
from ppl_ext.chains.mixture import fitted
from ppl_ext.chains.proposal import Proposal
from ppl_ext.chains.symmetry import Symmetry
from ppl_ext.start.paths import Evaluate, SpentError

#: Mean acceptance that a step size is searched for, and the gain of each correction.
ACCEPTANCE, GAIN = 0.85, 1.5
#: How far acceptance may be off at the end of warm-up.
OFF = 0.1
#: Jumps whose acceptance is lower than this have their proposal made anew: as a mixture fitted to
#: so many of the latest draws, in so many dimensions at most, after so many windows at most.
GOOD_JUMPS, MIXTURE_DRAWS, MIXTURE_DIMENSIONS, MIXTURES = 0.4, 4_000, 20, 5
#: Transitions that are kept without being enough after which the proposal is made anew, twice as
#: many each time, and how often.
SLOW, AGAIN = 150, 3
#: Mean acceptance below which a chain is stuck.
STUCK = 0.1
#: Transitions of the first window, of the longest that tunes, and the fewest of any.
FIRST_WINDOW, LONGEST_TUNING, LEAST_WINDOW = 12, 200, 8
#: Variances in the kernel's coordinates within which its metric is good enough.
FAIR = (0.4, 2.2)
#: Draws that the present metric counts as beside each dimension, and the fewest that tell of one.
PRIOR_DRAWS, LEAST_DRAWS = 10.0, 40
#: Jumps after each trajectory, by the acceptance from which on so many are worth their evaluations.
JUMPS = {0.3: 4, 0.1: 2, 0.01: 1}


@dataclass
class Kernel:
    """A transition: a Hamiltonian trajectory, and a jump to a draw of the proposal.

    Parameters
    ----------
    evaluate : callable
    proposal : Proposal
    factors : list of Factor
        Metrics, of which each transition takes one at random.
    weights : array
        With these probabilities.
    step_size : float
    jumps : int
        Jumps after each trajectory: Metropolis steps with independent proposals, which go from
        mode to mode (L. Tierney, "Markov chains for exploring posterior distributions", 1994).
    symmetry : Symmetry, optional
        Labels that can be exchanged. The proposal is of draws that have them in order.
    """

    evaluate: Evaluate
    proposal: Proposal
    factors: list[Factor]
    weights: Float[np.ndarray, " modes"]
    step_size: float
    jumps: int = 1
    symmetry: Symmetry | None = None

    def __call__(
        self, chains: Chains, generator: np.random.Generator
    ) -> tuple[Chains, Float[np.ndarray, " M"], float, float]:
        """Chains one transition on, acceptance of each, share of divergences, and of jumps."""
        factor = self.factors[int(generator.choice(len(self.factors), p=self.weights))]
        chains, chance, divergent = trajectory(
            self.evaluate, chains, factor, self.step_size, generator
        )
        chains, jumped = self._jumped(chains, generator)
        return chains, chance, float(divergent.mean()), jumped

    def ordered(self, draws: Float[np.ndarray, "... D"]) -> Float[np.ndarray, "... D"]:
        """Draws with what labels can be exchanged in order."""
        return draws if self.symmetry is None else self.symmetry.ordered(draws)

    def _jumped(self, chains: Chains, generator: np.random.Generator) -> tuple[Chains, float]:
        """Chains after their jumps, and the mean acceptance of these.

        The order of a chain's labels tells nothing of where the chain is with its labels in order:
        jumps are made there, among such positions alone, and the order is put back. The density
        does not know of it.
        """
        if not self.jumps:
            return chains, 0.0
        number, log_density = len(chains.values), self.proposal.log_density
        here = replace(chains, positions=self.ordered(chains.positions))
        moved = (here.positions != chains.positions).any(1)
        proposed, changed, accepted = log_density(here.positions), np.zeros(number, bool), 0.0
        for _ in range(self.jumps):
            drawn = Chains.at(self.proposal.draw(number, generator), self.evaluate)
            of_drawn = log_density(drawn.positions)
            gain = (drawn.values - of_drawn) - (here.values - proposed)
            allowed = np.isfinite(drawn.values) & np.isfinite(drawn.scores).all(-1)
            if self.symmetry is not None:
                allowed &= self.symmetry.is_ordered(drawn.positions)
            chance = np.where(allowed, np.exp(np.minimum(0.0, gain)), 0.0)
            taken = generator.uniform(size=number) < chance
            here, proposed = here.where(taken, drawn), np.where(taken, of_drawn, proposed)
            changed, accepted = changed | taken, accepted + float(chance.mean()) / self.jumps
        back = changed & moved
        if self.symmetry is not None and back.any():
            put = self.symmetry.unordered(here.positions[back], chains.positions[back])
            positions, scores = here.positions.copy(), here.scores.copy()
            positions[back], (_, scores[back]) = put, self.evaluate(put)
            here = Chains(positions, here.values, scores)
        return chains.where(changed, here), accepted


@dataclass(frozen=True)
class Window:
    """Some transitions of all chains.

    Attributes
    ----------
    draws : array (N, M, D)
    chances : array (N, M)
        Probabilities of acceptance.
    divergent : array (N,)
        Shares of trajectories that diverged.
    jumped : array (N,)
        Mean acceptance of jumps.
    values : array (N, M)
        Log densities at the draws.
    """

    draws: Float[np.ndarray, "N M D"]
    chances: Float[np.ndarray, "N M"]
    divergent: Float[np.ndarray, " N"]
    jumped: Float[np.ndarray, " N"]
    values: Float[np.ndarray, "N M"]

    @classmethod
    def joined(cls, windows: Sequence[Window]) -> Window:
        """Windows one after the other."""
        return cls(
            np.concatenate([each.draws for each in windows]),
            np.concatenate([each.chances for each in windows]),
            np.concatenate([each.divergent for each in windows]),
            np.concatenate([each.jumped for each in windows]),
            np.concatenate([each.values for each in windows]),
        )

    @property
    def stuck(self) -> float:
        """Share of chains that hardly ever accept."""
        return float((self.chances.mean(0) < STUCK).mean())


@dataclass
class Sampled:
    """What chains gave.

    Attributes
    ----------
    window : Window
        Transitions that are kept.
    discarded : int
        Transitions of each chain before those.
    chains : Chains
        Where they are, to go on.
    kernel : Kernel
    """

    window: Window
    discarded: int
    chains: Chains
    kernel: Kernel

    @property
    def draws(self) -> Float[np.ndarray, "N M D"]:
        """The draws that are kept."""
        return self.window.draws


@np.errstate(all="ignore")
def sample(
    evaluate: Evaluate,
    proposal: Proposal,
    positions: Positions,
    generator: np.random.Generator,
    is_enough: Callable[[Convergence, Window], bool],
    has_budget: Callable[[], bool],
    symmetry: Symmetry | None = None,
) -> Sampled:
    """Run chains until they have come to rest and are worth enough.

    Windows of transitions follow each other. The first ones tune the kernel, and are discarded.
    Once it is tuned it stays as it is, and windows are kept; where these show that the chains were
    still on their way, all so far was tuning.

    Parameters
    ----------
    evaluate : callable
        Log densities (M,) and scores (M, D).
    proposal : Proposal
        Its modes give the first metrics.
    positions : array (M, D)
        Where the chains start.
    generator : numpy.random.Generator
    is_enough : callable
        Of the figures of what is kept, and that itself.
    has_budget : callable
        Whether there may be another transition.
    symmetry : Symmetry, optional
        Labels that can be exchanged: the proposal's modes and the first positions have them in
        order, and draws are judged with them in order.

    Raises
    ------
    SpentError
        The evaluations ended before there were a few transitions.
    """
    factors = [mode.factor for mode in proposal.modes]
    first_step = 1.0 / positions.shape[1] ** 0.25
    kernel = Kernel(evaluate, proposal, factors, proposal.weights, first_step, symmetry=symmetry)
    chains = Chains.at(positions, evaluate)
    length, discarded, tuning, again = FIRST_WINDOW, 0, True, 0
    kept: list[Window] = []
    tuned: list[Window] = []
    while True:
        chains, window = _window(kernel, chains, length, generator, has_budget, tuning=tuning)
        if len(window.draws) < LEAST_WINDOW:
            # The budget has ended: too few to learn from.
            kept += [] if tuning else [window]
            break
        if tuning:
            discarded += len(window.draws)
            tuned.append(window)
            if _tune(kernel, tuned, generator):
                tuning = False
            else:
                length = min(LONGEST_TUNING, int(1.5 * length))
        else:
            kept.append(window)
            joined = Window.joined(kept)
            figures = convergence(kernel.ordered(joined.draws))
            if is_enough(figures, joined):
                break
            is_slow = len(joined.draws) > SLOW * 2**again and _can_refit(kernel, joined)
            is_off = figures.is_adrift or joined.chances.mean() < ACCEPTANCE - 2.0 * OFF
            if is_off or (is_slow and again < AGAIN):
                discarded, length = discarded + len(joined.draws), len(joined.draws)
                tuned, kept, tuning = [*tuned, joined], [], True
                if is_slow:
                    again += 1
                    _refit(kernel, joined, generator)
                    length //= 4
            else:
                length = max(length, len(joined.draws) // 2)
        if not has_budget():
            break
    if sum(len(each.draws) for each in kept) < LEAST_WINDOW:
        kept = tuned[-1:]
    if not kept:
        raise SpentError
    return Sampled(Window.joined(kept), discarded, chains, kernel)


@np.errstate(all="ignore")
def go_on(
    sampled: Sampled,
    transitions: int,
    generator: np.random.Generator,
    has_budget: Callable[[], bool] = lambda: True,
) -> Sampled:
    """The same with so many further transitions of each chain, fewer where the budget ends."""
    chains, window = _window(
        sampled.kernel, sampled.chains, transitions, generator, has_budget, tuning=False
    )
    joined = Window.joined([sampled.window, window])
    return replace(sampled, window=joined, chains=chains)


def _window(
    kernel: Kernel,
    chains: Chains,
    length: int,
    generator: np.random.Generator,
    has_budget: Callable[[], bool],
    *,
    tuning: bool,
) -> tuple[Chains, Window]:
    """So many transitions, fewer where the budget ends."""
    draws, chances, divergent, jumped, values = [], [], [], [], []
    for number in range(length):
        if number >= LEAST_WINDOW and not has_budget():
            break
        try:
            chains, chance, share, jump = kernel(chains, generator)
        except SpentError:
            break
        if tuning:
            gain = GAIN / math.sqrt(1.0 + number) * (float(chance.mean()) - ACCEPTANCE)
            kernel.step_size = min(LENGTH, kernel.step_size * math.exp(gain))
        draws.append(chains.positions)
        chances.append(chance)
        divergent.append(share)
        jumped.append(jump)
        values.append(chains.values)
    shape = (len(draws), *chains.positions.shape)
    found = Window(
        np.reshape(draws, shape),
        np.reshape(chances, shape[:2]),
        np.array(divergent),
        np.array(jumped),
        np.reshape(values, shape[:2]),
    )
    return chains, found


def _tune(kernel: Kernel, windows: Sequence[Window], generator: np.random.Generator) -> bool:
    """Make the kernel better by the last window; whether it needed nothing and chains rested."""
    window = windows[-1]
    accepted = float(window.jumped.mean())
    worth = [number for least, number in JUMPS.items() if accepted > least]
    kernel.jumps = worth[0] if worth else 0
    drawn = kernel.ordered(window.draws)
    is_adrift = convergence(drawn).is_adrift
    # What the first half taught, the second half shows.
    of_step = float(window.chances[len(window.chances) // 2 :].mean())
    is_rested = not is_adrift and abs(of_step - ACCEPTANCE) < OFF
    if len(windows) <= MIXTURES and _can_refit(kernel, window):
        _refit(kernel, Window.joined(windows[-2:]), generator)
        return False
    return _improve(kernel, drawn) and is_rested


def _can_refit(kernel: Kernel, window: Window) -> bool:
    """Whether a proposal fitted to draws may be better than the one that there is."""
    return window.jumped.mean() < GOOD_JUMPS and window.draws.shape[2] <= MIXTURE_DIMENSIONS


def _refit(kernel: Kernel, window: Window, generator: np.random.Generator) -> None:
    """Make proposal and metrics anew, from draws."""
    flat = kernel.ordered(window.draws).reshape(-1, window.draws.shape[2])
    rows = generator.permutation(len(flat))[:MIXTURE_DRAWS]
    modes, weights = fitted(flat[rows], generator)
    kernel.proposal = Proposal(modes, weights)
    kernel.factors, kernel.weights = [mode.factor for mode in modes], weights
    kernel.jumps = 1


def _improve(kernel: Kernel, drawn: Float[np.ndarray, "N M D"]) -> bool:
    """Whether the kernel's metrics are fair; those that are not are made anew from draws."""
    flat = drawn.reshape(-1, drawn.shape[2])
    nearest = kernel.proposal.nearest(flat)
    modes, fair = list(kernel.proposal.modes), True
    for number in range(len(modes)):
        own = flat[nearest == number]
        found = _whitened(kernel.factors[number], own)
        if found is None:
            continue
        fair = False
        kernel.factors[number] = found
        modes[number] = replace(modes[number], mean=own.mean(0), factor=found)
    kernel.proposal = replace(kernel.proposal, modes=tuple(modes))
    return fair


def _whitened(factor: Factor, draws: Float[np.ndarray, "S D"]) -> Factor | None:
    """A root of the draws' covariance, drawn towards this one; None where this one is fair."""
    number, dim = draws.shape
    if number < LEAST_DRAWS:
        return None
    centered = draws - draws.mean(0)
    if factor.ndim == 1:
        variances = np.square(centered / factor).mean(0)
        if _is_fair(variances, 1, number):
            return None
        shrunk = (number * variances + PRIOR_DRAWS) / (number + PRIOR_DRAWS)
        return factor * np.sqrt(shrunk)
    white = solve_triangular(factor, centered.T, lower=True, check_finite=False)
    if not np.isfinite(white).all():
        return None
    if _is_fair(np.linalg.eigvalsh(white @ white.T / number), dim, number):
        return None
    prior = PRIOR_DRAWS + dim
    covariance = (white @ white.T + prior * np.eye(dim)) / (number + prior)
    return factor @ np.linalg.cholesky(covariance)


def _is_fair(variances: Float[np.ndarray, " D"], dim: int, number: int) -> bool:
    """Whether variances differ from 1 by little more than chance makes of as many draws."""
    # Where eigenvalues of a sample's covariance end; neighbouring draws are alike.
    chance = math.sqrt(2.0 * dim / number)
    low, high = FAIR[0] * max(0.0, 1.0 - chance) ** 2, FAIR[1] * (1.0 + chance) ** 2
    return bool(variances.min() > low and variances.max() < high)
