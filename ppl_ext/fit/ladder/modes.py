"""The search for modes beside those of a fit's start: many short paths, and what else was met.

Paths start at draws of the prior, near where all searches start, and far from the first mode. A
path ends at once where value and score are those of a known mode's Normal. So a posterior that is
one Normal is searched by hundreds of paths of one evaluation each, and others by as many paths as
the same number of evaluations buys. Later stages look further from points that no known mode
explains: draws of the approximation with large importance ratios, and the highest density that
chains met.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float

from ppl_ext.chains.proposal import Proposal
from ppl_ext.chains.symmetry import Symmetry, find_symmetry
from ppl_ext.fit.problem.problem import Positions, Problem
from ppl_ext.fit.verdict import facts, policy
from ppl_ext.start.find import EXCESS, PATHS, Counted, is_near, more_modes
from ppl_ext.start.paths import Evaluate, SpentError
from ppl_ext.start.search import WIDTH
from ppl_ext.start.start import Mode, Start

#: Rounds of paths at most.
ROUNDS = 48
#: Paths of a round: as many as are evaluated together.
ROUND = WIDTH
#: Those of them that start at draws of the prior. The others start far from the first mode, and in
#: the first round where all searches start.
OF_PRIOR = 3 * WIDTH // 4
#: How far from the first mode paths start, in its standard deviations.
FAR = (2.0, 5.0, 10.0, 20.0, 50.0)
#: Paths in a row, for each mode, that have to find nothing new for the search to end. Of eight
#: modes that paths lead to alike one is missed in one search of fifty or so.
PATHS_PER_MODE = 4
#: A mode is rare to which so few paths lead, if its mass is such a share of the heaviest one's; and
#: share of the paths that rare modes may be for the search to end: where there are more, others to
#: which no path has led are a part of the mass (I. Good, "The population frequencies of species and
#: the estimation of population parameters", 1953).
RARE, RARE_MASS, RARE_SHARE = 2, 0.01, 0.005
#: Evaluations up to which rare modes keep a search going: of functions with countless modes, as of
#: the weights of a network, it would find new ones for ever.
FOR_RARE = 5_000
#: Evaluations before which no search ends.
ENOUGH = policy.LEAST_SEARCH
#: The same where the modes' Normals are no good approximation, so that chains have to run.
MORE = 1_000
#: Mass, as a share of that of the first mode, below which modes are left out.
LEAST_MASS = 1e-3
#: Weight that every other mode has in a proposal at least.
LEAST_WEIGHT = 0.02
#: Draws of a mode that tell whether the density changes with an exchange of labels.
OF_MODE = 256
#: Interquartile ranges above the median from which on the log of an importance ratio tells of mass
#: that the approximation lacks: five standard deviations, where these logs are Normal.
FAR_RANGES = 4.0
#: Bounds of this distance in nats: ratios that are all alike have a range near 0, and those of a
#: bad approximation any range.
FAR_RATIO = (1.0, 5.0)
#: Draws with such ratios from which paths start: those with the largest.
LOOKED_AT = 8
#: How often paths start from the highest point of chains, at most.
LOOKS = 5


@dataclass
class Search:
    """A search for modes, which may go on.

    Parameters
    ----------
    problem : Problem
    modes : tuple of Mode
        Those that are known.
    generator : numpy.random.Generator

    Attributes
    ----------
    symmetry : Symmetry or None
        Labels that can be exchanged: modes that differ by them count once.
    paths, from_prior : int
        Paths so far, and those of them that started at draws of the prior.
    no_prior : str
        Why there are no draws of the prior; empty where there are.
    joined : tuple of Mode
        Modes that are parts of another, of which a proposal has draws of these as well.
    """

    problem: Problem
    modes: tuple[Mode, ...]
    generator: np.random.Generator
    symmetry: Symmetry | None = None
    paths: int = PATHS
    from_prior: int = 0
    no_prior: str = ""
    joined: tuple[Mode, ...] = ()
    _is_known: bool = False
    _cut: bool = False
    _idle: int = 0
    _new: float = 0.0
    _evaluations: int = 0
    _drawn: Positions | None = None
    _hits: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        # How the paths of the start's own search were divided is not known.
        self._hits = [max(1, PATHS // len(self.modes))] * len(self.modes)

    def go_on(self, evaluate: Evaluate, enough: int = ENOUGH) -> bool:
        """Rounds of paths until they find nothing new, and cost enough; whether there were new."""
        counted, before = Counted(evaluate), len(self.modes)
        for _ in range(ROUNDS):
            try:
                points, of_prior = self._points()
                self._follow(counted, points)
            except SpentError:
                self._cut = self._idle < PATHS_PER_MODE * len(self.modes)
                break
            self.from_prior += of_prior
            spent = self._evaluations + counted.evaluations
            is_done = self._idle >= PATHS_PER_MODE * len(self.modes) and spent >= enough
            is_sure = self._rare <= RARE_SHARE * self.paths or spent >= FOR_RARE
            if is_done and is_sure:
                break
        self._evaluations += counted.evaluations
        return len(self.modes) > before

    def look(self, evaluate: Evaluate, points: Positions) -> bool:
        """Paths from these points; whether they found something new."""
        before, last = len(self.modes), self._new
        with suppress(SpentError):
            if len(points):
                self._follow(evaluate, points)
        # These points were chosen for what was seen there: how much their paths find does not say
        # how much others would.
        self._new = last
        self._hits[before:] = [RARE + 1] * (len(self.modes) - before)
        return len(self.modes) > before

    @property
    def start(self) -> Start:
        """The modes that have a share of the mass, the one of most first."""
        apart = [mode for mode in self.modes if not any(mode is one for one in self.joined)]
        ordered = sorted(apart, key=lambda mode: mode.log_mass, reverse=True)
        least = ordered[0].log_mass + np.log(LEAST_MASS)
        return Start(tuple(m for m in ordered if m is ordered[0] or _most_mass(m) > least), 0)

    @property
    def found(self) -> facts.Modes:
        """What the verdict's rules ask of it."""
        start = self.start
        alike = () if self.symmetry is None else self.symmetry.alike
        shares = tuple(map(float, start.weights))
        return facts.Modes(
            len(start.modes),
            self._new,
            shares,
            alike=alike,
            cut=self._cut,
            paths=self.paths,
            from_prior=self.from_prior,
            no_prior=self.no_prior,
        )

    @property
    def _rare(self) -> int:
        """Number of modes with some mass to which few paths have led."""
        least = max(mode.log_mass for mode in self.modes) + np.log(RARE_MASS)
        pairs = zip(self.modes, self._hits, strict=True)
        return sum(number <= RARE and mode.log_mass > least for mode, number in pairs)

    def _follow(self, evaluate: Evaluate, points: Positions) -> None:
        """Paths from points, and the modes among their ends that are new and have some mass."""
        epsilon, symmetry = self.problem.epsilon, self.symmetry
        if len(self.modes) > 1 and not self._is_known:
            symmetry = self.symmetry = self._find_symmetry(evaluate)
            self._is_known = True
            self.modes, self._hits = _distinct(self.modes, self._hits, symmetry, epsilon)
        known = len(self.modes)
        found, hits = more_modes(evaluate, points, self.modes, self.generator, epsilon)
        heaviest = max(mode.log_mass for mode in (*self.modes, *found))
        weighty = [k for k, m in enumerate(found) if _most_mass(m) > heaviest + np.log(LEAST_MASS)]
        every = (*self.modes, *(found[k] for k in weighty))
        counts = np.add(self._hits, hits[:known]).tolist() + [hits[known + k] for k in weighty]
        self.modes, self._hits = _distinct(every, counts, symmetry, epsilon, known)
        new = len(self.modes) - known
        self.paths += len(points)
        self._new = new / len(points)
        self._idle = 0 if new else self._idle + len(points)

    def _points(self) -> tuple[Positions, int]:
        """Where the paths of a round start, and how many of them at draws of the prior."""
        prior = self._of_prior(OF_PRIOR)
        # What lies near where all searches start is known after the first round.
        number = ROUND - OF_PRIOR if self.paths == PATHS else 0
        near = self.problem.starting_points(number) if number else prior[:0]
        far = ROUND - len(near) - len(prior)
        first = self.modes[0]
        reach = self.generator.choice(FAR, far)[:, None] * first.deviations
        moves = reach * self.generator.normal(size=(far, self.problem.dim))
        return np.concatenate([prior, near, first.mean + moves]), len(prior)

    def _of_prior(self, number: int) -> Positions:
        """Draws of the prior; none where it has none."""
        none = np.zeros((0, self.problem.dim))
        if self.no_prior or self.problem.prior is None:
            return none
        known = none if self._drawn is None else self._drawn
        if len(known) < number:
            # As many as a piece has, so that one program serves all.
            seed = int(self.generator.integers(2**31))
            drawn, self.no_prior = self.problem.of_prior(WIDTH, seed)
            if self.no_prior:
                return none
            known = np.concatenate([known, drawn])
        drawn, self._drawn = known[:number], known[number:]
        return drawn[np.isfinite(drawn).all(1)]

    def _find_symmetry(self, evaluate: Evaluate) -> Symmetry | None:
        """Labels whose exchange leaves the density as it is."""
        problem = self.problem
        if problem.maps is None:
            return None
        drawn = self.modes[0].at(self.generator.normal(size=(OF_MODE, problem.dim)))
        found = find_symmetry(evaluate, *problem.maps, problem.coordinates, drawn, problem.epsilon)
        names = tuple((latent, site) for site, latent in problem.latents.items())
        return None if found is None else replace(found, names=names)


