"""Drift under an exact kernel: draws of the posterior stay such, and others move towards it.

Short Hamiltonian chains start from the draws. The kernel leaves the posterior exactly as it is,
whatever its metric and step size, which are chosen beforehand from the draws and from chains of
their own. So for right draws every figure has the same distribution after some transitions as
before, and the paired differences have mean zero. They are taken of ranks (normal scores), of
distances from the median, of both tails, and of the log density, which sees all coordinates
together. Nested R-hat (C. Margossian and others, "Nested R-hat: assessing the convergence of Markov
chain Monte Carlo when running many short chains", 2024) tells how far the chains have forgotten
where they started: as long as they have not, a drift that is slow is missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtri, stdtrit

from ppl_ext.chains.hamiltonian import LENGTH, Chains, Factor, Positions, trajectory
from ppl_ext.start.paths import Evaluate

#: Probability of calling right draws adrift, over all figures together.
LEVEL = 2e-3
#: Shifts that nobody minds: of normal scores, of their distances from the median, of the
#: probability of a tail of 5 %, and, times the root of the dimensions, of the log density's scores.
SHIFT, SPREAD, TAIL_SHARE, OF_DENSITY = 0.1, 0.08, 0.02, 0.14
#: Probability of each tail.
TAIL = 0.05
#: Chains that the step size is found with, transitions for it, and acceptance that is wanted.
TUNING_CHAINS, TUNING, ACCEPTANCE = 32, 6, 0.8
#: Draws for each dimension from which on the metric is a whole covariance.
DRAWS_PER_DIMENSION, MOST_DENSE = 4, 500
#: Draws farther out, in units of the middle's width, count as that far in the metric.
FARTHEST = 5.0
#: Starts that are neighbours make one superchain; so many of them.
SUPERCHAINS = 16
#: Acceptance of a move that is all but impossible, and moves that tell: steps that suit most chains
#: lose so much only where they are unstable, at a scale of less than half of the step.
IMPOSSIBLE, TELLING = 1e-6, 2

KINDS = ("mean", "spread", "lower tail", "upper tail")


@dataclass(frozen=True)
class Drift:
    """How far short chains from draws have moved.

    Attributes
    ----------
    sizes : array (4, D + 1)
        Shifts of the mean and the spread, in standard deviations, and of both tails, in
        probability, for each coordinate and the log density.
    errors : array (4, D + 1)
        Their standard errors.
    nested_r_hat : float
        Of the coordinate that forgets its start most slowly.
    chains, transitions, evaluations : int
    accepted : float
        Mean acceptance.
    names : sequence of str
        Of the coordinates.
    level : float
        Probability of calling right draws adrift.
    stuck : int
        Chains of which every move was all but impossible: they lie where the density is many times
        narrower than at the other draws.
    starts : array (M, D), optional
        Where chains started.
    unmoved : array (M,), optional
        Which of them are still there.
    """

    sizes: Float[np.ndarray, "4 C"]
    errors: Float[np.ndarray, "4 C"]
    nested_r_hat: float
    chains: int
    transitions: int
    accepted: float
    names: Sequence[str]
    level: float = LEVEL
    stuck: int = 0
    starts: Float[np.ndarray, "M D"] | None = field(default=None, repr=False, compare=False)
    unmoved: Bool[np.ndarray, " M"] | None = field(default=None, repr=False, compare=False)

    def _shares(self) -> Float[np.ndarray, "4 C"]:
        number = self.sizes.size
        # Student's t, as errors are estimated, two-sided, and with the level divided among all
        # figures (Bonferroni).
        quantile = -float(stdtrit(max(1.0, self.chains - 1.0), 0.5 * self.level / number))
        tolerance = np.array([SHIFT, SPREAD, TAIL_SHARE, TAIL_SHARE])[:, None]
        tolerances = np.repeat(tolerance, self.sizes.shape[1], axis=1)
        # Of a Normal the log density has mean -D / 2 and variance D / 2: where every variance is
        # off by a share r, it moves by r sqrt(D / 2) of its standard deviations.
        tolerances[:, -1] *= max(1.0, OF_DENSITY / SHIFT * math.sqrt(len(self.names)))
        return np.abs(self.sizes) / np.hypot(tolerances, quantile * self.errors)

    @property
    def is_adrift(self) -> bool:
        """Whether something shifts by more than chance and tolerance allow."""
        return bool((self._shares() > 1.0).any())

    @property
    def told(self) -> str:
        """The worst figure, with its error, and how far chains forgot."""
        kind, column = divmod(int(self._shares().argmax()), self.sizes.shape[1])
        what = f"'{self.names[column]}'" if column < len(self.names) else "the log density"
        size, error = self.sizes[kind, column], self.errors[kind, column]
        unit = " sd" if kind < 2 else " in probability"
        return (
            f"{self.chains} short chains from the draws, {self.transitions} steps each, move the "
            f"{KINDS[kind]} of {what} most, by {size:+.2f} ± {error:.2f}{unit} (right draws stay "
            f"where they are; nested R-hat of the chains {self.nested_r_hat:.2f})."
        )


@np.errstate(all="ignore")
def drift(
    evaluate: Evaluate,
    positions: Positions,
    generator: np.random.Generator,
    names: Sequence[str],
    *,
    chains: int,
    transitions: int,
    ordered: Callable[[Positions], Positions] | None = None,
    like: Positions | None = None,
    sees_density: bool = True,
    has_budget: Callable[[], bool] = lambda: True,
    tuning_chains: int = TUNING_CHAINS,
    least: int = 2,
) -> Drift | None:
    """Drift of so many chains from draws (S, D); None where no draw has a finite density.

    ``positions`` are to be independent of each other, or nearly so. Where log densities are
    rounded too much, the kernel leaves the rounded density as it is and not the exact one, so
    that ``sees_density`` is to be False. Where labels can be exchanged, ``ordered`` puts those of
    positions in order, before and after alike. The metric is that of ``like``, of the positions
    where it is None. After ``least`` transitions they go on while ``has_budget``.
    """
    # Any metric will do; that of one order of labels is not as wide as all of them lie apart.
    like = positions if like is None else like
    factor = metric_of(like if ordered is None else ordered(like))
    chosen = positions[generator.permutation(len(positions))]
    step_size = _step_size(evaluate, chosen[:tuning_chains], factor, generator)
    at = Chains.at(chosen[:chains], evaluate)
    finite = np.isfinite(at.values) & np.isfinite(at.scores).all(1)
    if finite.sum() < 2:
        return None
    at = Chains(at.positions[finite], at.values[finite], at.scores[finite])
    seen, accepted = [_columns(at)], list[np.ndarray]()
    for _ in range(transitions):
        if len(seen) > least and not has_budget():
            break
        at, chance, _ = trajectory(evaluate, at, factor, step_size, generator)
        seen.append(_columns(at))
        if not sees_density:
            # The column stays, and shifts by nothing.
            seen[-1][:, -1] = seen[0][:, -1]
        accepted.append(chance)
    if ordered is not None:
        for columns in seen:
            columns[:, :-1] = ordered(columns[:, :-1])
    chances = np.stack(accepted)
    stuck = (chances < IMPOSSIBLE).all(0).sum() if len(chances) >= TELLING else 0
    found = _figures(np.stack(seen), float(chances.mean()), names)
    return replace(found, stuck=int(stuck))


def metric_of(positions: Positions) -> Factor:
    """A root of the draws' covariance, of its diagonal where they are too few for all of it."""
    number, dim = positions.shape
    # Of the middle: heavy tails have no standard deviation.
    low, center, high = np.quantile(positions, [0.16, 0.5, 0.84], axis=0)
    scale = 0.5 * (high - low)
    scale = np.where(scale > 0.0, scale, max(float(scale.max()), 1e-6))
    if dim > MOST_DENSE or number < DRAWS_PER_DIMENSION * dim:
        return scale
    white = np.clip((positions - center) / scale, -FARTHEST, FARTHEST)
    # Shrunk towards the identity by the weight of 0.2 D draws, which keeps the factor of few draws
    # regular.
    correlation = (white.T @ white + 0.2 * dim * np.eye(dim)) / (number + 0.2 * dim)
    return scale[:, None] * np.linalg.cholesky(correlation)


