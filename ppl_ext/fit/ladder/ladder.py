"""The ladder of a fit: a start, corrected draws, then chains until they agree.

Each rung costs more than the one before, and its draws can be trusted further. How far to climb is
decided by :mod:`ppl_ext.fit.verdict.policy`; here the work is done. A mode that is found on the way
sends the fit back to corrected draws, so that it is among those that are drawn from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
from jaxtyping import Float

from ppl_ext.chains.coupling import Coupled
from ppl_ext.chains.sampler import Sampled
from ppl_ext.errors import ArgumentError
from ppl_ext.fit.ladder.by_chains import run_chains
from ppl_ext.fit.ladder.centring import neck_among
from ppl_ext.fit.ladder.chain_figures import chained_of, endless, flat_far_out, saturated
from ppl_ext.fit.ladder.climbed import Climbed, staged
from ppl_ext.fit.ladder.corrected import (
    better_approximations,
    first_approximation,
    proposed_weights,
    resampled,
)
from ppl_ext.fit.ladder.modes import MORE, Search, Watched, masses, unexplained
from ppl_ext.fit.ladder.written import (
    begin,
    known_of,
    look_at_slopes,
    modes_in_words,
    words_of_form,
)
from ppl_ext.fit.problem.problem import Meter, Problem
from ppl_ext.fit.verdict import agreement, facts, labels, policy
from ppl_ext.fit.verdict.verdict import Stage
from ppl_ext.start.paths import Evaluate, SpentError
from ppl_ext.start.search import MOST_SEARCHED
from ppl_ext.start.start import Start
from ppl_ext.statistics.convergence import convergence

#: How often draws are corrected and chains run at most. They are again where they met a mode that
#: none of them started from.
TURNS = 3
#: Pareto k-hat above which the search for modes goes on: the Normals may lack one.
DOUBTFUL = 0.3


@np.errstate(all="ignore")
def climb(
    written: Problem,
    others: Iterator[Problem],
    generator: np.random.Generator,
    wanted: facts.Wanted,
    meter: Meter,
) -> Climbed:
    """Fit a program as it is written, or in one of the other ways to write it.

    Where draws of the program as it is written lie in a neck, it is fitted anew in the other way.
    The Normals by which a way was chosen may lie far from the mass.

    Raises
    ------
    ArgumentError
        The budget buys no start, or nothing can fit sites of as many parameters.
    """
    climbed = _climb(written, others, generator, wanted, meter, [])
    other, stages = climbed.problem.other_form, climbed.stages
    if other is not None and policy.is_strained(climbed.evidence.neck):
        with suppress(ArgumentError):  # The budget buys no start.
            again = _climb(written, iter([other]), generator, wanted, meter, stages, has_neck=True)
            # As written again where the other way failed: then the neck stands.
            return climbed if again.problem.name == written.name else again
    return climbed


def _climb(
    written: Problem,
    others: Iterator[Problem],
    generator: np.random.Generator,
    wanted: facts.Wanted,
    meter: Meter,
    stages: list[Stage],
    *,
    has_neck: bool = False,
) -> Climbed:
    """Fit a program in one of the ways to write it, not as written where that has a neck.

    Raises
    ------
    ArgumentError
        As of :func:`climb`.
    """
    stage = partial(staged, stages, meter)
    timely = partial(meter.of, timely=True)
    problem, start, dropped = written, None, list[str]()
    if problem.dim <= MOST_SEARCHED:
        with stage("start") as notes:
            look_at_slopes(problem, meter)
            problem, start, program = begin(
                written, others, generator, meter, dropped, has_neck=has_neck
            )
            notes.append(f"{words_of_form(problem)}{modes_in_words(len(start.modes))}")
    else:
        program = known_of(problem, None, meter)
    evidence = facts.Evidence(program, wanted, dropped=tuple(dropped), left=meter.left)
    if policy.next_rung(evidence) == "all rows":
        assert start is not None
        with stage("all rows") as notes:
            problem, start, program = begin(
                problem.with_all_rows(start.draw), iter(()), generator, meter, []
            )
            notes.append(modes_in_words(len(start.modes)))
        evidence = replace(evidence, program=program, left=meter.left)
    if policy.next_rung(evidence) == "engine":
        assert problem.approximate is not None
        with stage("engine") as notes:
            found = problem.approximate(start, meter)
            notes.append(found.name)
        evidence = replace(evidence, engine=found.engine)
        return Climbed(problem, found.positions[:, None], None, evidence, stages)
    if start is None:
        raise ArgumentError(
            f"Expected sites that a search, chains or a guide can take, found {problem.dim:,} "
            "parameters, with sites inside a subsampled plate, whose batches no guide takes. "
            "Write the plate without subsample_size=."
        )
    if policy.next_rung(evidence) == "end":
        alone = start.draw(policy.DRAWS, generator.integers(2**32, size=4).tolist())
        return Climbed(problem, alone[:, None], None, evidence, stages)
    evaluate = meter.of(problem.evaluate)
    search: Search | None = None
    if policy.chains_refused(evidence) is None:
        with stage("modes") as notes:
            counted = replace(problem, starting_points=meter.points(problem))
            search = Search(counted, start.modes, generator)
            left = policy.DRAWS + policy.LEAST_CHAINS
            search.go_on(timely(problem.evaluate, left))
            evidence = replace(evidence, modes=_modes(search, notes, generator))
    sampled: Sampled | None = None
    coupled: Coupled | None = None
    for turn in range(TURNS):
        symmetry = None if search is None else search.symmetry
        start, found_more = start if search is None else search.start, False
        with stage("corrected draws") as notes:
            left = policy.DRAWS + policy.LEAST_CHAINS * (policy.chains_refused(evidence) is None)
            limited = timely(problem.evaluate, left)
            rounding = evidence.program.rounding
            begun = first_approximation(
                evaluate, limited, problem, start, symmetry, rounding, generator
            )
            proposal, correction = begun.proposal, begun.correction
            if proposal.given is not None:
                if search is not None:
                    search.joined += start.modes[1:]
                    start = search.start
                names = ", ".join(problem.names_of(proposal.given.which))
                notes.append(f"Normals given {names} at {len(proposal.given.places)} places")
            notes.append(_told_of_weights(correction))
            serves = policy.is_reliable(correction)
            strain = 1.0 if serves else problem.strain
            evidence = replace(evidence, program=replace(evidence.program, strain=strain))
            may_adapt = policy.may_adapt(correction, proposal.free)
            # Where weights of a single Normal are reliable, a mixture tells first whether its shape
            # alone is what k-hat is of.
            is_late = may_adapt and correction.khat < policy.FAR_KHAT and len(start.modes) == 1
            if search is not None:
                limited = timely(problem.evaluate, policy.LEAST_CHAINS)
                found_more = search.look(
                    limited, unexplained(begun.drawn.positions, begun.log_ratios)
                )
                if correction.khat > DOUBTFUL and not (is_late or policy.is_close(correction)):
                    found_more |= search.go_on(limited, MORE)
                modes = _modes(search, notes, generator)
                if not found_more and modes.number > 1 and correction.khat < policy.FAR_KHAT:
                    shares, errors = masses(proposal, begun.drawn.positions, begun.log_ratios)
                    weighted = replace(proposal, weights=proposed_weights(shares))
                    begun = replace(begun, weighted=weighted)
                    modes = replace(
                        modes,
                        shares=tuple(map(float, shares)),
                        share_errors=tuple(map(float, errors)),
                    )
                evidence = replace(evidence, modes=modes)
                if found_more and turn < TURNS - 1:
                    continue
        if may_adapt:
            with stage("mixtures") as notes:
                limited = timely(problem.evaluate, policy.LEAST_CHAINS)
                with suppress(SpentError):
                    for better in better_approximations(
                        limited, begun, evidence.program, generator, symmetry
                    ):
                        begun = better
                        notes[:] = [_told_of_weights(begun.correction)]
                # Also where mixtures took what was left: then the search says that it was cut.
                if search is not None:
                    points = unexplained(begun.drawn.positions, begun.log_ratios)
                    finds = search.look(limited, points)
                    if is_late and begun.correction.khat > DOUBTFUL:
                        finds |= search.go_on(limited, MORE)
                    if finds or is_late:
                        evidence = replace(evidence, modes=_modes(search, notes, generator))
                    if finds and turn < TURNS - 1:
                        continue
                    found_more |= finds
        if found_more and evidence.modes is not None:
            # On the last turn, so that nothing starts in it.
            evidence = replace(evidence, modes=replace(evidence.modes, left=True))
        evidence = replace(evidence, correction=begun.correction, left=meter.left)
        if not serves and problem.other_form is not None:
            near = begun.drawn.positions[resampled(begun.weights, policy.DRAWS, generator)]
            evidence = _neck(evidence, problem, near, meter)
            if policy.is_strained(evidence.neck):
                sampled = None
                break
        if policy.next_rung(evidence) != "chains":
            break
        limited = meter.of(problem.evaluate, leaves=evidence.program.far_out)
        watched = Watched.beside(limited, search, start.modes)
        sampled, coupled = run_chains(
            problem, evidence.program, begun, symmetry, watched, wanted, generator, meter, stage
        )
        if sampled is not None:
            sampled.kernel.evaluate = evaluate
        if search is None or evidence.modes is None:
            break
        left = watched.has_found() or evidence.modes.left
        evidence = replace(evidence, modes=replace(evidence.modes, left=left))
        if not left:
            break
    if sampled is not None:
        evidence = replace(evidence, coupled=coupled)
        if not serves:
            evidence = _neck(evidence, problem, sampled.draws.reshape(-1, problem.dim), meter)
        climbed = Climbed(problem, sampled.draws, sampled, evidence, stages, symmetry)
        return with_chains(climbed, sampled)
    evidence = replace(evidence, left=meter.left)
    rows = begun.drawn.positions[resampled(begun.weights, policy.DRAWS, generator)][:, None]
    if symmetry is not None:
        rows = symmetry.shuffled(rows)
    evidence = _far_out(evidence, problem, evaluate, rows)
    return Climbed(problem, rows, None, evidence, stages, symmetry)


def _told_of_weights(correction: facts.Correction) -> str:
    return f"k-hat {correction.khat:.2f}, weights worth {correction.share:.0%} of the draws"


def _modes(search: Search, notes: list[str], generator: np.random.Generator) -> facts.Modes:
    """What a search found, noted as well, with sites whose labels change places between modes."""
    found = search.found
    notes.append(f"{modes_in_words(found.number)} after {found.paths} searches")
    if found.number > 1 and search.symmetry is None:
        return replace(found, exchanged=_labels(search.problem, search.start, generator))
    return found


def _neck(
    evidence: facts.Evidence, problem: Problem, draws: Float[np.ndarray, "S D"], meter: Meter
) -> facts.Evidence:
    """The evidence with how curvatures change over draws, where another form may be better."""
    with suppress(SpentError):
        if problem.other_form is not None:
            factor = neck_among(problem, problem.other_form.latents, draws, meter)
            evidence = replace(evidence, neck=factor)
    return evidence


def _far_out(
    evidence: facts.Evidence,
    problem: Problem,
    evaluate: Evaluate,
    draws: Float[np.ndarray, "N M D"],
) -> facts.Evidence:
    """The evidence with sites along which the density does not fall far out of the draws."""
    with suppress(SpentError):  # What was found of an earlier set of draws then stands.
        flat = flat_far_out(problem, evaluate, draws.reshape(-1, problem.dim))
        evidence = replace(evidence, flat=flat)
    return evidence


def with_chains(climbed: Climbed, sampled: Sampled) -> Climbed:
    """The same climb with these chains as its draws, and with the chains' figures."""
    problem, symmetry = climbed.problem, climbed.symmetry
    positions = sampled.draws if symmetry is None else symmetry.shuffled(sampled.draws)
    found = replace(climbed, positions=positions, sampled=sampled, stages=list(climbed.stages))
    values = {name: np.asarray(value) for name, value in found.draws.items()}
    figures = convergence(sampled.kernel.ordered(sampled.draws))
    chained = chained_of(problem, sampled.window, figures, symmetry, climbed.evidence.wanted)
    near_edges = saturated(values, problem.target.layout.families)
    chained = replace(chained, endless=endless(values), saturated=near_edges)
    evidence = _far_out(climbed.evidence, problem, sampled.kernel.evaluate, sampled.draws)
    modes = evidence.modes
    if modes is not None and modes.exchanged:
        places = dict(modes.exchanged)
        try:
            own = labels.orders(values, places, _density_of_sites(problem, sampled))
        except SpentError:
            own = labels.orders(values, places, None)
        evidence = replace(evidence, modes=replace(modes, orders=own))
    before = climbed.evidence.chains
    rested = evidence.rested or (before is not None and agreement.enough(before, evidence.wanted))
    found.evidence = replace(evidence, chains=chained, rested=rested)
    return found


def _density_of_sites(
    problem: Problem, sampled: Sampled
) -> Callable[[labels.Values], Float[np.ndarray, " S"]] | None:
    """Log densities by values of the sites as written, whose labels can then be exchanged.

    None where the program that is evaluated has other sites, some of which are non-centred.
    """
    if problem.maps is None or problem.latents:
        return None
    _, back = problem.maps

    def log_density(values: labels.Values) -> Float[np.ndarray, " S"]:
        positions = back(values)
        finite = np.isfinite(positions).all(1)
        found = np.full(len(positions), -np.inf)
        if finite.any():
            found[finite], _ = sampled.kernel.evaluate(positions[finite])
        return found

    return log_density


def _labels(
    problem: Problem, start: Start, generator: np.random.Generator
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Sites whose entries change places from one mode to another, and where."""
    noise = generator.normal(size=(labels.DRAWS, problem.dim))
    values = [problem.values(mode.at(noise)) for mode in start.modes]
    found = labels.exchanged(
        [{name: np.asarray(value) for name, value in each.items()} for each in values]
    )
    return tuple(found.items())
