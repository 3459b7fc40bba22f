"""Chains from a fit's draws until they have come to rest and are worth enough draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular
from scipy.special import chdtri, logsumexp

from ppl_ext.chains.bends import fitted_bend
from ppl_ext.chains.hamiltonian import LENGTH, Chains, Factor, Positions, trajectory
from ppl_ext.chains.mixture import fitted
from ppl_ext.chains.proposal import Proposal, drawn_from
from ppl_ext.chains.symmetry import Symmetry
from ppl_ext.start.paths import Evaluate, SpentError
from ppl_ext.statistics.convergence import Convergence, convergence
from ppl_ext.statistics.effective import effective_number

#: Mean acceptance that a step size is searched for, and the gain of each correction.
ACCEPTANCE, GAIN = 0.85, 1.5
#: Share of trajectories that may diverge, and how many do at least for steps to be made shorter: by
#: this factor, with so many times fewer rejections from then on. Divergent trajectories tell of a
#: part that is too narrow for the steps, which chains do not enter.
MOST_DIVERGENT, LEAST_DIVERGENT, SHORTER, FEWER = 0.005, 3, 0.5, 4.0
#: How far acceptance may be off at the end of warm-up.
OFF = 0.1
#: Windows that tune before anything is kept, and each time that tuning begins anew, at most.
MOST_TUNING, TUNING_AGAIN = 6, 2
#: Jumps whose acceptance is lower than this have their proposal made anew: as a mixture fitted to
#: so many of the latest draws, in so many dimensions at most, after so many windows at most.
GOOD_JUMPS, MIXTURE_DRAWS, MIXTURE_DIMENSIONS, MIXTURES = 0.4, 4_000, 20, 2
#: Transitions that are kept without being enough after which the proposal is made anew, twice as
#: many each time, and how often.
SLOW, AGAIN = 80, 3
#: Transitions after which a chain whose jumps are taken less often than this, and those of all as
#: often as that, tells that the proposal lacks the place where it is.
FEW, NEVER, OFTEN = 16, 0.02, 0.2
#: Mean acceptance below which a chain is stuck; and the step size, in standard deviations, below
#: which no budget helps: the longest trajectory goes a sixteenth of one then.
STUCK, SMALLEST_STEP = 0.1, 1e-3
#: Transitions of the first window, of the longest that tunes, and the fewest of any.
FIRST_WINDOW, LONGEST_TUNING, LEAST_WINDOW = 12, 200, 8
#: Variances in the kernel's coordinates within which its metric is good enough.
FAIR = (0.4, 2.2)
#: Total of the weights of scores' bulk, as a share of that of draws, below which they have none.
LEAST_BULK = 0.25
#: Degrees of freedom of the weights that keep far draws from making the scale of all, and rounds.
FREEDOM, ROUNDS = 4.0, 5
#: Draws that the present metric counts as beside each dimension, and the fewest that tell of one.
PRIOR_DRAWS, LEAST_DRAWS = 10.0, 40
#: Ratio of widths from which on chains choose their metrics by where they are, and the power of
#: the modes' densities by which they do: neighbours that overlap are told apart less.
UNLIKE, LOCAL = 2.0, 0.3
#: Acceptance of jumps from which on one after each trajectory is worth its evaluation, and from
#: which on several are: for a third of what trajectories take, within these bounds. No more of
#: them: chains make some tens of trajectories in any case, which explore what jumps do not propose,
#: and these draws are enough then.
ONE_JUMP, SEVERAL_JUMPS, JUMPS_SHARE, JUMPS = 0.01, 0.1, 1.0 / 3.0, (2, 8)


@dataclass
class Known:
    """Draws of a proposal that were evaluated already, to be proposed once each, for nothing.

    Attributes
    ----------
    drawn : Chains
        Draws (S, D).
    log_ratios : array (S,)
        Of density and proposal there; minus infinity where chains must not go.
    used : int
        Those that were proposed.
    """

    drawn: Chains
    log_ratios: Float[np.ndarray, " S"]
    used: int = 0

    def take(self, number: int) -> tuple[Chains, Float[np.ndarray, " M"]] | None:
        """The next so many, with their log ratios; None where fewer are left."""
        rows = np.arange(self.used, self.used + number)
        if self.used + number > len(self.log_ratios):
            return None
        self.used += number
        return self.drawn.rows(rows), self.log_ratios[rows]


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
    has_trajectories : bool
        Whether there are any: without, a transition is a jump.
    is_mixture : bool
        Whether the proposal is a mixture that was fitted to draws. Its components overlap, so that
        the draws nearest to one of them do not tell of its width, and the metric is that of all
        draws.
    known : Known, optional
        Draws of the proposal, which are proposed first.
    acceptance : float
        Mean acceptance of trajectories that the step size is tuned to.
    may_bend : bool
        Whether proposals that are fitted to draws may be of straight coordinates.
    """

    evaluate: Evaluate
    proposal: Proposal
    factors: list[Factor]
    weights: Float[np.ndarray, " modes"]
    step_size: float
    jumps: int = 1
    symmetry: Symmetry | None = None
    has_trajectories: bool = True
    is_mixture: bool = False
    known: Known | None = None
    acceptance: float = ACCEPTANCE
    may_bend: bool = True

    def __call__(
        self, chains: Chains, generator: np.random.Generator
    ) -> tuple[Chains, Float[np.ndarray, " M"], float, Float[np.ndarray, " M"], list[Chains]]:
        """Chains one transition on.

        With acceptance of each, the share of divergences, acceptance of each chain's jumps, and
        where chains are that is a draw: one place where jumps are seldom taken.
        """
        # Jumps alone: there is no acceptance but theirs.
        if not self.has_trajectories:
            chains, jumped, _ = self._jumped(chains, generator)
            return chains, jumped, 0.0, jumped, [chains]
        bend, here, evaluate = self.proposal.bend, chains, self.evaluate
        if bend is not None:
            here, evaluate = bend.straightened(chains), bend.density(evaluate)
        factor, log_chance = self._chosen(chains.positions, generator)
        there, chance, divergent = trajectory(
            evaluate, here, factor, self.step_size, generator, log_chance=log_chance
        )
        chains = there if bend is None else bend.restored(chains, here, there)
        before = chains
        chains, jumped, places = self._jumped(chains, generator)
        # With one jump or none the trajectory's end is no draw of its own.
        places = [before, *places] if self.draws_of_each > 1 else [chains]
        return chains, chance, float(divergent.mean()), jumped, places

    def propose_from(self, mixture: Proposal, metric: Factor) -> None:
        """Make jumps to draws of a mixture that was fitted to draws, and trajectories by a metric.

        How many jumps there are after a trajectory is then told anew.
        """
        self.proposal, self.known, self.jumps = mixture, None, 1
        self.factors, self.weights, self.is_mixture = [metric], np.ones(1), True

    @property
    def goes_nowhere(self) -> bool:
        """Whether steps had to be made so small that trajectories end where they begin."""
        return self.has_trajectories and self.step_size < SMALLEST_STEP

    @property
    def draws_of_each(self) -> int:
        """Draws of each transition."""
        return 1 + self.jumps if self.has_trajectories and self.jumps > 1 else 1

    def _chosen(
        self, positions: Positions, generator: np.random.Generator
    ) -> tuple[Factor, Callable[[Positions], Float[np.ndarray, " M"]] | None]:
        """A metric for all chains, or one for each where metrics are of unlike widths.

        In a mode ten times narrower than its neighbour the neighbour's metric moves nothing. There
        each chain chooses its own, with probabilities that depend on where it is, and acceptance
        has their ratio (P. J. Green, "Reversible jump Markov chain Monte Carlo computation and
        Bayesian model determination", 1995, on the choice of moves).
        """
        if not self._are_unlike:
            return self.factors[int(generator.choice(len(self.factors), p=self.weights))], None

        def log_chances(there: Positions) -> Float[np.ndarray, "K M"]:
            logs = LOCAL * self.proposal.log_components(self.ordered(there))
            return logs - logsumexp(logs, axis=0)

        # The largest of logarithms with Gumbel noise is a draw with these probabilities.
        noise = generator.gumbel(size=(len(self.factors), len(positions)))
        chosen, every = (log_chances(positions) + noise).argmax(0), np.arange(len(positions))
        factors = np.stack(self.factors)[chosen]
        if factors.ndim == 2:
            factors = factors[:, :, None] * np.eye(factors.shape[1])
        return factors, lambda there: log_chances(there)[chosen, every]

    @property
    def _are_unlike(self) -> bool:
        """Whether metrics of modes differ in width, on average over coordinates."""
        if len(self.factors) == 1 or self.is_mixture:
            return False
        diagonals = [f if f.ndim == 1 else np.abs(np.diagonal(f)) for f in self.factors]
        return bool(np.ptp([np.log(each).mean() for each in diagonals]) > math.log(UNLIKE))

    def ordered(self, draws: Float[np.ndarray, "... D"]) -> Float[np.ndarray, "... D"]:
        """Draws with what labels can be exchanged in order."""
        return draws if self.symmetry is None else self.symmetry.ordered(draws)

    def _jumped(
        self, chains: Chains, generator: np.random.Generator
    ) -> tuple[Chains, Float[np.ndarray, " M"], list[Chains]]:
        """Chains after their jumps, the mean acceptance of these by chain, and all positions.

        The order of a chain's labels tells nothing of where the chain is with its labels in order:
        jumps are made there, among such positions alone, and the order is put back. The density
        does not know of it.
        """
        number, log_density = len(chains.values), self.proposal.log_density
        accepted = np.zeros(number)
        places: list[Chains] = []
        if not self.jumps:
            return chains, accepted, places
        here = replace(chains, positions=self.ordered(chains.positions))
        # Chains whose labels were in order need nothing put back.
        moved = (here.positions != chains.positions).any(1)
        proposed, changed = log_density(here.positions), np.zeros(number, bool)
        for _ in range(self.jumps):
            drawn, log_ratios = self._proposed(number, generator)
            # Independent proposals: the ratio of importance ratios.
            gain = log_ratios - (here.values - proposed)
            allowed = np.isfinite(log_ratios)
            chance = np.where(allowed, np.exp(np.minimum(0.0, gain)), 0.0)
            taken = generator.uniform(size=number) < chance
            here = here.where(taken, drawn)
            proposed = np.where(taken, drawn.values - log_ratios, proposed)
            changed, accepted = changed | taken, accepted + chance / self.jumps
            places.append(here)
        # A chain that did not jump has never left its order.
        back = changed & moved
        if self.symmetry is not None and back.any():
            put = self.symmetry.unordered(here.positions[back], chains.positions[back])
            positions, scores = here.positions.copy(), here.scores.copy()
            # Scores belong to coordinates, which the order of labels moves; values do not change.
            positions[back], (_, scores[back]) = put, self.evaluate(put)
            here = Chains(positions, here.values, scores)
        return chains.where(changed, here), accepted, places

    def _proposed(
        self, number: int, generator: np.random.Generator
    ) -> tuple[Chains, Float[np.ndarray, " M"]]:
        """Draws of the proposal, with the logs of their importance ratios."""
        known = None if self.known is None else self.known.take(number)
        return known or drawn_from(self.proposal, number, self.evaluate, generator, self.symmetry)


