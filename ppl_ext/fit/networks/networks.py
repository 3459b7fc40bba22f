"""A fit of a network, by chains from an ensemble that have to agree in its outputs.

Two sets of weights that are far apart may be the same function, so that chains never seem to agree
in their weights. So outputs are judged (:mod:`ppl_ext.fit.networks.outputs`). Members of an
ensemble start apart, and from each goes on a chain of microcanonical Langevin dynamics.

E. Sommer and others, "Microcanonical Langevin ensembles: advancing the sampling of Bayesian neural
networks", ICLR 2025, https://arxiv.org/abs/2502.06335.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ppl_ext.errors import ArgumentError
from ppl_ext.fit.ladder.by_chains import CHAINS
from ppl_ext.fit.ladder.climbed import Climbed, staged
from ppl_ext.fit.ladder.written import look_at_slopes
from ppl_ext.fit.networks.outputs import Calibration, Columns, Outputs, Positions
from ppl_ext.fit.networks.rows_seen import Anchor, RowsSeen
from ppl_ext.fit.problem.problem import Meter, Problem
from ppl_ext.fit.verdict import agreement, facts, levels
from ppl_ext.fit.verdict.figures import site_figures
from ppl_ext.fit.verdict.verdict import Level, Stage, Verdict
from ppl_ext.microcanonical.chains import QUARTER, Dynamics, Microcanonical
from ppl_ext.microcanonical.functions import Eager
from ppl_ext.microcanonical.tuning import DOUBTFUL_VARIANCE, ENERGY_VARIANCE, HEAT, Schedule
from ppl_ext.start.paths import SpentError
from ppl_ext.start.rows import Minibatches
from ppl_ext.start.search import MOST_SEARCHED
from ppl_ext.statistics.convergence import Convergence, convergence


class Pace(NamedTuple):
    """How long the stages of a fit are.

    Parameters
    ----------
    ensemble : int
        Steps of Adam from draws of the prior, by which members of an ensemble come near where the
        mass is. The warm-up brings them the rest of the way (arXiv:2502.06335).
    rate : float
        Its first step size, which falls to 0.
    warm_up, look : int
        Moves of the first warm-up, and from its end to the first look.
    """

    ensemble: int
    rate: float
    warm_up: int
    look: int

    @classmethod
    def of(cls, minibatches: Minibatches | None) -> Pace:
        """With these minibatches, or with all rows."""
        if minibatches is None:
            return ALL_ROWS
        pace = BY_MINIBATCHES
        return pace._replace(ensemble=max(pace.ensemble, round(PASSES / minibatches.share)))

    def evaluations(self, problem: Problem, has_ensemble: bool = True) -> tuple[int, int]:
        """Evaluations up to the end of the warm-up at most, and of the fewest draws.

        Those with minibatches count as the share of the rows that they take, and are about so many.
        """
        ensemble = self.ensemble if has_ensemble else 0
        share, cost = 1.0, 1.0
        if problem.minibatches is not None:
            share, cost = problem.minibatches.share, WARM_COST
        warm_up = CHAINS * share * (ensemble + cost * self.warm_up)
        begins = AT_THE_START if has_ensemble else CHAINS
        return math.ceil(warm_up) + begins, math.ceil(CHAINS * share * cost * LEAST_KEPT)


#: With all rows. Chains of networks for classes agree at the first look, and others go on from it.
ALL_ROWS = Pace(100, 0.03, 250, 100)
#: With minibatches, whose noise asks for shorter steps: chains and members need more of them.
BY_MINIBATCHES = Pace(2_000, 0.01, 2_000, 2_000)
#: Passes over the rows in which members climb by minibatches at least.
PASSES = 50
#: Share of the seconds that this may take at most, so that chains have most of them.
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
#: Standard deviation of the energy's error over a trajectory with which 0.9 of them are accepted.
ACCEPTED_ERROR = 0.25
#: How many times that of one step it is, about.
TIMES_ONE = 2.0
#: Share of the effective draws that are asked for which the least certain output has to have where
#: chains are not adjusted. 200 of 400 leave a standard deviation uncertain by 5 %, and outputs of
#: few inputs are all off together; with a hundred one fit of nine was off by a tenth.
SHARE_OF_DRAWS = 0.5
#: R-hat of outputs below which chains are near enough to go on as adjusted ones, and up to which
#: those that are not adjusted are believed.
NEAR = 1.1
#: Acceptance up to which an adjusted chain hardly moves.
REFUSED = 0.3
#: Draws of each chain that are kept at most: beyond, every second one is left out.
MOST_KEPT = 200
#: Draws of each chain that are kept at least, and without which nothing is judged.
LEAST_KEPT = 12
#: Numbers that the kept draws of all chains hold, 320 MB; beyond, fewer draws are kept.
MOST_NUMBERS = 40_000_000
#: Evaluations with a minibatch that a move of the warm-up takes: before and after the move, at the
#: anchor, and the share of a pass over all rows.
WARM_COST = 4.0
#: Evaluations before the warm-up at most: members' first positions, those of the prior and the
#: chains', and the look at slopes.
AT_THE_START = 3 * CHAINS + 64
#: Draws of each chain by which outputs are judged where chains move by minibatches, since the
#: predictions of many rows take long; more where more effective draws are asked for.
MOST_JUDGED = 25
#: How many times its bound the noise of minibatches may be: the warm-up's estimate has an error.
MOST_HEAT = 2.0
#: Arrays as large as all positions that moves hold at once.
ARRAYS = 12
#: Further ones with minibatches: the anchor and what is known there.
OF_MINIBATCHES = 6
#: Error of standard deviations of Normals, as a share of them, at the variance of the energy that
#: steps are tuned to; it grows as the square of the step, the variance as its sixth power.
BIAS = 0.02
#: Seed of what calibration draws, so that chains draw the same whether or not they are looked at.
SEED = 47

FUNCTIONS = Eager(np)


@dataclass
class Run:
    """Chains of one kind, and what is kept of them.

    Attributes
    ----------
    moves : Microcanonical
    rows : RowsSeen
    generator : numpy.random.Generator
    z : array (C, D)
    dynamics : Dynamics
    number, total : int
        Moves so far, and those of the warm-up.
    most : int
        Draws of each chain that are kept.
    """

    moves: Microcanonical
    rows: RowsSeen
    generator: np.random.Generator
    z: Positions
    dynamics: Dynamics
    number: int
    total: int
    most: int
    every: int = 1
    diverged: int = 0
    anchor: Anchor | None = None
    kept: list[Positions] = field(default_factory=list)

    @classmethod
    def begun(
        cls,
        problem: Problem,
        rows: RowsSeen,
        generator: np.random.Generator,
        z: Positions,
        total: int,
        before: Run | None = None,
    ) -> Run:
        """Chains before their warm-up.

        They are adjusted where a run of unadjusted ones came ``before``, from which they take over
        the scale and the step.
        """
        adjusted = before is not None
        moves = Microcanonical(
            problem.dim,
            FUNCTIONS,
            ENERGY_VARIANCE,
            adjusted,
            problem.epsilon,
            noisy=rows.minibatches is not None,
        )
        noise = generator.standard_normal((len(z), moves.whole))
        spare = generator.standard_normal((len(z), moves.spare))
        dynamics = moves.first(z, noise, spare, total, rows.every)
        number = 0
        if before is not None:
            number, known = Schedule(total).moving, before.dynamics
            dynamics = dynamics._replace(
                scale=known.scale,
                score=dynamics.score * known.scale,
                step=known.step,
                length=0.0 * known.length + math.sqrt(moves.whole),
            )
        return cls(moves, rows, generator, z, dynamics, number, total, kept_of(problem.dim))

    def go_on(self, moves: int, may_go_on: Callable[[], bool]) -> bool:
        """Make so many moves; False where the budget ended before."""
        for _ in range(moves):
            if not may_go_on():
                return False
            before = self.generator.bit_generator.state
            normal = partial(self.generator.standard_normal, (len(self.z), self.moves.whole))
            uniform = self.generator.uniform(size=len(self.z) + 1)
            try:
                self.anchor, evaluate = self.rows.of_move(
                    self.anchor, self.z, self.number, self.generator
                )
                self.z, self.dynamics, diverged = self.moves.move(
                    self.dynamics,
                    self.z,
                    self.number,
                    self.total,
                    normal,
                    np.log(uniform[1:]),
                    uniform[0],
                    evaluate,
                )
            except SpentError:
                self.generator.bit_generator.state = before
                return False
            self.number += 1
            if self.number > self.total:
                self.diverged += int(diverged.sum())
                self._keep()
        return True

    def _keep(self) -> None:
        if (self.number - self.total) % self.every == 0:
            self.kept.append(self.z.copy())
        if len(self.kept) == self.most:
            self.kept, self.every = self.kept[1::2], 2 * self.every

    @property
    def made(self) -> int:
        """Moves after the warm-up."""
        return max(0, self.number - self.total)

    @property
    def draws(self) -> Float[np.ndarray, "N C D"]:
        """Positions that are kept."""
        # In memory chain by chain, as :func:`_flat` wants them, which then copies nothing.
        draws: np.ndarray = np.stack(self.kept, 1).transpose(1, 0, 2)
        return draws

    @property
    def quality(self) -> Float[np.ndarray, " C"]:
        """By chain: probability of acceptance, or the energy's variance for each dimension."""
        mean: np.ndarray = np.asarray(self.dynamics.squares) / max(1.0, float(self.dynamics.moves))
        return np.sqrt(mean) if self.moves.adjusted else mean / self.moves.dim


