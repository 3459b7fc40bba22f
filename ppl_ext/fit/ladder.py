"""The ladder: a start, corrected draws, chains until they agree; and what was found on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Float

from ppl_ext.chains.adaptive import adapted
from ppl_ext.chains.convergence import Convergence, convergence
from ppl_ext.chains.coupling import Coupled, Pairs
from ppl_ext.chains.hamiltonian import Chains, Factor
from ppl_ext.chains.jumps import PAIRS as JUMP_PAIRS
from ppl_ext.chains.jumps import jump, jumps_from
from ppl_ext.chains.proposal import Proposal, drawn_from
from ppl_ext.chains.sampler import Known, Sampled, Window, go_on, sample
from ppl_ext.chains.symmetry import Symmetry, ordered_values
from ppl_ext.diagnostics.importance import LogRatios, pareto_khat
from ppl_ext.errors import ArgumentError
from ppl_ext.fit import labels, policy
from ppl_ext.fit.centring import centring_of, has_neck
from ppl_ext.fit.chain_figures import chained_of, cost_far_out, endless, flat_far_out
from ppl_ext.fit.modes import LEAST_MASS, LEAST_WEIGHT, MORE, Search, Watched, masses, unexplained
from ppl_ext.fit.problem import Meter, Positions, Problem, timed
from ppl_ext.fit.verdict import STAGES, Stage, Verdict
from ppl_ext.start.find import find
from ppl_ext.start.paths import Evaluate, SpentError
from ppl_ext.start.search import MOST_SEARCHED
from ppl_ext.start.start import Mode, Start
from ppl_ext.statistics.effective import weighted_number
from ppl_ext.target.noncentred import difference, points_around
from ppl_ext.witnesses.slopes import check_slopes

#: Chains side by side, and the fewest transitions that are kept of each: a part with a fiftieth of
#: the mass, which no jump proposes, is entered by some of so many trajectories.
CHAINS, LEAST_TRANSITIONS = 16, 36
#: How often chains run, where they met a mode that none of them started from; Pareto k-hat from
#: which on the search for modes goes on; and up to which importance weights tell modes' masses.
TURNS, DOUBTFUL, SURE = 3, 0.3, 0.7
#: How far from a mode pairs of chains start, in its standard deviations; pairs of chains with
#: trajectories, and their evaluations as a share of those of the fit before.
APART, PAIRS, PAIRS_SHARE = 3.0, 32, 0.2
#: Share of the transitions that are kept which are left out at most, for the chains to forget where
#: they were when tuning ended.
FORGOTTEN = 0.5
#: Nats of difference between bounds from which on a way to write the program is the better one.
BETTER = 0.5
#: Centring of an entry up to which a program that could stay as written has too few data for it.
FEW_DATA = 0.3


@dataclass
class Climbed:
    """Where a fit ended.

    Attributes
    ----------
    problem : Problem
        The way to write the program that was chosen.
    positions : array (N, M, D)
        Equally weighted draws on the unconstrained space, N of each of M chains.
    sampled : Sampled or None
        The chains, to go on.
    evidence : Evidence
    stages : list of Stage
    symmetry : Symmetry, optional
        Labels that can be exchanged; the draws have them in random order.
    """

    problem: Problem
    positions: Float[np.ndarray, "N M D"]
    sampled: Sampled | None
    evidence: policy.Evidence
    stages: list[Stage] = field(default_factory=list)
    symmetry: Symmetry | None = None

    @cached_property
    def draws(self) -> dict[str, Any]:
        """The sites as written, chain by chain as the hosts' MCMC gives them."""
        flat = self.positions.transpose(1, 0, 2).reshape(-1, self.positions.shape[2])
        return self.problem.values(flat)

    @cached_property
    def ordered_draws(self) -> dict[str, Any]:
        """The same with labels that can be exchanged in order, as NumPy's arrays."""
        return self.ordered(self.draws)

    def ordered(self, draws: Mapping[str, Any]) -> dict[str, Any]:
        """Draws of the sites as written with labels that can be exchanged in order."""
        if self.symmetry is None:
            return dict(draws)
        values = {name: np.asarray(value) for name, value in draws.items()}
        return ordered_values(self.symmetry.as_written, values)

    @property
    def verdict(self) -> Verdict:
        """What the draws are worth."""
        level, reasons = policy.judge(self.evidence)
        if self.problem.name != "as written":
            reasons = (*reasons, f"Fitted {self.problem.name}; draws are of the sites as written.")
        coupled = self.evidence.coupled
        bound = None if coupled is None or level == "not trusted" else coupled.bound
        return Verdict(level, reasons, {}, tuple(self.stages), total_variation=bound)


