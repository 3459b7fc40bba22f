"""A fit of a network, by chains from an ensemble that have to agree in its outputs.

Two sets of weights that are far apart may be the same function, so that chains never seem to agree
in their weights. So outputs are judged (:mod:`ppl_ext.fit.networks.outputs`). Members of an
ensemble start apart, and from each goes on a chain of microcanonical Langevin dynamics.

E. Sommer and others, "Microcanonical Langevin ensembles: advancing the sampling of Bayesian neural
networks", ICLR 2025, https://arxiv.org/abs/2502.06335.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from jaxtyping import Float

from ppl_ext.errors import ArgumentError
from ppl_ext.fit.ladder.by_chains import CHAINS
from ppl_ext.fit.ladder.climbed import Climbed, staged
from ppl_ext.fit.ladder.written import look_at_slopes
from ppl_ext.fit.networks.judged import NEAR, Figures, against_chains, judged, rounding_of
from ppl_ext.fit.networks.outputs import Calibration, Outputs
from ppl_ext.fit.networks.pace import Pace
from ppl_ext.fit.networks.rows_seen import RowsSeen
from ppl_ext.fit.networks.run import LEAST_KEPT, Run, flat, memory_of
from ppl_ext.fit.problem.problem import Meter, Problem
from ppl_ext.fit.verdict import agreement, facts
from ppl_ext.fit.verdict.verdict import Stage, Verdict
from ppl_ext.microcanonical.chains import QUARTER
from ppl_ext.microcanonical.tuning import ENERGY_VARIANCE, Schedule
from ppl_ext.start.paths import SpentError
from ppl_ext.start.search import MOST_SEARCHED

#: Share of the seconds in which members may climb by minibatches, so that chains have most of them.
SHARE_OF_SECONDS = 0.25
#: Moves up to the next look, as a multiple of those before this one.
LATER = 1.5
#: Moves by those of the warm-up, beyond which chains whose outputs do not agree are tuned anew, by
#: a warm-up twice as long: the first was too short to tune by.
MOST_MOVES = 4.0
#: Moves of the warm-up of adjusted chains. Its first three fifths, in which others learn the scale,
#: are left out: the scale is known from chains that are not adjusted.
ADJUSTED_WARM_UP = 200
#: Moves of adjusted chains before the first look, when 16 of them are worth some 400 draws.
ADJUSTED_LOOK = 50
#: Standard deviation s of the energy's error over a trajectory with which 0.9 of them are accepted:
#: where that error is Normal, 2 Phi(-s / 2) are, with the Normal's distribution function Phi.
ACCEPTED_ERROR = 0.25
#: How many times that of one step it is, about.
TIMES_ONE = 2.0
#: Seed of what calibration draws, so that chains draw the same whether or not they are looked at.
SEED = 47


@dataclass
class Networked(Climbed):
    """Where a fit of a network ended, with its chains, to go on.

    Attributes
    ----------
    run : Run
    outputs : Outputs
    told : tuple of str
        What was not done, and why.
    """

    run: Run = field(kw_only=True)
    outputs: Outputs = field(kw_only=True)
    told: tuple[str, ...] = ()

    def starts_for(self, other: Problem) -> bool:
        """Whether the chains are where those of another problem may start."""
        return dict(self.problem.coordinates) == dict(other.coordinates)


@np.errstate(all="ignore")
def sampled(
    outputs: Outputs,
    generator: np.random.Generator,
    wanted: facts.Wanted,
    meter: Meter,
    known: Networked | None = None,
    why: str = "",
) -> tuple[Networked, Verdict]:
    """Draws of a network, and whether its outputs may be trusted.

    Chains start where those of a ``known`` fit to other arguments are, unless ``why`` says why not,
    or else at an ensemble.

    Raises
    ------
    ArgumentError
        The budget, or the time, buys no draws.
    """
    try:
        return _sampled(outputs, generator, wanted, meter, known, why)
    except SpentError:
        raise _too_small(meter, outputs.problem, known is None or bool(why)) from None


def _sampled(
    outputs: Outputs,
    generator: np.random.Generator,
    wanted: facts.Wanted,
    meter: Meter,
    known: Networked | None,
    why: str,
) -> tuple[Networked, Verdict]:
    problem, stages = outputs.problem, list[Stage]()
    stage = partial(staged, stages, meter)
    rows = RowsSeen.of(problem, meter)
    memory = memory_of(problem.dim, problem.minibatches is not None)
    if known is not None and not why:
        why = "" if known.starts_for(problem) else "there are other latent sites"
    if known is not None or why:
        told = f"from anew: {why}" if why else "chains go on from where they are"
        stages.append(Stage("refit", 0, 0.0, told))
    members = None if known is None or why else known.run.z
    if meter.left < sum(Pace.of(problem.minibatches).evaluations(problem, members is None)):
        raise _too_small(meter, problem, members is None)
    if members is not None:
        z = members
    else:
        with stage("ensemble", shown=memory) as notes:
            if problem.dim <= MOST_SEARCHED:
                look_at_slopes(problem, meter)
            z = _ensemble(problem, rows, generator, meter)
            notes.append(memory)
            if problem.minibatches is not None:
                notes.append(f"minibatches of {problem.minibatches.rows:,} rows")
    confirms = "held out" in outputs.rows
    # Whether a move is accepted depends on the density of all rows.
    may_adjust = wanted.exact and problem.minibatches is None
    adjusts = may_adjust and not confirms
    with stage("network chains") as notes:
        run, figures = _agreeing(
            outputs,
            Run.begun(problem, rows, generator, z, Pace.of(problem.minibatches).warm_up),
            wanted,
            meter,
            adjusts,
        )
        notes.append(_told_of(run, figures))
    calibration = Calibration()
    if not adjusts:
        calibration = _calibration(outputs, run)
        adjusts = may_adjust and not calibration.is_good
    reasons = list[str]()
    if adjusts:
        cost = _cost(run)
        if figures.r_hat < NEAR and cost <= meter.left:
            with stage("adjusted chains") as notes:
                begun = Run.begun(problem, rows, generator, run.z, ADJUSTED_WARM_UP, run)
                run, figures = _agreeing(outputs, begun, wanted, meter, False, (run, figures))
                notes.append(_told_of(run, figures))
        else:
            reasons.append(
                f"Chains stayed unadjusted: adjusted ones would take about {cost:,.0f} "
                f"evaluations, of which {meter.left:,} were left. Give a larger budget=."
            )
            if not confirms:  # They ended early, for adjusted ones to begin.
                with stage("more chains") as notes:
                    run, figures = _agreeing(outputs, run, wanted, meter, False)
                    notes.append(_told_of(run, figures))
    verdict = judged(outputs, run, figures, calibration, wanted, reasons)
    program = facts.Program(problem.dim, True, 0.0, rounding_of(run))
    evidence = facts.Evidence(program, wanted)
    climbed = Networked(
        problem, run.draws, None, evidence, stages, run=run, outputs=outputs, told=tuple(reasons)
    )
    return climbed, replace(verdict, cost=tuple(stages))


@np.errstate(all="ignore")
def further(known: Networked, number: int, meter: Meter) -> tuple[Networked, Verdict]:
    """So many further draws of each chain, as the chains would have gone on, and the verdict."""
    outputs, stages = known.outputs, list(known.stages)
    before = known.run
    run = replace(
        before,
        rows=RowsSeen.of(outputs.problem, meter),
        kept=list(before.kept),
        most=max(before.most, len(before.kept) + number + 1),
    )
    with staged(stages, meter, "more chains") as notes:
        run.go_on(number * run.every, meter.allows)
        made = len(run.kept) - len(before.kept)
        if made < number:
            notes.append(f"{made} of {number} draws of each chain")
        figures = Figures.of(outputs, run, known.evidence.wanted)
    calibration = Calibration()
    if "held out" in outputs.rows or not run.moves.adjusted:
        calibration = _calibration(outputs, run)
    verdict = judged(outputs, run, figures, calibration, known.evidence.wanted, list(known.told))
    climbed = replace(known, positions=run.draws, stages=stages, run=run)
    return climbed, replace(verdict, cost=tuple(stages))


def _calibration(outputs: Outputs, run: Run) -> Calibration:
    return outputs.calibration(flat(run.draws), np.random.default_rng(SEED))


def _ensemble(
    problem: Problem, rows: RowsSeen, generator: np.random.Generator, meter: Meter
) -> Float[np.ndarray, "C D"]:
    """Members that start at draws of the prior, and climb by Adam."""
    z = meter.points(problem)(CHAINS)
    drawn, _ = problem.of_prior(CHAINS, int(generator.integers(2**31)))
    if len(drawn):
        values, scores = rows.few(np.where(np.isfinite(drawn), drawn, z))
        usable = np.isfinite(values) & np.isfinite(scores).all(1) & np.isfinite(drawn).all(1)
        z = np.where(usable[:, None], drawn, z)
    mean, square = np.zeros_like(z), np.zeros_like(z)
    best, at = np.full(CHAINS, -math.inf), z
    pace = Pace.of(problem.minibatches)
    for step in range(pace.ensemble):
        if rows.minibatches is not None:
            if meter.elapsed > SHARE_OF_SECONDS * meter.seconds:
                break
            rows.minibatches.draw(generator)
        values, score = rows.few(z)
        better = values > best
        # Values by minibatches are of other rows each, and cannot be compared: the last is kept.
        if rows.minibatches is not None:
            better = np.isfinite(values) & np.isfinite(score).all(1)
        best, at = np.where(better, values, best), np.where(better[:, None], z, at)
        score = np.nan_to_num(score)
        mean += 0.1 * (score - mean)
        square += 1e-3 * (score**2 - square)
        size = np.sqrt(square / (1.0 - 0.999 ** (step + 1))) + 1e-8
        rate = pace.rate * (1.0 - step / pace.ensemble)
        z = z + rate * mean / (1.0 - 0.9 ** (step + 1)) / size
    return at


def _agreeing(
    outputs: Outputs,
    run: Run,
    wanted: facts.Wanted,
    meter: Meter,
    is_near_enough: bool,
    before: tuple[Run, Figures] | None = None,
) -> tuple[Run, Figures]:
    """Chains that go on until their outputs agree, or come near that, or the budget ends.

    Where it ends before there are draws, those ``before`` are given back.
    """
    rows, generator, problem = run.rows, run.generator, outputs.problem
    pace = Pace.of(problem.minibatches)
    due = ADJUSTED_LOOK if run.moves.adjusted else pace.look
    while True:
        goes_on = run.go_on(max(0, run.total - run.number) + due, meter.allows)
        if len(run.kept) < LEAST_KEPT:
            if before is not None:
                return before
            raise _too_small(meter, problem)
        figures = Figures.of(outputs, run, wanted)
        is_done = is_near_enough and figures.r_hat < NEAR
        is_spent = not goes_on or meter.left < CHAINS
        if is_done or is_spent or not against_chains(figures.chained, run, wanted):
            return run, figures
        many = not run.moves.adjusted and run.made > MOST_MOVES * run.total
        if many and figures.r_hat > agreement.R_HAT:
            before = run, figures
            run = Run.begun(problem, rows, generator, run.z, 2 * run.total)
            due = pace.look
        else:
            due = math.ceil((LATER - 1.0) * run.made)


def _too_small(meter: Meter, problem: Problem, has_ensemble: bool = True) -> ArgumentError:
    warm_up, draws = Pace.of(problem.minibatches).evaluations(problem, has_ensemble)
    return ArgumentError(
        f"Expected a budget that buys {CHAINS} chains of a network, found "
        f"budget={meter.budget:,} and seconds={meter.seconds:g}. Their warm-up takes "
        f"{warm_up:,} evaluations, and the fewest draws {draws:,} more. Give more."
    )


def _cost(run: Run) -> float:
    """Evaluations that adjusted chains take, about; the energy's error grows as a step cubed."""
    dim = run.moves.whole
    ratio = ACCEPTED_ERROR / (TIMES_ONE * math.sqrt(dim * ENERGY_VARIANCE))
    step = float(run.dynamics.step.value) * ratio ** (1.0 / 3.0)
    tuned = ADJUSTED_WARM_UP - int(Schedule(ADJUSTED_WARM_UP).moving)
    return CHAINS * (tuned + ADJUSTED_LOOK) * QUARTER * math.sqrt(dim) / step


def _told_of(run: Run, figures: Figures) -> str:
    return f"{run.made:,} moves of {CHAINS} chains, R-hat of predictions {figures.r_hat:.3f}"