@dataclass
class Watched:
    """The log density that chains see, whose highest points are looked at.

    Chains that come upon a narrow mode that no path has found stay there, or leave it for ever. So
    a path starts where the log density is higher by some nats than at all known modes and at all
    points from which paths started so.

    Parameters
    ----------
    evaluate : callable
    search : Search
    top : float
        Log density from which on a point is looked at.
    left : int
        How often there may still be a look.
    found : bool
        Whether a look found a new mode.
    """

    evaluate: Evaluate
    search: Search | None
    top: float
    left: int = LOOKS
    found: bool = False
    _point: Float[np.ndarray, " D"] | None = None

    @classmethod
    def beside(cls, evaluate: Evaluate, search: Search | None, modes: Sequence[Mode]) -> Watched:
        """Points count that are higher by some nats than all of these modes."""
        return cls(evaluate, search, max(mode.log_top for mode in modes) + EXCESS)

    def __call__(
        self, positions: Positions
    ) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, "P D"]]:
        values, scores = self.evaluate(positions)
        finite = np.isfinite(values) & np.isfinite(scores).all(-1)
        highest = int(np.where(finite, values, -np.inf).argmax())
        if finite[highest] and values[highest] > self.top:
            self.top, self._point = float(values[highest]) + EXCESS, positions[highest].copy()
        return values, scores

    def has_found(self) -> bool:
        """Look at the highest point, if there is one; whether a look has found a new mode."""
        point, self._point = self._point, None
        if point is not None and self.search is not None and self.left > 0:
            self.left -= 1
            self.found |= self.search.look(self.evaluate, point[None])
        return self.found