@contextmanager
def staged(
    stages: list[Stage], meter: Meter, name: str, shown: str | None = None
) -> Iterator[list[str]]:
    """Add a part of the work to the stages, with what is noted on the way.

    The progress bar shows its name, or what is to be ``shown``.
    """
    before, started, notes = meter.evaluations, time.perf_counter(), list[str]()
    if meter.bar is not None:
        meter.bar.set_description_str(shown or STAGES.get(name, name))
    yield notes
    spent = meter.evaluations - before
    stages.append(Stage(name, spent, time.perf_counter() - started, "; ".join(notes)))


@np.errstate(all="ignore")
def climb(
    written: Problem,
    others: Iterator[Problem],
    generator: np.random.Generator,
    wanted: policy.Wanted,
    meter: Meter,
) -> Climbed:
    """Fit a program as it is written, or in one of the other ways to write it.

    Raises
    ------
    ArgumentError
        The budget buys no start.
    """
    stages: list[Stage] = []

    stage = partial(staged, stages, meter)
    problem, start, dropped = written, None, list[str]()
    if problem.dim <= MOST_SEARCHED:
        with stage("start") as notes:
            look_at_slopes(problem, meter)
            problem, start, program = _begun(written, others, generator, meter, dropped)
            notes.append(f"{_written(problem)}{_counted(len(start.modes))}")
    else:
        program = _program(problem, None, meter)
    evidence = policy.Evidence(program, wanted, dropped=tuple(dropped), left=meter.left)
    if policy.next_rung(evidence) == "all rows":
        assert start is not None
        with stage("all rows") as notes:
            problem, start, program = _begun(
                problem.with_all_rows(start.draw), iter(()), generator, meter, []
            )
            notes.append(_counted(len(start.modes)))
        evidence = replace(evidence, program=program, left=meter.left)
    if policy.next_rung(evidence) == "engine":
        assert problem.approximate is not None
        with stage("engine") as notes:
            found = problem.approximate(start, meter)
            notes.append(found.name)
        evidence = replace(evidence, engine=found.engine)
        return Climbed(problem, found.positions[:, None], None, evidence, stages)
    assert start is not None
    if policy.next_rung(evidence) == "end":
        alone = start.draw(policy.DRAWS, generator.integers(2**32, size=4).tolist())
        return Climbed(problem, alone[:, None], None, evidence, stages)
    evaluate = meter.of(problem.evaluate)
    search: Search | None = None
    if policy.chains_refused(evidence) is None:
        with stage("modes") as notes:
            counted = replace(problem, starting_points=meter.points(problem))
            search = Search(counted, start.modes, generator)
            search.go_on(meter.of(problem.evaluate, leaves=policy.DRAWS + policy.LEAST_CHAINS))
            evidence = replace(evidence, modes=_modes(search, notes, generator))
    sampled: Sampled | None = None
    coupled: Coupled | None = None
    for turn in range(TURNS):
        symmetry = None if search is None else search.symmetry
        start = start if search is None else search.start
        with stage("corrected draws") as notes:
            proposal = Proposal(start.modes, _proposed(start.weights))
            drawn, log_ratios = drawn_from(proposal, policy.DRAWS, evaluate, generator, symmetry)
            correction, weights = _correction(drawn, log_ratios, evidence.program.rounding)
            notes.append(
                f"k-hat {correction.khat:.2f}, weights worth {correction.share:.0%} of the draws"
            )
            weighted = proposal
            if search is not None:
                limited = meter.of(problem.evaluate, leaves=policy.LEAST_CHAINS)
                found_more = search.look(limited, unexplained(drawn.positions, log_ratios))
                if correction.khat > DOUBTFUL:
                    found_more |= search.go_on(limited, MORE)
                modes = _modes(search, notes, generator)
                if not found_more and modes.number > 1 and correction.khat < SURE:
                    shares, errors = masses(proposal, drawn.positions, log_ratios)
                    weighted = replace(proposal, weights=_proposed(shares))
                    modes = replace(
                        modes,
                        shares=tuple(map(float, shares)),
                        share_errors=tuple(map(float, errors)),
                    )
                evidence = replace(evidence, modes=modes)
                if found_more and turn < TURNS - 1:
                    continue
            begun = _Approximation(
                start, weighted, proposal, drawn, log_ratios, correction, weights
            )
        if policy.may_adapt(correction, problem.dim):
            with stage("mixtures") as notes, suppress(SpentError):
                limited = meter.of(problem.evaluate, leaves=policy.LEAST_CHAINS)
                for better in _adapted(limited, begun, evidence.program, generator, symmetry):
                    begun = better
                    notes[:] = [
                        f"k-hat {begun.correction.khat:.2f}, weights worth "
                        f"{begun.correction.share:.0%} of the draws"
                    ]
                if search is not None and search.look(
                    limited, unexplained(begun.drawn.positions, begun.log_ratios)
                ):
                    evidence = replace(evidence, modes=_modes(search, notes, generator))
                    if turn < TURNS - 1:
                        continue
        evidence = replace(evidence, correction=begun.correction, left=meter.left)
        if policy.next_rung(evidence) != "chains":
            break
        limited = meter.of(problem.evaluate, leaves=evidence.program.far_out)
        watched = Watched.beside(limited, search, start.modes)
        sampled, coupled = _by_chains(
            problem, evidence.program, begun, symmetry, watched, wanted, generator, meter, stage
        )
        if sampled is not None:
            sampled.kernel.evaluate = evaluate
        if search is None or evidence.modes is None:
            break
        left = watched.has_found()
        evidence = replace(evidence, modes=replace(evidence.modes, left=left))
        if not left:
            break
    if sampled is not None:
        evidence = replace(evidence, coupled=coupled)
        climbed = Climbed(problem, sampled.draws, sampled, evidence, stages, symmetry)
        return with_chains(climbed, sampled)
    evidence = replace(evidence, left=meter.left)
    rows = begun.drawn.positions[resampled(begun.weights, policy.DRAWS, generator)][:, None]
    if symmetry is not None:
        rows = symmetry.shuffled(rows)
    evidence = _far_out(evidence, problem, evaluate, rows)
    return Climbed(problem, rows, None, evidence, stages, symmetry)


