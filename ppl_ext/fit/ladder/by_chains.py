"""Chains until they agree, and pairs of chains that tell how far they are from their limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial

import numpy as np
from jaxtyping import Float

from ppl_ext.chains.adaptive import fitted_to
from ppl_ext.chains.coupling import Coupled, Pairs
from ppl_ext.chains.jumps import PAIRS as JUMP_PAIRS
from ppl_ext.chains.jumps import jump, jumps_from
from ppl_ext.chains.sampler import Known, Sampled, Window, go_on, sample
from ppl_ext.chains.symmetry import Symmetry
from ppl_ext.fit.ladder.chain_figures import chained_of
from ppl_ext.fit.ladder.corrected import Approximation
from ppl_ext.fit.ladder.modes import Watched
from ppl_ext.fit.problem.problem import Meter, Positions, Problem
from ppl_ext.fit.verdict import agreement, facts, policy
from ppl_ext.start.paths import SpentError
from ppl_ext.start.search import near_zero
from ppl_ext.start.start import Start
from ppl_ext.statistics.convergence import Convergence, convergence
from ppl_ext.statistics.effective import weighted_number

#: Chains side by side.
CHAINS = 16
#: Transitions that are kept of each chain at least. A part with a fiftieth of the mass, which no
#: jump proposes, is then entered by some of the trajectories.
LEAST_TRANSITIONS = 36
#: Spread of the places around a mode where chains of pairs start, in its standard deviations. They
#: lie far out, since pairs are to tell whether chains forget any start.
APART = 3.0
#: Pairs of chains with trajectories: where so many have all met, they bound the distance by 0.09.
PAIRS = 32
#: Evaluations that pairs may take, as a share of those of the fit before them, and later of those
#: that the chains took since.
PAIRS_SHARE = 0.2
#: Share of the kept transitions that are left out again at most, for the chains to forget where
#: they were when tuning ended.
FORGOTTEN = 0.5


def run_chains(
    problem: Problem,
    program: facts.Program,
    begun: Approximation,
    symmetry: Symmetry | None,
    watched: Watched,
    wanted: facts.Wanted,
    generator: np.random.Generator,
    meter: Meter,
    stage: Callable[[str], AbstractContextManager[list[str]]],
) -> tuple[Sampled | None, Coupled | None]:
    """Chains that jump alone where that is enough, else with trajectories; and pairs of chains.

    They end early where a mode was met that none of them started from.
    """
    began, correction = time.perf_counter(), begun.correction
    is_enough = partial(_is_enough, problem, program, symmetry, wanted, correction, meter, began)

    def may_go_on() -> bool:
        return meter.allows() and not watched.has_found()

    sampled: Sampled | None = None
    coupled: Coupled | None = None
    drawn, log_ratios = begun.drawn, begun.log_ratios
    if policy.is_close(begun.correction) and policy.covers(program, begun.first):
        with stage("jumps") as notes, suppress(SpentError):
            # Where the density is not finite the first jump is taken, so that any point will do.
            points = partial(near_zero, generator, dim=problem.dim)
            starts = _apart(points, begun.start, JUMP_PAIRS, generator, symmetry)
            coupled = jumps_from(
                *(starts, watched, begun.proposal, log_ratios, generator, symmetry)
            )
            if agreement.is_bounded(coupled):
                own = jump(
                    *(watched, begun.proposal, drawn, log_ratios, CHAINS, coupled.transitions),
                    *(generator, symmetry),
                    is_mixture=begun.metric is not None,
                )
                most = int(agreement.MOST_JUMPS * wanted.target_ess)
                has_tails = partial(is_enough, tail_share=agreement.JUMPS_TAIL_SHARE)
                if not _are(has_tails, own):
                    _aim(own, begun, program, generator)
                own = _longer(own, has_tails, most, generator, meter, len(own.draws) // 8)
                sampled = own if has_tails(convergence(own.draws), own.window) else None
            notes.append(coupled.note)
    if sampled is not None or not may_go_on():
        return sampled, coupled
    with stage("chains") as notes, suppress(SpentError):
        weights = _softened(begun.weights, log_ratios)
        chosen = generator.choice(len(weights), CHAINS, p=weights)
        known: Known | None = None
        if begun.weighted is begun.proposal:
            # A draw at which a chain starts is not proposed to the chains as a jump.
            others = np.setdiff1d(np.arange(len(weights)), chosen)
            known = Known(drawn.rows(others), log_ratios[others])
        sampled = sample(
            *(watched, begun.weighted, drawn.positions[chosen], generator, is_enough, may_go_on),
            symmetry=symmetry,
            known=known,
            metric=begun.metric,
            may_bend=policy.may_bend(program, has_labels=symmetry is not None),
        )
        notes.append(f"{_told_of_draws(sampled)}, from starts at the approximation")
    if sampled is None or sampled.kernel.goes_nowhere or not may_go_on():
        return sampled, coupled
    pairs, before = None, meter.evaluations
    while True:
        most = min(meter.budget, meter.evaluations + int(PAIRS_SHARE * before))
        with stage("pairs of chains") as notes:
            pairs, coupled = _coupled(problem, begun.start, sampled, generator, meter, most, pairs)
            notes.append(coupled.note)
        is_bounded = agreement.is_bounded(coupled)
        is_done = partial(is_enough, is_alone=not is_bounded)
        if is_bounded or pairs is None or _are(is_done, sampled) or not may_go_on():
            break
        # Without a bound the chains would have to agree more closely. It takes less to let pairs
        # that have not met go on, for which there must be more transitions.
        before, number = meter.evaluations, len(sampled.draws)
        with stage("more chains") as notes:
            sampled = go_on(sampled, number // 2, generator, meter.allows)
            notes.append(_told_of_draws(sampled))
        before = meter.evaluations - before
        if len(sampled.draws) == number:
            break  # What is left buys no transition.
    number = len(sampled.draws)
    if coupled.bound is not None:
        sampled = sampled.after(coupled.transitions)
        # What was left out has looked for parts that jumps do not propose as well.
        is_done = partial(is_done, least=LEAST_TRANSITIONS - coupled.transitions)
    if not (watched.found or _are(is_done, sampled)):
        # Chains that were enough before transitions were left out lack little more than those.
        missing = max(number - len(sampled.draws), number // 8) if is_bounded else None
        with stage("more chains") as notes:
            sampled = _longer(sampled, is_done, None, generator, meter, missing)
            notes.append(_told_of_draws(sampled))
    return sampled, coupled


def _aim(
    sampled: Sampled,
    begun: Approximation,
    program: facts.Program,
    generator: np.random.Generator,
) -> None:
    """Let chains of jumps go on with a mixture that is fitted to all draws so far.

    The chains have used up the draws that were known, and their kernel changes this once. Each of
    both kernels leaves the density as it is. The bound is on the distance after the first
    transitions: the second kernel is fitted to draws at which the chains are, among others, and
    pairs do not tell what that adds.
    """
    kernel = sampled.kernel
    if not policy.may_aim(float(sampled.window.jumped.mean()), kernel.proposal.free):
        return
    may_bend = policy.may_bend(program, has_labels=kernel.symmetry is not None)
    if (found := fitted_to(begun.known, generator, may_bend=may_bend)) is not None:
        kernel.propose_from(*found)


def _are(is_enough: Callable[[Convergence, Window], bool], sampled: Sampled) -> bool:
    """Whether chains are enough."""
    return is_enough(convergence(sampled.kernel.ordered(sampled.draws)), sampled.window)


def _told_of_draws(sampled: Sampled) -> str:
    number, chains = sampled.draws.shape[:2]
    return f"{number * chains:,} draws of {chains} chains"


def _is_enough(
    problem: Problem,
    program: facts.Program,
    symmetry: Symmetry | None,
    wanted: facts.Wanted,
    correction: facts.Correction,
    meter: Meter,
    began: float,
    figures: Convergence,
    window: Window,
    *,
    is_alone: bool = False,
    tail_share: float = agreement.TAIL_SHARE,
    least: int = LEAST_TRANSITIONS,
) -> bool:
    """Whether chains have done what was asked, or all that is asked of those that do not meet."""
    if window.transitions < least:
        return False
    chained = chained_of(problem, window, figures, symmetry, wanted)
    meter.shows(chained.ess_bulk, wanted.target_ess, time.perf_counter() - began)
    is_heavy = agreement.is_doubtful(chained, correction, program.strain)
    is_far = policy.lacks_approximation(correction)
    return agreement.enough(
        chained, wanted, is_alone=is_alone, is_heavy=is_heavy, is_far=is_far, tail_share=tail_share
    )


def _longer(
    sampled: Sampled,
    is_enough: Callable[[Convergence, Window], bool],
    most: int | None,
    generator: np.random.Generator,
    meter: Meter,
    step: int | None = None,
) -> Sampled:
    """Chains that go on until they are enough, or so many draws, or the end of the budget.

    They go on for a ``step`` of so many draws each time, or for half as many as there are; for an
    eighth of these at least, since the figures of all draws are computed anew each time.
    """
    while not _are(is_enough, sampled):
        number = len(sampled.draws)
        if (most is not None and CHAINS * number > most) or not meter.allows():
            break
        sampled = go_on(sampled, max(step or number // 2, number // 8), generator, meter.allows)
        if len(sampled.draws) == number:
            break  # What is left buys no transition.
    return sampled


def _coupled(
    problem: Problem,
    start: Start,
    sampled: Sampled,
    generator: np.random.Generator,
    meter: Meter,
    most: int,
    pairs: Pairs | None = None,
) -> tuple[Pairs | None, Coupled]:
    """Pairs of chains with the kernel that was tuned, new ones or those that go on.

    They end where so many evaluations were made in all. None where there can be no pairs.
    """
    if pairs is None:
        accepted = float(sampled.window.jumped.mean())
        if accepted < agreement.LEAST_JUMPS:
            told = f"jumps, in which chains meet, are seldom taken ({accepted:.1%})"
            return None, Coupled(0, reason=told)
        if most - meter.evaluations < 4 * PAIRS or not meter.allows():
            told = "the budget ended before there were pairs of chains"
            return None, Coupled(0, reason=told)
        starts = _apart(meter.points(problem), start, PAIRS, generator, sampled.kernel.symmetry)
        pairs = Pairs(sampled.kernel, starts, generator)
    # The bound is on the chains' distance from their limit after so many transitions with this
    # kernel, which does not change any more. Transitions that tuned it do not count.
    return pairs, pairs.go_on(
        max(1, int(FORGOTTEN * sampled.window.transitions)),
        lambda: meter.evaluations < most and meter.allows(),
    )


def _apart(
    starting_points: Callable[[int], Positions],
    start: Start,
    pairs: int,
    generator: np.random.Generator,
    symmetry: Symmetry | None,
) -> tuple[Float[np.ndarray, "P D"], Float[np.ndarray, "P D"]]:
    """Where the chains of pairs start: half where searches do, half around the modes, far out."""
    number, dim = 2 * pairs, len(start.mean)
    points = starting_points(pairs)
    which = generator.choice(len(start.modes), number - pairs, p=start.weights)
    noise = APART * generator.normal(size=(len(which), dim))
    far = [start.modes[k].at(row[None])[0] for k, row in zip(which, noise, strict=True)]
    mixed = generator.permutation(np.concatenate([points, np.stack(far)]))
    if symmetry is not None:
        mixed = symmetry.ordered(mixed)
    return mixed[:pairs], mixed[pairs:]


def _softened(
    weights: Float[np.ndarray, " S"], log_ratios: Float[np.ndarray, " S"]
) -> Float[np.ndarray, " S"]:
    """Weights by which the chains' starts are chosen among the draws.

    They are evened out until four times as many draws as there are chains count, since else several
    chains would start at one draw.
    """
    for power in (1.0, 0.5, 0.25, 0.1):
        soft = np.power(weights, power)
        soft = np.where(np.isneginf(log_ratios), 0.0, soft)
        if soft.sum() > 0.0 and weighted_number(soft) >= 4 * CHAINS:
            return soft / soft.sum()
    finite = ~np.isneginf(log_ratios)
    flat = finite.astype(float) if finite.any() else np.ones(len(weights))
    return flat / flat.sum()