def unexplained(drawn: Positions, log_ratios: Float[np.ndarray, " S"]) -> Positions:
    """Draws whose large importance ratios tell of mass that the proposal lacks, largest first."""
    finite = np.isfinite(log_ratios)
    if not finite.any():
        return drawn[:0]
    low, median, high = np.quantile(log_ratios[finite], [0.25, 0.5, 0.75])
    most = median + np.clip(FAR_RANGES * (high - low), *FAR_RATIO)
    rows = [row for row in np.argsort(-log_ratios) if log_ratios[row] > most]
    return drawn[rows[:LOOKED_AT]]


def masses(
    proposal: Proposal, drawn: Positions, log_ratios: Float[np.ndarray, " S"]
) -> tuple[Float[np.ndarray, " modes"], Float[np.ndarray, " modes"]]:
    """Shares of the modes in the mass by importance weights of draws, and their standard errors.

    A draw is of the mode that most likely made it. Errors are those of a ratio of two means.
    """
    weights = np.exp(log_ratios - np.max(log_ratios))
    own = proposal.nearest(drawn) == np.arange(len(proposal.modes))[:, None]
    shares = (own * weights).sum(1) / weights.sum()
    off = weights * (own - shares[:, None])
    return shares, np.sqrt(np.square(off).sum(1)) / weights.sum()


def _most_mass(mode: Mode) -> float:
    """Log mass of a mode at most: its bound, with what that lacks where log ratios are Normal."""
    return mode.log_mass + min(0.5 * mode.spread**2, mode.spread)


def _distinct(
    modes: Sequence[Mode],
    hits: Sequence[int],
    symmetry: Symmetry | None,
    epsilon: float,
    known: int = 0,
) -> tuple[tuple[Mode, ...], list[int]]:
    """Modes with their labels put in order, each of them once, and the paths that led to each.

    The first ones, so many as are ``known``, are in order.
    """
    if symmetry is None:
        return tuple(modes), list(hits)
    found, counts = list(modes[:known]), list(hits[:known])
    for mode, number in zip(modes[known:], hits[known:], strict=True):
        moved = symmetry.moved(mode, epsilon)
        same = (k for k, other in enumerate(found) if is_near(other, moved.mean))
        if (place := next(same, len(found))) == len(found):
            found.append(moved)
            counts.append(0)
        counts[place] += number
    return tuple(found), counts