def _step_size(
    evaluate: Evaluate, positions: Positions, factor: Factor, generator: np.random.Generator
) -> float:
    """A step size of wanted acceptance, by chains that are not used further."""
    # Leapfrog's acceptance is kept in high dimension by steps of D^(-1/4): A. Beskos and others,
    # "Optimal tuning of the hybrid Monte Carlo algorithm" (2013).
    at, step = Chains.at(positions, evaluate), 1.0 / positions.shape[1] ** 0.25
    for number in range(TUNING):
        at, chance, _ = trajectory(evaluate, at, factor, step, generator)
        # A Robbins-Monro recursion in the logarithm of the step.
        gain = 2.0 / math.sqrt(1.0 + number) * (float(chance.mean()) - ACCEPTANCE)
        step = min(LENGTH, step * math.exp(gain))
    return step


def _columns(chains: Chains) -> Float[np.ndarray, "M C"]:
    return np.concatenate([chains.positions, chains.values[:, None]], axis=1)


def _figures(seen: Float[np.ndarray, "T M C"], accepted: float, names: Sequence[str]) -> Drift:
    """Figures of columns before the first transition and after each."""
    transitions, chains = len(seen) - 1, seen.shape[1]
    # The later half: what moves has moved.
    after = seen[1 + transitions // 2 :]
    # Ranks and quantiles are of all times together: those within one time do not show a shift.
    pooled = np.concatenate([seen[:1], after])
    of_ranks = _normal_scores(pooled)
    of_distances = _normal_scores(np.abs(pooled - np.median(pooled, axis=(0, 1))))
    low, high = np.quantile(pooled, [TAIL, 1.0 - TAIL], axis=(0, 1))
    figures = (of_ranks, of_distances, (pooled < low) * 1.0, (pooled > high) * 1.0)
    # Paired by chain, (M, D + 1): what a chain has of its start cancels.
    changes = [each[1:].mean(0) - each[0] for each in figures]
    sizes = np.stack([each.mean(0) for each in changes])
    errors = np.stack([each.std(0, ddof=1) for each in changes]) / math.sqrt(chains)
    return Drift(
        sizes,
        errors,
        _nested_r_hat(seen),
        chains,
        transitions,
        accepted,
        names,
        starts=seen[0, :, :-1],
        unmoved=(seen[-1, :, :-1] == seen[0, :, :-1]).all(1),
    )


def _normal_scores(values: Float[np.ndarray, "T M C"]) -> Float[np.ndarray, "T M C"]:
    flat = values.reshape(-1, values.shape[-1])
    ranks = np.argsort(np.argsort(flat, axis=0), axis=0) + 0.5
    return ndtri(ranks / len(flat)).reshape(values.shape)


def _nested_r_hat(seen: Float[np.ndarray, "T M C"]) -> float:
    """The largest over coordinates, of the last positions, grouped by where they started."""
    first, last = seen[0, :, :-1], seen[-1, :, :-1]
    size = len(first) // SUPERCHAINS
    if size < 2:
        return float("nan")
    found = []
    for before, after in zip(first.T, last.T, strict=True):
        groups = after[np.argsort(before)][: SUPERCHAINS * size].reshape(SUPERCHAINS, size)
        within = groups.var(1, ddof=1).mean()
        # The variance of means within a group is taken off, as right chains have it too.
        between = groups.mean(1).var(ddof=1) - within / size
        found.append(math.sqrt(1.0 + max(0.0, between) / max(within, 1e-300)))
    return max(found)