@dataclass(frozen=True)
class Window:
    """Some transitions T of all chains.

    Attributes
    ----------
    draws : array (N, M, D)
        One of each transition, or several, where jumps are often taken.
    chances : array (T, M)
        Probabilities of acceptance.
    divergent : array (T,)
        Shares of trajectories that diverged.
    jumped : array (T, M)
        Mean acceptance of jumps.
    values : array (N, M)
        Log densities at the draws.
    """

    draws: Float[np.ndarray, "N M D"]
    chances: Float[np.ndarray, "T M"]
    divergent: Float[np.ndarray, " T"]
    jumped: Float[np.ndarray, "T M"]
    values: Float[np.ndarray, "N M"]

    @classmethod
    def joined(cls, windows: Sequence[Window]) -> Window:
        """Windows one after the other."""
        parts = ([getattr(each, f.name) for each in windows] for f in fields(cls))
        return cls(*map(np.concatenate, parts))

    @property
    def transitions(self) -> int:
        """Transitions of each chain."""
        return len(self.chances)

    def after(self, transitions: int, draws_of_each: int) -> Window:
        """Without the first transitions, which have so many draws each.

        Chains that went on for a number of draws may have fewer of their last transition.
        """
        skipped = dict.fromkeys(("draws", "values"), transitions * draws_of_each)
        parts = (getattr(self, f.name)[skipped.get(f.name, transitions) :] for f in fields(self))
        return Window(*parts)

    @property
    def lacks(self) -> bool:
        """Whether no jump takes some chain from where it is, while others jump."""
        of_chains = self.jumped.mean(0)
        # In more dimensions no mixture is fitted, so nothing could be done about it.
        few = self.draws.shape[2] <= MIXTURE_DIMENSIONS
        return few and bool(of_chains.min() < NEVER and of_chains.mean() > OFTEN)

    @property
    def diverges(self) -> bool:
        """Whether steps are too long for some part."""
        return bool(
            self.divergent.mean() > MOST_DIVERGENT
            and self.divergent.sum() * self.chances.shape[1] >= LEAST_DIVERGENT
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

    def after(self, transitions: int) -> Sampled:
        """Without the first transitions that were kept."""
        window = self.window.after(transitions, self.kernel.draws_of_each)
        return replace(self, window=window, discarded=self.discarded + transitions)


@np.errstate(all="ignore")
def sample(
    evaluate: Evaluate,
    proposal: Proposal,
    positions: Positions,
    generator: np.random.Generator,
    is_enough: Callable[[Convergence, Window], bool],
    has_budget: Callable[[], bool],
    symmetry: Symmetry | None = None,
    *,
    metric: Factor | None = None,
    known: Known | None = None,
    may_bend: bool = True,
) -> Sampled:
    """Run chains until they have come to rest and are worth enough.

    Windows of transitions follow each other. The first ones tune the kernel, a few at most, and are
    discarded. Once it is tuned it stays as it is, and windows are kept. Where these show that the
    chains were still on their way, their first half is discarded as well; where they show that the
    kernel is bad, it is tuned again.

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
    metric : array (D, D) or (D,), optional
        In place of those of the proposal's modes, where that is a mixture fitted to draws.
    known : Known, optional
    may_bend : bool
        See :class:`Kernel`.

    Raises
    ------
    SpentError
        The evaluations ended before there were a few transitions.
    """
    factors, weights = [mode.factor for mode in proposal.modes], proposal.weights
    if metric is not None:
        factors, weights = [metric], np.ones(1)
    # Acceptance stays the same where steps fall with this power of the dimension (A. Beskos et al.,
    # "Optimal tuning of the hybrid Monte Carlo algorithm", 2013).
    first_step = 1.0 / positions.shape[1] ** 0.25
    kernel = Kernel(
        *(evaluate, proposal, factors, weights, first_step),
        symmetry=symmetry,
        is_mixture=metric is not None,
        known=known,
        may_bend=may_bend,
    )
    chains = Chains.at(positions, evaluate)
    length, discarded, again, left = FIRST_WINDOW, 0, 0, MOST_TUNING
    kept: list[Window] = []
    tuned: list[Window] = []
    while True:
        tuning = left > 0
        chains, window, scores = _window(
            kernel, chains, length, generator, has_budget, tuning=tuning
        )
        if window.transitions < LEAST_WINDOW:
            # The budget has ended: too few to learn from.
            kept += [] if tuning else [window]
            break
        if tuning:
            discarded += window.transitions
            tuned.append(window)
            left -= 1
            # Scores of labels that are not in order are those of other coordinates.
            if _tune(kernel, tuned, generator, scores if symmetry is None else None):
                left = 0
            length = min(LONGEST_TUNING, int(1.5 * length)) if left else LEAST_WINDOW
            if not left and kernel.goes_nowhere:
                break
        else:
            kept.append(window)
            joined = Window.joined(kept)
            number = joined.transitions
            figures = convergence(kernel.ordered(joined.draws))
            if is_enough(figures, joined):
                break
            # Each new proposal has twice as long to show what it is worth.
            is_slow = number > SLOW * 2**again and _can_refit(joined)
            is_slow |= number >= FEW and joined.lacks
            is_off = joined.chances.mean() < kernel.acceptance - 2.0 * OFF
            is_bent = joined.diverges
            # What was kept has told that the kernel is bad: it serves to tune the next one.
            if again < AGAIN and (is_slow or is_off or is_bent):
                discarded, again = discarded + number, again + 1
                length = max(LEAST_WINDOW, number // 4)
                tuned, kept, left = [*tuned, joined], [], TUNING_AGAIN
                if is_slow:
                    _refit(kernel, joined, generator)
                if is_bent:
                    kernel.step_size *= SHORTER
                    kernel.acceptance = 1.0 - (1.0 - kernel.acceptance) / FEWER
            else:
                # A kernel that needs nothing: the chains were on their way, and their second half
                # may not be.
                if figures.is_adrift:
                    kept = [joined.after(number // 2, kernel.draws_of_each)]
                    discarded += number // 2
                length = max(length, number // 2)
        if not has_budget():
            break
    # The budget ended just after tuning: its last window is better than nothing, and is judged.
    if sum(each.transitions for each in kept) < LEAST_WINDOW:
        kept = tuned[-1:]
        discarded -= sum(each.transitions for each in kept)
    if not kept:
        raise SpentError
    kernel.known = None
    return Sampled(Window.joined(kept), discarded, chains, kernel)


@np.errstate(all="ignore")
def go_on(
    sampled: Sampled,
    draws: int,
    generator: np.random.Generator,
    has_budget: Callable[[], bool] = lambda: True,
) -> Sampled:
    """The same with so many further draws of each chain, fewer where the budget ends."""
    kernel = sampled.kernel
    length = -(-draws // kernel.draws_of_each)
    chains, window, _ = _window(kernel, sampled.chains, length, generator, has_budget, tuning=False)
    window = replace(window, draws=window.draws[:draws], values=window.values[:draws])
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
) -> tuple[Chains, Window, Float[np.ndarray, "N M D"]]:
    """So many transitions, fewer where the budget ends; and scores at their draws, of tuning ones.

    Others have no use for them.
    """
    draws, values, scores = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    chances, divergent, jumped = [], [], []
    for number in range(length):
        if number >= LEAST_WINDOW and not has_budget():
            break
        try:
            chains, chance, share, jump, places = kernel(chains, generator)
        except SpentError:
            break
        if tuning:
            # Falling gains: stochastic approximation, whose last steps no longer follow single
            # chances.
            gain = GAIN / math.sqrt(1.0 + number) * (float(chance.mean()) - kernel.acceptance)
            kernel.step_size = min(LENGTH, kernel.step_size * math.exp(gain))
            scores.extend(each.scores for each in places)
        draws.extend(each.positions for each in places)
        values.extend(each.values for each in places)
        chances.append(chance)
        divergent.append(share)
        jumped.append(jump)
    number, dim = chains.positions.shape
    found = Window(
        np.reshape(draws, (-1, number, dim)),
        np.reshape(chances, (-1, number)),
        np.array(divergent),
        np.reshape(jumped, (-1, number)),
        np.reshape(values, (-1, number)),
    )
    return chains, found, np.reshape(scores, (-1, number, dim))


def _tune(
    kernel: Kernel,
    windows: Sequence[Window],
    generator: np.random.Generator,
    scores: Float[np.ndarray, "N M D"] | None = None,
) -> bool:
    """Make the kernel better by the last window; whether it needed nothing and chains rested.

    ``scores`` are those of its draws.
    """
    window = windows[-1]
    accepted = float(window.jumped.mean())
    several = int(np.clip(JUMPS_SHARE * LENGTH / kernel.step_size, *JUMPS))
    kernel.jumps = several if accepted > SEVERAL_JUMPS else int(accepted > ONE_JUMP)
    drawn = kernel.ordered(window.draws)
    is_adrift = convergence(drawn).is_adrift
    # What the first half taught, the second half shows.
    of_step = float(window.chances[len(window.chances) // 2 :].mean()) - kernel.acceptance
    # Where steps are as long as trajectories they cannot be accepted less often.
    is_tuned = -OFF < of_step < OFF or (of_step > 0.0 and kernel.step_size >= LENGTH)
    if len(windows) <= MIXTURES and _can_refit(window):
        _refit(kernel, Window.joined(windows[-2:]), generator)
        return False
    # Components of a mixture overlap: draws nearest to one do not tell of its width.
    is_fair = kernel.is_mixture or _improve(kernel, drawn, scores)
    return is_fair and is_tuned and not is_adrift


def _can_refit(window: Window) -> bool:
    """Whether a proposal fitted to draws may be better than the one that there is."""
    return window.jumped.mean() < GOOD_JUMPS and window.draws.shape[2] <= MIXTURE_DIMENSIONS


def _refit(kernel: Kernel, window: Window, generator: np.random.Generator) -> None:
    """Make proposal and metrics anew, from draws."""
    drawn = kernel.ordered(window.draws)
    flat = drawn.reshape(-1, drawn.shape[2])
    flat = flat[generator.permutation(len(flat))[:MIXTURE_DRAWS]]
    bend = None
    if kernel.may_bend:
        # Draws of chains that move little stand for few: a bend of chance maps others far out.
        effective = min(float(len(flat)), float(effective_number(drawn).min()))
        bend = fitted_bend(flat, np.full(len(flat), effective / len(flat)))
    straight = flat if bend is None else bend.straight(flat)[0]
    modes, weights, whole = fitted(straight, generator)
    kernel.propose_from(Proposal(modes, weights, bend), whole.factor)


def _improve(
    kernel: Kernel,
    drawn: Float[np.ndarray, "N M D"],
    scores: Float[np.ndarray, "N M D"] | None,
) -> bool:
    """Whether the kernel's metrics are fair; those that are not are made anew from draws."""
    dim = drawn.shape[2]
    flat = drawn.reshape(-1, dim)
    nearest = kernel.proposal.nearest(flat)
    modes, fair = list(kernel.proposal.modes), True
    for number in range(len(modes)):
        own = nearest == number
        known = None if scores is None else scores.reshape(-1, dim)[own]
        found = _whitened(kernel.factors[number], flat[own], known)
        if found is None:
            continue
        fair = False
        mean, kernel.factors[number] = found
        modes[number] = replace(modes[number], mean=mean, factor=kernel.factors[number])
    if not fair:
        kernel.proposal, kernel.known = replace(kernel.proposal, modes=tuple(modes)), None
    return fair


def _whitened(
    factor: Factor, draws: Float[np.ndarray, "S D"], scores: Float[np.ndarray, "S D"] | None
) -> tuple[Float[np.ndarray, " D"], Factor] | None:
    """Mean of the draws, and a root of their covariance, drawn towards this one.

    None where this one is fair. Where it is far from what draws and their scores say together, that
    is taken: of a Normal it is the covariance, however few the draws.
    """
    number, dim = draws.shape
    if number < LEAST_DRAWS:
        return None
    center, is_diagonal = np.median(draws, axis=0), factor.ndim == 1
    if is_diagonal:
        white = (draws - center) / factor
    else:
        white = solve_triangular(factor, (draws - center).T, lower=True, check_finite=False).T
    if not np.isfinite(white).all():
        return None
    prior, one = (PRIOR_DRAWS, 1.0) if is_diagonal else (PRIOR_DRAWS + dim, np.eye(dim))
    times, root_of = (np.multiply, np.sqrt) if is_diagonal else (np.matmul, np.linalg.cholesky)

    def shrunk(scatter: np.ndarray) -> np.ndarray:
        return (number * scatter + prior * one) / (number + prior)

    mean, weights = _bulk(white, is_diagonal=is_diagonal)
    scatter = _scatter(white, weights, is_diagonal=is_diagonal)
    root: np.ndarray | None = None
    if scores is not None and np.isfinite(scores).all():
        slopes = times(scores, factor)
        # Scores may differ so much in size that rounding leaves no positive matrix.
        with suppress(np.linalg.LinAlgError):
            own = _bulk(slopes, is_diagonal=is_diagonal)[1]
            # Those that have two values, or none in most draws, have no bulk.
            has_bulk = own.sum() > LEAST_BULK * weights.sum()
            own = own if has_bulk else weights
            of_slopes = shrunk(_scatter(slopes, own, is_diagonal=is_diagonal))
            between = _between(shrunk(scatter), of_slopes)
            if np.isfinite(between).all() and not _is_fair(between):
                root = root_of(between)
    if root is None:
        if _is_fair(scatter, number):
            return None
        root = root_of(shrunk(scatter))
    return center + times(factor, mean), times(factor, root)


def _between(
    of_draws: Float[np.ndarray, "D D"] | Float[np.ndarray, " D"],
    of_scores: Float[np.ndarray, "D D"] | Float[np.ndarray, " D"],
) -> Float[np.ndarray, "D D"] | Float[np.ndarray, " D"]:
    """The positive V for which V S V is the covariance of draws, with S that of their scores.

    Or its diagonal, of variances. It minimises the Fisher divergence of a Normal from the density
    (A. Seyboldt, E. Carlson and B. Carpenter, "Preconditioning Hamiltonian Monte Carlo by
    minimizing Fisher divergence", 2026). Scores of a Normal are linear in its draws, so that both
    covariances have the same noise, and V has none.
    """
    if of_draws.ndim == 1:
        return np.sqrt(of_draws / of_scores)
    root = np.linalg.cholesky(of_scores)
    values, vectors = np.linalg.eigh(root.T @ of_draws @ root)
    half = solve_triangular(root, vectors, lower=True, trans="T", check_finite=False)
    return (half * np.sqrt(values)) @ half.T


def _bulk(
    white: Float[np.ndarray, "S D"], *, is_diagonal: bool
) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " S"]]:
    """Mean of the bulk of draws, and the weights that make its covariance: of Normal ones of all.

    Draws have the weights of a multivariate Student t (K. Lange, R. Little and J. Taylor, "Robust
    statistical modeling using the t distribution", 1989), since variances of heavy tails change
    from window to window and may have no limit. The scale is such that half of the draws are as
    near as half of a Normal's.
    """
    number, dim = white.shape
    half = float(chdtri(dim, 0.5))
    weights = np.ones(number)
    for _ in range(ROUNDS):
        off = white - weights @ white / weights.sum()
        variances = weights @ np.square(off) / number
        if is_diagonal or number < 2 * dim:  # of few draws there is no inverse
            squares = (np.square(off) / variances).sum(1)
        else:
            scatter = (weights[:, None] * off).T @ off / number
            squares = (off * np.linalg.solve(scatter, off.T).T).sum(1)
        scale, before = float(np.median(squares)) / half, weights
        weights = (FREEDOM + dim) / (FREEDOM + squares / scale)
    return before @ white / before.sum(), before * scale / number


def _scatter(
    values: Float[np.ndarray, "S D"], weights: Float[np.ndarray, " S"], *, is_diagonal: bool
) -> Float[np.ndarray, "D D"] | Float[np.ndarray, " D"]:
    """Covariance, or variances, of draws or of their scores, with the weights of a bulk."""
    off = values - weights @ values / weights.sum()
    return weights @ np.square(off) if is_diagonal else (weights[:, None] * off).T @ off


def _is_fair(
    covariance: Float[np.ndarray, "D D"] | Float[np.ndarray, " D"], number: float = math.inf
) -> bool:
    """Whether variances differ from 1 by little more than chance makes of as many draws."""
    variances = covariance if covariance.ndim == 1 else np.linalg.eigvalsh(covariance)
    # Where eigenvalues of a sample's covariance end; neighbouring draws are alike.
    chance = math.sqrt(2.0 * (covariance.size / len(covariance)) / number)
    low, high = FAIR[0] * max(0.0, 1.0 - chance) ** 2, FAIR[1] * (1.0 + chance) ** 2
    return bool(variances.min() > low and variances.max() < high)