def look_at_slopes(problem: Problem, meter: Meter) -> None:
    """See that scores are slopes, as far as the budget goes: who spends the rest says what it buys.

    Raises
    ------
    ModelCheckError
        They are not.
    """
    with suppress(SpentError):
        check_slopes(meter.of(problem.evaluate), problem.dim, problem.epsilon)


@dataclass(frozen=True)
class _Approximation:
    """What chains begin with: draws of a proposal (S,), with logs of their importance ratios.

    The proposal is of Normals at the modes, or a mixture fitted to weighted draws, with a metric.
    ``weighted`` is the same with what the weights say of the modes' shares.
    """

    start: Start
    weighted: Proposal
    proposal: Proposal
    drawn: Chains
    log_ratios: Float[np.ndarray, " S"]
    correction: policy.Correction
    weights: Float[np.ndarray, " S"]
    metric: Factor | None = None


def _adapted(
    evaluate: Evaluate,
    begun: _Approximation,
    program: policy.Program,
    generator: np.random.Generator,
    symmetry: Symmetry | None,
) -> Iterator[_Approximation]:
    """Better approximations in turn, by mixtures fitted to weighted draws."""
    best = begun.correction
    found = adapted(
        *(evaluate, begun.proposal, begun.drawn, begun.log_ratios, generator, symmetry),
        may_bend=policy.may_bend(program, has_labels=symmetry is not None),
    )
    for number, one in enumerate(found, 1):
        correction, weights = _correction(one.drawn, one.log_ratios, program.rounding)
        if policy.is_better(correction, best):
            best, same = correction, one.proposal
            yield _Approximation(
                *(begun.start, same, same, one.drawn, one.log_ratios, correction, weights),
                metric=one.metric,
            )
        if policy.is_adapted(best, number):
            return