def kept_of(dim: int) -> int:
    """Draws of each chain that are kept of so many weights."""
    return max(LEAST_KEPT, min(MOST_KEPT, MOST_NUMBERS // (CHAINS * dim)))


def memory_of(dim: int, by_minibatches: bool = False) -> str:
    """What chains of so many weights take, in words."""
    # What is kept is copied to be judged.
    arrays = 2 * kept_of(dim) + ARRAYS + OF_MINIBATCHES * by_minibatches
    numbers = arrays * CHAINS * dim
    return f"{CHAINS} chains of {dim:,} weights take about {8e-6 * numbers:,.0f} MB"


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
    if known is not None:
        why = why or ("" if known.starts_for(problem) else "there are other latent sites")
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
    verdict = judged(outputs, run, figures, calibration, wanted, reasons)
    program = facts.Program(problem.dim, True, 0.0, _rounding(run))
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
    return outputs.calibration(_flat(run.draws), np.random.default_rng(SEED))


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


@dataclass(frozen=True)
class Figures:
    """How far chains agree in their outputs."""

    columns: Columns
    found: Convergence
    chained: facts.Chained

    @classmethod
    def of(cls, outputs: Outputs, run: Run, wanted: facts.Wanted) -> Figures:
        """Of what is kept of chains."""
        draws = run.draws
        if run.rows.minibatches is not None:
            most = max(MOST_JUDGED, math.ceil(wanted.target_ess / CHAINS))
            draws = draws[-1 :: -max(1, -(-len(draws) // most))][::-1]
        columns = outputs.columns(_flat(draws))
        joined = np.concatenate(list(columns.values()), 1)
        found = convergence(joined.reshape(*draws.shape[1::-1], -1).transpose(1, 0, 2))
        names = [name for name, each in columns.items() for _ in range(each.shape[1])]
        r_hat = float(found.r_hat.max())
        worst = found.r_hat.argmax() if r_hat > agreement.R_HAT else found.ess_bulk.argmin()
        chained = facts.Chained(
            r_hat,
            float(found.ess_bulk.min()),
            float(found.ess_tail.min()),
            found.worst_deviation,
            (),
            run.diverged / max(1, run.made * draws.shape[1]),
            0.0,
            found.is_adrift,
            names[int(worst)],
            draws=draws.shape[0] * draws.shape[1],
            deviation_number=names[found.worst_deviation_at],
        )
        return cls(columns, found, chained)

    @property
    def r_hat(self) -> float:
        """The largest."""
        return self.chained.r_hat


def _flat(draws: Float[np.ndarray, "N C D"]) -> Positions:
    """Chain by chain, as the hosts' MCMC gives them."""
    return draws.transpose(1, 0, 2).reshape(-1, draws.shape[2])


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
        if is_done or is_spent or not _against(figures.chained, run, wanted):
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


def _against(found: facts.Chained, run: Run, wanted: facts.Wanted) -> list[str]:
    """What speaks against chains; of those that are not adjusted less is asked."""
    if run.moves.adjusted:
        return agreement.of_chains(found, wanted)
    less = replace(wanted, target_ess=SHARE_OF_DRAWS * wanted.target_ess)
    return agreement.of_chains(found, less, most_r_hat=NEAR)


def _cost(run: Run) -> float:
    """Evaluations that adjusted chains take, about; the energy's error grows as a step cubed."""
    dim = run.moves.whole
    ratio = ACCEPTED_ERROR / (TIMES_ONE * math.sqrt(dim * ENERGY_VARIANCE))
    step = float(run.dynamics.step.value) * ratio ** (1.0 / 3.0)
    tuned = ADJUSTED_WARM_UP - int(Schedule(ADJUSTED_WARM_UP).moving)
    return CHAINS * (tuned + ADJUSTED_LOOK) * QUARTER * math.sqrt(dim) / step


def _told_of(run: Run, figures: Figures) -> str:
    return f"{run.made:,} moves of {CHAINS} chains, R-hat of predictions {figures.r_hat:.3f}"


def _rounding(run: Run) -> float:
    return run.moves.epsilon * float(np.abs(run.dynamics.log_density).max())


def judged(
    outputs: Outputs,
    run: Run,
    figures: Figures,
    calibration: Calibration,
    wanted: facts.Wanted,
    told: list[str],
) -> Verdict:
    """What chains are worth, by their outputs."""
    chained = figures.chained
    program = facts.Program(outputs.problem.dim, True, 0.0, _rounding(run))
    against = [*_against(chained, run, wanted), *levels.of_rounding(program)]
    reasons = [f"Predictions are judged, since weights have no identity. {chained.words}"]
    level: Level = "exact"
    quality = run.quality
    if run.moves.adjusted:
        line = f"Moves were accepted with probability {quality.min():.2f} to {quality.max():.2f}."
        if not quality.min() > REFUSED:
            against.append(f"{line} A chain hardly moves. Give a larger budget= or seconds=.")
        else:
            reasons.append(line)
    else:
        level, worst = "approximate", float(quality.max())
        bias = BIAS * (worst / ENERGY_VARIANCE) ** (1.0 / 3.0)
        line = (
            "No step was refused (unadjusted chains): the energy's error has a variance of "
            f"{worst:.2g} for each dimension, with which standard deviations of Normals are "
            f"{bias:.1%} off."
        )
        if not worst < DOUBTFUL_VARIANCE:
            against.append(f"{line} Steps are too long. Give a larger budget= or seconds=.")
        else:
            reasons.append(line)
        if run.rows.minibatches is not None:
            heat = float(run.moves.heat(run.dynamics))
            line = (
                f"The noise of minibatches of {run.rows.minibatches.rows:,} rows makes variances "
                f"of weights up to {1.0 + heat:.2g} times the posterior's where it is largest."
            )
            if heat > MOST_HEAT * HEAT:
                against.append(f"{line} Let the model take larger minibatches.")
            else:
                reasons.append(line)
    if calibration.told:
        is_bad = not (calibration.is_good or math.isnan(calibration.error) or level == "exact")
        (against if is_bad else reasons).append(calibration.told)
    found: Level = "not trusted" if against else level
    number = run.draws.shape[1]
    verdict = Verdict(
        found,
        (*against, *reasons, *told),
        {name: site_figures(name, each, number, 1.0) for name, each in figures.columns.items()},
        confirmed=found == "approximate" and calibration.is_good,
        num_chains=number,
        of_outputs=True,
    )
    return outputs.problem.observed.judged(verdict)


__all__ = ["Networked", "further", "kept_of", "memory_of", "sampled"]
