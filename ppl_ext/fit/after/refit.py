"""A fit of the same program to other arguments, from what a fit before it knows.

Draws of the fit before are reweighted to the new posterior. Where the weights are even, that is all
there is to do. Where they are too uneven, they still tell where the new posterior lies: a Normal,
or a mixture where there are several modes, is fitted to the weighted draws, and its draws are
reweighted (O. Cappé and others, "Population Monte Carlo", 2004). What neither reaches is fitted
from anew.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float

from ppl_ext.chains.mixture import fitted
from ppl_ext.chains.proposal import Proposal
from ppl_ext.fit.ladder.chain_figures import flat_far_out
from ppl_ext.fit.ladder.climbed import Climbed, staged
from ppl_ext.fit.ladder.corrected import resampled
from ppl_ext.fit.ladder.ladder import climb
from ppl_ext.fit.ladder.modes import FAR, LEAST_MASS
from ppl_ext.fit.problem.problem import Meter, Problem
from ppl_ext.fit.verdict import facts, levels, policy
from ppl_ext.fit.verdict.verdict import Level, Stage, Verdict
from ppl_ext.start.find import more_modes
from ppl_ext.start.given import normal_of
from ppl_ext.start.paths import Evaluate, SpentError
from ppl_ext.statistics.effective import effective_number, weighted_number
from ppl_ext.statistics.khat import LogRatios, khat_in_words, pareto_khat, smoothed_weights

#: Draws of the fit before that get weights first, to see whether these are even.
FIRST = 128
#: Draws of it that get weights where a proposal is to be fitted to them.
MOST = 512
#: Evaluations of the fit before up to which no proposal is made of its draws: another fit from anew
#: costs as little.
CHEAP = 2_000
#: Draws of a proposal by which it is judged.
JUDGED = 400
#: Proposals that are made at most, each of the weighted draws of the one before.
ROUNDS = 4
#: Share of the effective draws that are wanted with which a refit is content. How many draws need
#: weights is foreseen from the first weights, and these tell it only about.
CONTENT = 0.75
#: Share of them below which the verdict says that they are fewer: the number is known no better.
NEARLY = 0.95
#: Independent draws that a proposal is fitted to at least, besides those for each dimension.
EFFECTIVE = 20
#: Further ones for each dimension, whose variance and covariances it has to tell.
EFFECTIVE_PER_DIMENSION = 10
#: Powers of the weights that are tried in turn, until they leave so many independent draws.
POWERS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05)
#: Paths that look for modes which the draws lack: half from where searches start, half from far.
PATHS = 16
Positions = Float[np.ndarray, "S D"]
Values = Float[np.ndarray, " S"]


@dataclass
class Reweighted(Climbed):
    """Draws that were reweighted to new arguments.

    Attributes
    ----------
    told : str
        How, with figures.
    values : array (S,)
        Log densities at the draws.
    """

    told: str = ""
    values: Values = field(default_factory=lambda: np.zeros(0))

    @property
    def verdict(self) -> Verdict:
        """What the draws are worth: draws whose weights are not good are not kept."""
        reasons = [self.told]
        if self.problem.name != "as written":
            reasons.append(f"Fitted {self.problem.name}; draws are of the sites as written.")
        level: Level = "not trusted" if self.beyond else "corrected"
        return Verdict(level, (*self.beyond, *reasons), {}, tuple(self.stages))


@dataclass(frozen=True)
class _Weighed:
    """Positions with log densities, log ratios to what they are draws of, and weights."""

    positions: Positions
    values: Values
    log_ratios: Values
    rounding: float

    @cached_property
    def khat(self) -> float:
        if np.isneginf(self.log_ratios).all():
            return math.inf
        return pareto_khat(LogRatios(self.log_ratios, self.rounding)).khat

    @cached_property
    def weights(self) -> Values:
        if np.isneginf(self.log_ratios).all():
            return np.full(len(self.log_ratios), 1.0 / len(self.log_ratios))
        return smoothed_weights(LogRatios(self.log_ratios, self.rounding))

    @cached_property
    def share(self) -> float:
        """Independent draws that these are worth, as a share of them."""
        if np.isneginf(self.log_ratios).all():
            return 0.0
        return weighted_number(self.weights) / len(self.weights)

    @property
    def is_good(self) -> bool:
        return policy.is_good(facts.Correction(self.khat, self.share))

    @property
    def told(self) -> str:
        return f"Pareto k-hat {khat_in_words(self.khat)}, effective share {self.share:.0%}"

    def joined(self, other: _Weighed) -> _Weighed:
        """These and others, of one proposal."""
        return _Weighed(
            np.concatenate([self.positions, other.positions]),
            np.concatenate([self.values, other.values]),
            np.concatenate([self.log_ratios, other.log_ratios]),
            self.rounding,
        )

    def spread(self, least: float, generator: np.random.Generator) -> np.ndarray:
        """As many rows as the weights leave draws; they are evened out until ``least`` are left."""
        for power in POWERS:
            weights = np.power(self.weights, power)
            left = weighted_number(weights)
            if left >= least:
                break
        return resampled(weights / weights.sum(), math.ceil(left), generator)


def refitted(
    before: Climbed,
    why: str,
    written: Problem,
    others: Iterator[Problem],
    generator: np.random.Generator,
    wanted: facts.Wanted,
    meter: Meter,
) -> Climbed:
    """Fit a program to other arguments than a fit before, from its draws where they serve.

    Parameters
    ----------
    before : Climbed
    why : str
        Why its draws do not serve; empty where they may.
    written, others, generator, wanted, meter
        As :func:`~ppl_ext.fit.ladder.ladder.climb` takes them, with the new arguments.

    Raises
    ------
    ArgumentError
        The budget buys no start.
    """
    stages: list[Stage] = []
    found: Reweighted | None = None
    seen = [] if before.problem.name == written.name else list(itertools.islice(others, 1))
    with staged(stages, meter, "refit") as notes:
        problem = next((p for p in (written, *seen) if _is_of(p, before.problem)), None)
        why = why or _difference(before, problem)
        if problem is not None and not why:
            problem = problem.between(before.problem.entry_data)
        if not why:
            assert problem is not None
            try:
                with np.errstate(all="ignore"):
                    found, why = _Refit(before, problem, generator, wanted, meter).found()
            except SpentError:
                why = "the budget ended before its draws were reweighted"
        notes.append(f"from anew: {why}" if found is None else found.told)
    if found is not None:
        found.stages = stages
        return found
    climbed = climb(written, itertools.chain(seen, others), generator, wanted, meter)
    climbed.stages[:0] = stages
    told = f"Fitted from anew, without the fit before: {why}."
    climbed.evidence = replace(climbed.evidence, dropped=(*climbed.evidence.dropped, told))
    return climbed


def _is_of(problem: Problem, before: Problem) -> bool:
    """Whether a way to write a program is that of a fit before, or leads to it."""
    return problem.name == before.name or bool(before.entry_data and problem.partly)


def _difference(before: Climbed, problem: Problem | None) -> str:
    """Why the draws of a fit tell nothing of a problem; empty if they may."""
    if problem is None or problem.own.layout.shapes != before.problem.own.layout.shapes:
        return "the program has other latent sites with these arguments"
    if not (problem.is_whole and before.problem.is_whole):
        return "all rows are too many"
    if before.symmetry is not None:
        return "labels can be exchanged"
    return ""


@dataclass(frozen=True)
class _Refit:
    """A fit by the draws of the one before, and what it is to give and may cost."""

    before: Climbed
    problem: Problem
    generator: np.random.Generator
    wanted: facts.Wanted
    meter: Meter

    def found(self) -> tuple[Reweighted | None, str]:
        """The fit, or None and why there is none."""
        before, problem, wanted = self.before, self.problem, self.wanted
        is_dear = sum(stage.evaluations for stage in before.stages) > CHEAP
        found, number = self._by_draws(is_dear)
        way = "Draws of the fit before were reweighted to these arguments"
        if number == 0.0 and is_dear:
            found, number = self._by_proposal(found)
            way = "Draws of an approximation, made of the fit before, were reweighted"
        if number == 0.0:
            return None, f"its draws are too far away ({found.told})"
        chosen = resampled(found.weights, len(found.weights), self.generator)
        positions, values = found.positions[chosen], found.values[chosen]
        rounding = problem.epsilon * float(np.abs(values).max())
        program = replace(before.evidence.program, rounding=rounding)
        if against := levels.of_rounding(program):
            return None, against[0].rstrip(".").lower()
        evaluate = self.meter.of(problem.evaluate)
        if self._has_more_modes(evaluate, positions, values):
            return None, "a mode was found that its draws do not have"
        if flat_far_out(problem, evaluate, positions):
            return None, "far out the density does not fall"
        share = number / len(positions)
        told = f"{way}: {found.told}."
        if number < NEARLY * wanted.target_ess:
            told += (
                f" They are worth about {number:.0f} independent draws, fewer than the "
                f"{wanted.target_ess:.0f} that were asked for. Give refit a larger target_ess for "
                "more."
            )
        asked, correction = replace(wanted, exact=False), facts.Correction(0.0, share)
        evidence = facts.Evidence(program, asked, before.evidence.modes, correction)
        return Reweighted(problem, positions[:, None], None, evidence, told=told, values=values), ""

    def _by_draws(self, is_dear: bool) -> tuple[_Weighed, float]:
        """Draws of the fit before with weights, and how many independent ones they are worth.

        That is 0 where they are not good enough.
        """
        before, problem, wanted = self.before, self.problem, self.wanted
        number, chains, dim = before.positions.shape
        total, flat = number * chains, before.positions.reshape(-1, dim)
        effective = float(effective_number(before.positions).min())
        if chains == 1 and before.evidence.correction is not None:
            effective = total * before.evidence.correction.share
        order = self.generator.permutation(total)
        known = _values_before(before)
        taken, old, new = 0, np.zeros(0), np.zeros(0)
        evaluate, again = (self.meter.of(each.evaluate) for each in (problem, before.problem))

        def look(count: int) -> _Weighed:
            nonlocal taken, old, new
            rows = order[taken:count]
            if len(rows):
                own = again(flat[rows])[0] if known is None else known[rows]
                new = np.concatenate([new, evaluate(flat[rows])[0]])
                old = np.concatenate([old, own])
            taken = count
            ratios = np.where(np.isfinite(new), new - old, -np.inf)
            rounding = 4.0 * problem.epsilon * float(np.abs(old).max(initial=1.0))
            return _Weighed(flat[order[:count]], new, ratios, rounding)

        def worth(share: float, count: float) -> float:
            # Draws that depend on each other, of which a random part is taken: the variance of a
            # mean is that of all, and that of the choice.
            return share / (1.0 / effective + 1.0 / count - 1.0 / total)

        found = look(min(FIRST, total))
        most = worth(found.share, total)
        if found.is_good and most > CONTENT * wanted.target_ess:
            missing = found.share / min(wanted.target_ess, most) - 1.0 / effective + 1.0 / total
            found = look(max(taken, min(total, math.ceil(1.0 / max(missing, 1.0 / total)))))
            independent = worth(found.share, taken)
            if found.is_good and independent > CONTENT * wanted.target_ess:
                return found, independent
        if is_dear:
            found = look(max(taken, min(MOST, total)))
        return found, 0.0

    def _by_proposal(self, known: _Weighed) -> tuple[_Weighed, float]:
        """As :meth:`_by_draws`, of draws of a Normal or a mixture fitted to weighted draws."""
        modes, generator = self.before.evidence.modes, self.generator
        wanted, evaluate = self.wanted, self.meter.of(self.problem.evaluate)

        def drawn(proposal: Proposal, number: int) -> _Weighed:
            positions = proposal.draw(number, generator)
            values, _ = evaluate(positions)
            ratios = proposal.log_ratios(positions, values)
            return _Weighed(positions, values, ratios, known.rounding)

        least = EFFECTIVE + EFFECTIVE_PER_DIMENSION * self.problem.dim
        for _ in range(ROUNDS):
            rows = known.spread(least, generator)
            proposal = Proposal((normal_of(known.positions[rows]),), np.ones(1))
            if modes is not None and modes.number > 1:
                proposal = Proposal(*fitted(known.positions[rows], generator)[:2])
            known = drawn(proposal, JUDGED)
            if not known.is_good:
                continue
            missing = math.ceil(wanted.target_ess / known.share) - JUDGED
            known = known.joined(drawn(proposal, missing)) if missing > 0 else known
            independent = known.share * len(known.positions)
            if known.is_good and independent > CONTENT * wanted.target_ess:
                return known, independent
        return known, 0.0

    def _has_more_modes(self, evaluate: Evaluate, positions: Positions, values: Values) -> bool:
        """Whether paths from elsewhere find a mode of any mass that equally weighted draws lack."""
        generator, points = self.generator, self.meter.points(self.problem)
        modes, weights, _ = fitted(positions, generator)
        # No less than the log mass that the draws stand for: it is above by the Kullback-Leibler
        # divergence of their distribution from the mixture that was fitted to them.
        mass = float(np.mean(values - Proposal(modes, weights).log_density(positions)))
        near = points(PATHS // 4)
        reach = np.resize(FAR, PATHS // 4)[:, None] * positions.std(0)
        far = reach * generator.normal(size=(len(reach), positions.shape[1]))
        mean = positions.mean(0)
        # On both sides of 0 and of the mean, so that chance does not leave one out.
        starts = np.concatenate([near, -near, mean + far, mean - far])
        found, _ = more_modes(evaluate, starts, modes, generator, self.problem.epsilon)
        return any(mode.log_mass > mass + math.log(LEAST_MASS) for mode in found)


def _values_before(before: Climbed) -> Values | None:
    """Log densities at all draws of a fit, where they were kept."""
    if before.sampled is not None:
        return before.sampled.window.values.ravel()
    return before.values if isinstance(before, Reweighted) else None