def _by_chains(
    problem: Problem,
    program: policy.Program,
    begun: _Approximation,
    symmetry: Symmetry | None,
    watched: Watched,
    wanted: policy.Wanted,
    generator: np.random.Generator,
    meter: Meter,
    stage: Callable[[str], AbstractContextManager[list[str]]],
) -> tuple[Sampled | None, Coupled | None]:
    """Chains that jump alone where that is enough, else with trajectories; and pairs of chains.

    They end early where a mode was met that none of them started from.
    """
    is_enough = partial(
        _is_enough, problem, symmetry, wanted, begun.correction, meter, time.perf_counter()
    )

    def may_go_on() -> bool:
        return meter.allows() and not watched.has_found()

    sampled: Sampled | None = None
    coupled: Coupled | None = None
    drawn, log_ratios = begun.drawn, begun.log_ratios
    if policy.is_good(begun.correction) and begun.metric is None:
        with stage("jumps") as notes, suppress(SpentError):
            own = jump(watched, begun.proposal, drawn, log_ratios, CHAINS, generator, symmetry)
            points = meter.points(problem)
            starts = _apart(points, begun.start, JUMP_PAIRS, generator, symmetry)
            coupled = jumps_from(starts, watched, begun.proposal, log_ratios, generator)
            if policy.is_bounded(coupled):
                most = int(policy.MOST_JUMPS * wanted.target_ess)
                has_tails = partial(is_enough, tail_share=policy.JUMPS_TAIL_SHARE)
                own = _longer(own, has_tails, most, generator, meter)
                sampled = own if has_tails(convergence(own.draws), own.window) else None
            notes.append(coupled.note)
    if sampled is not None or not may_go_on():
        return sampled, coupled
    with stage("chains") as notes, suppress(SpentError):
        weights = _softened(begun.weights, log_ratios)
        chosen = generator.choice(len(weights), CHAINS, p=weights)
        known: Known | None = None
        if begun.weighted is begun.proposal:
            # Chains are not proposed where they start.
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
        is_bounded = policy.is_bounded(coupled)
        is_sure = partial(is_enough, is_sure=not is_bounded)
        if is_bounded or pairs is None or _are(is_sure, sampled) or not may_go_on():
            break
        # Pairs that are late meet sooner than chains agree so closely.
        before = meter.evaluations
        with stage("more chains") as notes:
            sampled = go_on(sampled, len(sampled.draws) // 2, generator, meter.allows)
            notes.append(_told_of_draws(sampled))
        before = meter.evaluations - before
    number = len(sampled.draws)
    if coupled.bound is not None:
        sampled = sampled.after(coupled.transitions)
    if not _are(is_sure, sampled):
        # Of chains that were enough little more than what was left out is missing.
        missing = max(number - len(sampled.draws), number // 8) if is_bounded else None
        with stage("more chains") as notes:
            sampled = _longer(sampled, is_sure, None, generator, meter, missing)
            notes.append(_told_of_draws(sampled))
    return sampled, coupled


def _are(is_enough: Callable[[Convergence, Window], bool], sampled: Sampled) -> bool:
    """Whether chains are enough."""
    return is_enough(convergence(sampled.kernel.ordered(sampled.draws)), sampled.window)


def _told_of_draws(sampled: Sampled) -> str:
    number, chains = sampled.draws.shape[:2]
    return f"{number * chains:,} draws of {chains} chains"


def _modes(search: Search, notes: list[str], generator: np.random.Generator) -> policy.Modes:
    """What a search found, with the sites whose labels change places; it is noted."""
    found = search.found
    notes.append(f"{_counted(found.number)} after {found.paths} searches")
    if found.number > 1 and search.symmetry is None:
        return replace(found, exchanged=_labels(search.problem, search.start, generator))
    return found


def _far_out(
    evidence: policy.Evidence,
    problem: Problem,
    evaluate: Evaluate,
    draws: Float[np.ndarray, "N M D"],
) -> policy.Evidence:
    """The evidence with sites along which the density does not fall far out of the draws."""
    with suppress(SpentError):  # Then what was found before stands.
        flat = flat_far_out(problem, evaluate, draws.reshape(-1, problem.dim))
        evidence = replace(evidence, flat=flat)
    return evidence


def with_chains(climbed: Climbed, sampled: Sampled) -> Climbed:
    """The same with these chains as its draws."""
    problem, symmetry = climbed.problem, climbed.symmetry
    positions = sampled.draws if symmetry is None else symmetry.shuffled(sampled.draws)
    found = replace(climbed, positions=positions, sampled=sampled, stages=list(climbed.stages))
    values = {name: np.asarray(value) for name, value in found.draws.items()}
    figures = convergence(sampled.kernel.ordered(sampled.draws))
    chained = chained_of(problem, sampled.window, figures, symmetry)
    chained = replace(chained, endless=endless(values))
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
    rested = evidence.rested or (before is not None and policy.enough(before, evidence.wanted))
    found.evidence = replace(evidence, chains=chained, rested=rested)
    return found


def _is_enough(
    problem: Problem,
    symmetry: Symmetry | None,
    wanted: policy.Wanted,
    correction: policy.Correction,
    meter: Meter,
    began: float,
    figures: Convergence,
    window: Window,
    *,
    is_sure: bool = False,
    tail_share: float = policy.TAIL_SHARE,
) -> bool:
    """Whether chains have done what was asked, or all that is asked of those that do not meet."""
    if window.transitions < LEAST_TRANSITIONS:
        return False
    chained = chained_of(problem, window, figures, symmetry)
    meter.shows(chained.ess_bulk, wanted.target_ess, time.perf_counter() - began)
    is_heavy = policy.is_doubtful(chained, correction, problem.strain)
    is_far = policy.lacks_approximation(correction)
    return policy.enough(
        chained, wanted, is_sure=is_sure, is_heavy=is_heavy, is_far=is_far, tail_share=tail_share
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

    They go on for a ``step`` of so many draws each time, or for half as many as there are.
    """
    while not _are(is_enough, sampled):
        number = len(sampled.draws)
        if (most is not None and CHAINS * number > most) or not meter.allows():
            break
        sampled = go_on(sampled, step or number // 2, generator, meter.allows)
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
        if accepted < policy.LEAST_JUMPS:
            told = f"jumps, in which chains meet, are seldom taken ({accepted:.1%})"
            return None, Coupled(0, reason=told)
        if most - meter.evaluations < 4 * PAIRS or not meter.allows():
            told = "the budget ended before there were pairs of chains"
            return None, Coupled(0, reason=told)
        starts = _apart(meter.points(problem), start, PAIRS, generator, sampled.kernel.symmetry)
        pairs = Pairs(sampled.kernel, starts, generator)
    # Chains are so far from their limit after as many transitions with the kernel that does not
    # change any more: those before, which tuned it, do not count.
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


def _density_of_sites(
    problem: Problem, sampled: Sampled
) -> Callable[[labels.Values], Float[np.ndarray, " S"]] | None:
    """Log densities of the sites as written, with which labels may be exchanged.

    None where they are those of other sites, which are non-centred.
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


def _counted(number: int) -> str:
    """A number of modes in words."""
    return f"{number} mode{'s' * (number != 1)} found"


def _written(problem: Problem) -> str:
    """How a program is written, where it is not as the user wrote it."""
    return "" if problem.name == "as written" else f"{problem.name}, "


def _best(
    written: Problem,
    others: Iterator[Problem],
    generator: np.random.Generator,
    meter: Meter,
    dropped: list[str],
) -> tuple[Problem, Start]:
    """The way to write a program whose Normal has the highest bound on the evidence.

    The program as it is written is left where its sites of latent scale make a narrow neck. Ways
    that fail, or are another program, are ``dropped``, with the reason: the program as it is
    written can do without them. The program as it is written knows which sites have another form.
    """
    problem, start = written, _start_of(written, generator, meter)
    other_forms, tried = list[str](), "non-centred"
    try:
        for other in others:
            of_other = _start_of(other, generator, meter)
            if told := _difference(written, other, of_other.modes[0], meter):
                dropped.append(f"Not fitted {other.name}: {told}.")
                continue
            other_forms.extend(other.latents)
            if problem is not written:
                continue
            is_better = of_other.modes[0].log_mass > start.modes[0].log_mass + BETTER
            # Labels that can be exchanged, which make modes, want entries alike.
            may_differ = (start.weights > LEAST_MASS).sum() == 1
            if is_better or has_neck(written, other, start.modes[0], meter):
                problem, start, most = other, of_other, 1.0
            else:
                most = FEW_DATA
            tried = "partly non-centred"
            if may_differ:
                found = _partly(written, other, of_other, most, generator, meter, dropped)
                problem, start = found or (problem, start)
    except SpentError:
        dropped.append(f"Not fitted with sites of latent scale {tried}: the budget ended before.")
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the fit.
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        dropped.append(f"Not fitted with sites of latent scale {tried}, which failed: {reason}")
    if problem is written and other_forms:
        problem = replace(written, other_forms=tuple(other_forms))
    return problem, start


def _partly(
    written: Problem,
    other: Problem,
    start: Start,
    most: float,
    generator: np.random.Generator,
    meter: Meter,
    dropped: list[str],
) -> tuple[Problem, Start] | None:
    """The way in between as written and non-centred, where data tell much of some entries.

    ``start`` is that of the non-centred way, and ``most`` the most that one of the entries may be
    centred for the way in between to be worth a third program.
    """
    centring = centring_of(written, other, start.modes[0], meter)
    if not centring.least <= most or other.partly is None:
        return None
    between = other.between(centring.entries, centring.strain)
    found = _start_of(between, generator, meter)
    if told := _difference(written, between, found.modes[0], meter):
        dropped.append(f"Not fitted {between.name}: {told}.")
        return None
    return between, found


def _difference(written: Problem, other: Problem, mode: Mode, meter: Meter) -> str:
    """How the density of another way to write a program differs; empty if it does not.

    Half of the positions are of the mode, where a density of many rows is rounded least.
    """
    if written.maps is None or not other.latents:
        return ""

    one, two = meter.of(other.evaluate), meter.of(written.evaluate)
    places = [
        (other.coordinates[o], written.coordinates[name]) for name, o in other.latents.items()
    ]
    points = points_around(other.dim)
    points[::2] = mode.at(points[::2])
    return difference(
        points,
        lambda z: one(z)[0],
        lambda z: two(z)[0],
        partial(written.positions_of, other),
        places,
        written.epsilon,
    )


def _begun(
    written: Problem,
    others: Iterator[Problem],
    generator: np.random.Generator,
    meter: Meter,
    dropped: list[str],
) -> tuple[Problem, Start, policy.Program]:
    """The best way to write a program, where its draws start, and what is known of it there.

    Raises
    ------
    ArgumentError
        The budget ends before.
    """
    try:
        problem, start = _best(written, others, generator, meter, dropped)
        return problem, start, _program(problem, start, meter)
    except SpentError:
        raise ArgumentError(
            f"Expected a budget that buys a search for a start, found budget={meter.budget:,}, "
            f"which ended before. Searches take some 10 evaluations for each of the "
            f"{written.dim:,} unconstrained parameters and 100 besides, often more; corrected "
            f"draws take {policy.DRAWS:,} more, and chains {policy.LEAST_CHAINS:,} at least. Give "
            "a larger budget=."
        ) from None


def _program(problem: Problem, start: Start | None, meter: Meter) -> policy.Program:
    """What is known of a program, and of its density at a start."""
    has_engine = problem.approximate is not None
    if start is None:
        return policy.Program(problem.dim, problem.is_whole, 0.0, 0.0, has_engine=has_engine)
    value, each = timed(meter.of(problem.evaluate), start.mean, meter.clock)
    return policy.Program(
        problem.dim,
        problem.is_whole,
        each,
        problem.epsilon * abs(value),
        problem.epsilon * float(np.max(np.abs(start.mean) / start.modes[0].deviations)),
        problem.seconds_with_all_rows(each),
        has_engine,
        problem.strain,
        cost_far_out(problem),
    )


def _start_of(problem: Problem, generator: np.random.Generator, meter: Meter) -> Start:
    evaluate = meter.of(problem.evaluate)
    return find(evaluate, meter.points(problem), generator, problem.epsilon)


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


def _proposed(shares: Float[np.ndarray, " modes"]) -> Float[np.ndarray, " modes"]:
    """Weights of modes in a proposal."""
    weights = np.maximum(shares, LEAST_WEIGHT)
    found: Float[np.ndarray, " modes"] = weights / weights.sum()
    return found


def _correction(
    drawn: Chains, log_ratios: Float[np.ndarray, " S"], rounding: float
) -> tuple[policy.Correction, Float[np.ndarray, " S"]]:
    """Figures of importance ratios, and weights, the largest of them truncated.

    E. L. Ionides, "Truncated importance sampling" (2008): at the mean times the root of their
    number.
    """
    number, undefined = len(log_ratios), float(np.isnan(drawn.values).mean())
    if np.isneginf(log_ratios).all():
        return policy.Correction(np.inf, 0.0, undefined), np.full(number, 1.0 / number)
    weights = np.exp(log_ratios - log_ratios.max())
    khat = pareto_khat(LogRatios(log_ratios, rounding)).khat
    share = weighted_number(weights) / number
    weights = np.minimum(weights, weights.mean() * np.sqrt(number))
    return policy.Correction(khat, share, undefined), weights / weights.sum()


def resampled(
    weights: Float[np.ndarray, " S"], number: int, generator: np.random.Generator
) -> np.ndarray:
    """Rows in proportion to weights, as evenly as can be, in random order."""
    points = (np.arange(number) + generator.uniform()) / number
    rows = np.minimum(np.searchsorted(np.cumsum(weights), points), len(weights) - 1)
    return generator.permutation(rows)


def _softened(
    weights: Float[np.ndarray, " S"], log_ratios: Float[np.ndarray, " S"]
) -> Float[np.ndarray, " S"]:
    """Weights to start chains by, flat enough that chains start at different places."""
    for power in (1.0, 0.5, 0.25, 0.1):
        soft = np.power(weights, power)
        soft = np.where(np.isneginf(log_ratios), 0.0, soft)
        if soft.sum() > 0.0 and weighted_number(soft) >= 4 * CHAINS:
            return soft / soft.sum()
    finite = ~np.isneginf(log_ratios)
    flat = finite.astype(float) if finite.any() else np.ones(len(weights))
    return flat / flat.sum()
