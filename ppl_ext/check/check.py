"""``check``: draws of any method, by every witness that can be afforded."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from tqdm.auto import tqdm

from ppl_ext.chains.symmetry import Symmetry, find_symmetry, ordered_values
from ppl_ext.check.checked import Checked
from ppl_ext.check.own_chains import OwnChains, own_chains
from ppl_ext.check.source import Source
from ppl_ext.errors import ArgumentError, HeldParameterWarning, ModelCheckError
from ppl_ext.fit.fit import BUDGET, SECONDS, Fit, fit
from ppl_ext.fit.ladder.climbed import staged
from ppl_ext.fit.ladder.modes import OF_MODE
from ppl_ext.fit.problem.observed import Observed
from ppl_ext.fit.problem.problem import Meter, Positions, Problem, timed
from ppl_ext.fit.verdict import comparison, facts, levels, policy
from ppl_ext.fit.verdict.verdict import SiteFigures, Stage, Verdict
from ppl_ext.options import check_choice, check_count, check_number
from ppl_ext.start.paths import Evaluate, SpentError
from ppl_ext.statistics.convergence import in_chains
from ppl_ext.statistics.effective import effective_number
from ppl_ext.target.bounds import told_of_bounds
from ppl_ext.target.layouts import names_of_coordinates
from ppl_ext.target.noncentred import points_around
from ppl_ext.target.on_host import on_host
from ppl_ext.witnesses.drift import TUNING, TUNING_CHAINS, Drift, drift
from ppl_ext.witnesses.ratios import importance_ratios
from ppl_ext.witnesses.sample import sampled_identities
from ppl_ext.witnesses.slopes import NO_SLOPES, false_slopes
from ppl_ext.witnesses.stein import Stein, stein_identities
from ppl_ext.witnesses.touched import untouched

#: Effective draws of the chains unless told otherwise.
CHECK_ESS = 2_000
#: Draws that scores are taken at, numbers that they may be together, and the fewest that tell.
SCORES, MOST_NUMBERS, LEAST_DRAWS = 2_000, 20_000_000, 20
#: Beyond so many parameters even marginals are not looked at.
MOST_COORDINATES = 100_000
#: Draws that short chains start from at first, where something is suspicious or nothing else can
#: tell, and their transitions.
FEW_CHAINS, MANY_CHAINS, FEW_TRANSITIONS, MANY_TRANSITIONS = 256, 1_000, 4, 20
#: Share of budget and seconds that scores may take.
FOR_SCORES = 0.1
#: Share of what is left that a fit may take, so that something is left where it cannot tell.
FOR_FIT = 0.75
#: Evaluations of a transition, about.
EACH_TRANSITION = 8
#: Share of the draws at which densities may not be computed.
BROKEN = 0.01
#: Step towards the mean of the draws, as a share of the way, by which rounding is undone: a draw
#: outside of its support that comes into it lay at its edge.
NUDGE = 1e-4
#: The same where a map to the line has a value for what lies outside, such as its edge: how far it
#: may be from the draw, in standard deviations, and as a share of the draw.
OFF, SHARE_OFF = 0.01, 1e-3
#: Rounding of log densities, as a share of their standard deviation, up to which they are compared.
ROUNDING = 0.02
#: Draws at which rounding is measured, and the length of steps for it, in standard deviations.
STEPPED, STEP = 64, 0.01
#: Effective draws below which draws may be of chains in different orders of labels.
FEW_EFFECTIVE = 400
#: Nested R-hat at which short chains have forgotten where they started.
FORGOTTEN = 1.1


@dataclass
class Program:
    """What a check asks of a program.

    Attributes
    ----------
    written : Problem
        As it is written.
    ways : callable
        All ways to write it, for a fit.
    unconstrain : callable
        From draws by site to positions (S, D).
    shapes : callable
        Shapes of the latent sites' values.
    parts : callable
        From positions to scores of the prior and of the likelihood.
    held : sequence of str
        Parameters without a prior.
    fixed : array of bool, optional
        Entries of the sites' values that a support fixes, such as the zeros of a triangular matrix.
    """

    written: Problem
    ways: Callable[[], Iterator[Problem]]
    unconstrain: Callable[[Mapping[str, Any]], Positions]
    shapes: Callable[[], dict[str, tuple[int, ...]]]
    parts: Callable[[Positions], tuple[Positions, Positions]]
    held: Sequence[str] = ()
    fixed: Bool[np.ndarray, " K"] | None = None

    @property
    def names(self) -> list[str]:
        """Of each unconstrained coordinate."""
        return names_of_coordinates(self.written.coordinates)


def program_of(
    ways: Iterator[Problem],
    passes: Any,
    unconstrain: Callable[[Any, Any, Mapping[str, Any]], Positions],
    parts: Callable[[Any, Any, Positions], tuple[Positions, Positions]],
) -> Program:
    """What a check asks of a program, by the ways to write it.

    ``unconstrain`` and ``parts`` are those of a :class:`Program`, of a target and its data.
    """
    with warnings.catch_warnings():
        # The verdict says it.
        warnings.simplefilter("ignore", HeldParameterWarning)
        written = next(ways)
    target = written.target if written.is_whole else written.target.over(passes)
    # The first way was taken from the iterator above, and a fit needs it too.
    every = itertools.chain([written], ways)
    own = target, written.data
    shapes = partial(target.value_shapes, written.data)
    of_draws, of_positions = partial(unconstrain, *own), partial(parts, *own)
    return Program(written, lambda: every, of_draws, shapes, of_positions, list(target.held))


@dataclass
class _Hearing:
    """What was found so far."""

    meter: Meter
    against: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what a stage costs."""
        with staged(self.stages, self.meter, name, f"check: {name}"):
            yield

    def verdict(
        self,
        sites: Mapping[str, SiteFigures],
        *more: str,
        confirmed: bool = False,
        cost: Sequence[Stage] = (),
    ) -> Verdict:
        """The verdict; "not trusted" where anything speaks against the draws."""
        level: Any = "not trusted" if self.against else "approximate"
        reasons = (*self.against, *more, *self.told)
        stages = (*self.stages, *cost)
        return Verdict(level, reasons, sites, stages, confirmed and not self.against)


@np.errstate(all="ignore")
def check(
    source: Source,
    program: Program,
    generator: np.random.Generator,
    seed: int = 0,
    *,
    budget: int | None = None,
    seconds: float | None = None,
    target_ess: float = CHECK_ESS,
    progress_bar: bool = True,
    predictions: Callable[[], str] | None = None,
    reference: Callable[[], Fit] | None = None,
) -> Checked:
    """The verdict on draws; see the packages' ``check``.

    Parameters
    ----------
    source : Source
    program : Program
    generator : numpy.random.Generator
    seed : int
        Of a fit's way to write the program.
    budget, seconds, target_ess, progress_bar
        See the packages' ``check``.
    predictions : callable, optional
        What is to be said of held-out predictions.
    reference : callable, optional
        Gives the fit that draws are held against, in place of one that is made.
    """
    check_count("budget", budget, optional=True)
    check_number("seconds", seconds, optional=True)
    check_number("target_ess", target_ess)
    check_choice("progress_bar", progress_bar, (True, False))
    with tqdm(desc="check", unit=" evaluations", disable=not progress_bar) as bar:
        meter = Meter(budget or BUDGET, seconds or SECONDS, bar)
        hearing = _Hearing(meter)
        if predictions is not None:
            with hearing.stage("held-out predictions"):
                hearing.told.append(predictions())

        def made() -> Fit:
            left = int(FOR_FIT * meter.left)
            time_left = max(1.0, FOR_FIT * (meter.seconds - meter.elapsed))
            return fit(
                # What they see of the data is said once, of the draws.
                lambda: (replace(way, observed=Observed()) for way in program.ways()),
                generator,
                seed,
                budget=left,
                seconds=time_left,
                target_ess=target_ess,
                exact=True,
                progress_bar=False,
            )

        observed = program.written.observed
        observed.warn()
        found = observed.judged(_heard(source, program, generator, hearing, reference or made))
        found = replace(found, reasons=(*found.reasons, _conclusion(found)))
        bar.set_description_str("agrees" if found.trusted else found.level)
    return Checked.of(found, source, program.written, program.held)


def _conclusion(verdict: Verdict) -> str:
    """What follows for the draws."""
    if verdict.trusted:
        return "So these draws may be trusted."
    if verdict.level == "not trusted":
        return "So do not trust these draws."
    found = "So these draws are neither refuted nor confirmed."
    if verdict.advice:
        return found
    return f"{found} Give check more draws, or a larger budget= or seconds=; or fit by fit."


def _heard(
    source: Source,
    program: Program,
    generator: np.random.Generator,
    hearing: _Hearing,
    reference: Callable[[], Fit],
) -> Verdict:
    written, meter = program.written, hearing.meter
    if written.dim > MOST_COORDINATES:
        many = f"Marginals and scores were not looked at: {written.dim:,} are too many."
        return hearing.verdict({}, many)
    columns, labels = _columns(program, source), None
    if len(columns.values) < 2 * columns.chains:
        raise ArgumentError(
            f"Expected two draws or more of each chain, found {len(columns.values)} in all."
        )
    if program.held:
        names = ", ".join(f"'{name}'" for name in program.held)
        hearing.told.append(f"Parameters without a prior were held at their values: {names}.")
    broken = ~np.isfinite(columns.values)
    if broken.any():
        worst = columns.names[int(broken.sum(0).argmax())]
        hearing.against.append(
            f"{broken.any(1).mean():.1%} of the draws are not finite, most in '{worst}'."
        )
        return hearing.verdict({})
    # Only where a column is constant are the supports looked at, which takes values of the program.
    if (columns.values == columns.values[0]).all(0).any():
        program.fixed = _fixed_by_supports(program)
        columns = _columns(program, source)
    alike = (columns.values == columns.values[0]).all(0)
    if alike.any():
        hearing.against.append(
            f"All draws of '{columns.names[int(alike.argmax())]}' are one number, as those of no "
            "density are. Give draws, and not a point."
        )
        return hearing.verdict({})
    numbers = effective_number(in_chains(columns.values, columns.chains))
    own = None
    if source.kind == "Markov chains" and len(columns.values) > 3 * columns.chains:
        own = _own_chains(columns, source)
    in_parts = source.kind == "draws" and float(min(numbers)) < FEW_EFFECTIVE
    if in_parts or (own is not None and own.disagree):
        # Chains may sit in different orders of labels, none of which means anything.
        labels = _labels(program, source, hearing)
    if labels is not None:
        columns = _columns(program, replace(source, draws=_ordered(labels, source.draws)))
        numbers = effective_number(in_chains(columns.values, columns.chains))
        own = None if own is None else _own_chains(columns, source)
    if own is not None:
        hearing.against += own.against
        hearing.told.append(own.told)
    sites = _by_site(columns, numbers)
    if hearing.against:
        return hearing.verdict(sites)
    is_chain = source.kind in ("Markov chains", "draws")
    worth = float(min(numbers)) if is_chain else float(len(columns.values))
    if not written.is_whole:
        with hearing.stage("batch of rows"):
            refused = _rows_refused(program, source, hearing)
            if refused is not None:
                _by_sample(program, source, hearing, worth)
        if refused is not None:
            return hearing.verdict(sites, refused)
        written = written.with_all_rows(written.starting_points)
        program = replace(program, written=written)
    with hearing.stage("scores"):
        positions = source.positions
        if positions is None:
            positions = program.unconstrain(source.draws)
        finite = np.isfinite(positions).all(1)
        if outside := _outside(program, source, positions):
            hearing.against.append(outside)
            return hearing.verdict(sites)
        # The witnesses of the density take draws for independent ones, so that no more are taken
        # than the draws are worth.
        rows = _rows(np.flatnonzero(finite), written.dim, worth)
        witness = _Witness(program, positions[rows], hearing, generator, labels)
        if len(rows) >= LEAST_DRAWS:
            witness.scores(None if source.log_density is None else source.log_density[rows])
    if hearing.against or (witness.unknown and witness.stein is None):
        return hearing.verdict(sites, *filter(None, [witness.unknown]))
    if len(rows) < LEAST_DRAWS:
        worst = columns.names[int(numbers.argmin())]
        few = f"The draws are worth {worth:.0f} independent ones, in '{worst}': too few to tell."
        if not is_chain:
            few = f"{len(rows):,} draws are too few to tell: {LEAST_DRAWS} are the least."
            few = f"{few} {comparison.MORE_DRAWS}"
        return hearing.verdict(sites, few)
    with hearing.stage("drift"):
        # Identities alone refuse nothing: the density may have jumps, at which right draws break
        # them.
        suspicious = witness.stein is not None and witness.stein.is_off
        first = witness.drift(MANY_CHAINS if suspicious else FEW_CHAINS, FEW_TRANSITIONS)
    if hearing.against or witness.unknown:
        return hearing.verdict(sites, *filter(None, [witness.unknown]))
    wanted = facts.Wanted(CHECK_ESS, True, meter.seconds - meter.elapsed)
    refused = policy.chains_refused(facts.Evidence(witness.figures, wanted))
    if refused is None and meter.left < policy.CHAIN_EVALUATIONS:
        refused = f"No fit was made: {meter.left:,} evaluations of the budget were left for it."
    theirs: Fit | None = None
    cost: tuple[Stage, ...] = ()
    if refused is None:
        try:
            theirs = reference()
        except (ArgumentError, ModelCheckError) as error:
            refused = f"No fit was made. {error}"
    if theirs is not None:
        meter.evaluations += theirs.verdict.evaluations
        cost = theirs.verdict.cost
        if theirs.verdict.level == "exact":
            with hearing.stage("comparison"):
                if labels is None and theirs.has_program:
                    labels = theirs.climbed.symmetry
                found = _compared(source, labels, witness, theirs, program)
            return _agreed(found, witness, hearing, cost)
        told = ("The comparison with chains decided nothing:", *theirs.verdict.reasons)
        refused = " ".join(told)
    assert refused is not None
    # What is left is a closer look at whether the draws stay where they are.
    if first is not None and suspicious:
        hearing.told.append(
            "The draws are not known to be wrong, but slopes of the log density speak against them."
        )
    # A fit was made and has not decided anything.
    if cost and meter.allows():
        with hearing.stage("longer drift"):
            last = witness.drift(MANY_CHAINS, MANY_TRANSITIONS)
        # It is not a number where there are too few chains to tell.
        if last is not None and not hearing.against and last.nested_r_hat >= FORGOTTEN:
            hearing.against.append(
                "Neither new chains nor chains from the draws agree among themselves, so that "
                "nothing can be told."
            )
    elif suspicious and first is None:
        hearing.against.append("Slopes of the log density at the draws speak against them.")
    return hearing.verdict(sites, refused, cost=cost)


def _outside(program: Program, source: Source, positions: Positions) -> str:
    """What is to be said of draws outside of their supports; "" where there are none."""
    if source.positions is not None:
        return ""
    nowhere = np.isnan(positions)
    values = {name: np.asarray(on_host(each), np.float64) for name, each in source.draws.items()}
    sites = _sites_of(program)
    rows = np.flatnonzero(nowhere.any(1))
    if len(rows):
        nudged = {
            name: each[rows] + NUDGE * (each.mean(0) - each[rows]) for name, each in values.items()
        }
        rows = rows[np.isnan(program.unconstrain(nudged)).any(1)]
    count = dict.fromkeys(sites, 0)
    for each in rows:
        count[sites[int(nowhere[each].argmax())]] += 1
    far = np.zeros(len(positions), bool)
    far[rows] = True
    whole = np.isfinite(positions).all(1)
    # Some maps clip what lies outside of a support, so that no position is NaN: the way there and
    # back tells.
    for name, back in program.written.numbers(positions[whole]).items():
        if name in count and name in values:
            own = values[name][whole]
            # An angle is one modulo a turn.
            apart = np.abs(np.remainder(back - own + np.pi, 2.0 * np.pi) - np.pi)
            moved = apart > OFF * values[name][whole].std(0) + SHARE_OFF * np.abs(own)
            moved_rows = np.flatnonzero(whole)[moved.reshape(len(own), -1).any(1)]
            count[name] += len(moved_rows)
            far[moved_rows] = True
    if not far.any():
        return ""
    return (
        f"{far.sum()} of {len(positions)} draws lie outside of their supports, most in "
        f"'{max(count, key=lambda name: count[name])}': there the posterior has no density."
    )


def _columns(program: Program, source: Source) -> comparison.Columns:
    columns = _varying(
        program, comparison.flat_columns(source.draws, program.shapes(), source.chains)
    )
    return replace(columns, is_spread=source.kind == "particles")


def _fixed_by_supports(program: Program) -> Bool[np.ndarray, " K"]:
    """Entries that are the same wherever the program's positions lie."""
    values = program.written.numbers(points_around(program.written.dim))
    found = comparison.flat_columns(values, program.shapes()).values
    return (np.abs(found - found[0]) <= SHARE_OFF * OFF).all(0)


def _varying(program: Program, columns: comparison.Columns) -> comparison.Columns:
    """Columns without those that a support fixes."""
    if program.fixed is None:
        return columns
    kept = np.flatnonzero(~program.fixed).tolist()
    names, sites = ([each[k] for k in kept] for each in (columns.names, columns.sites))
    return replace(columns, names=names, sites=sites, values=columns.values[:, kept])


def _own_chains(columns: comparison.Columns, source: Source) -> OwnChains:
    split = in_chains(columns.values, columns.chains)
    return own_chains(split, columns.names, source.divergent, source.energy)


def _labels(program: Program, source: Source, hearing: _Hearing) -> Symmetry | None:
    """Labels that can be exchanged without changing the density, by draws of one chain.

    Draws of which nothing is known may be of several, one after the other: the last are of one.
    """
    written = program.written
    if written.maps is None or not written.is_whole:
        return None
    with hearing.stage("labels"), suppress(SpentError):
        length = len(next(iter(source.draws.values()))) // source.chains
        first = (
            length // 2 if source.kind == "Markov chains" else length - min(OF_MODE, length // 4)
        )
        rows = np.linspace(first, length - 1, min(OF_MODE, length - first)).astype(int)
        some = {name: np.asarray(value)[rows] for name, value in source.draws.items()}
        drawn = program.unconstrain(some)
        if not np.isfinite(drawn).all():
            return None
        evaluate = hearing.meter.of(written.evaluate)
        return find_symmetry(evaluate, *written.maps, written.coordinates, drawn, written.epsilon)
    return None


def _rows_refused(program: Program, source: Source, hearing: _Hearing) -> str | None:
    """Why densities are not evaluated with all of very many rows, or None."""
    written, meter = program.written, hearing.meter
    one = {name: value[:1] for name, value in source.draws.items()}
    position = program.unconstrain(one)
    is_finite = bool(np.isfinite(position).all())
    try:
        each = timed(meter.of(written.evaluate), position[0])[1] if is_finite else math.inf
    except SpentError:
        return f"No log density was evaluated: the budget is {meter.budget:,}."
    figures = facts.Program(
        written.dim, False, each, 0.0, seconds_with_all_rows=written.seconds_with_all_rows(each)
    )
    wanted = facts.Wanted(CHECK_ESS, True, max(0.0, meter.seconds - meter.elapsed))
    return policy.rows_refused(facts.Evidence(figures, wanted))


def _by_sample(program: Program, source: Source, hearing: _Hearing, worth: float) -> None:
    """Hear the rows of a batch, where all of them are too dear."""
    written, meter = program.written, hearing.meter
    parts = written.parts()
    if not parts:
        return
    positions = source.positions
    if positions is None:
        positions = program.unconstrain(source.draws)
    rows = _rows(np.flatnonzero(np.isfinite(positions).all(1)), written.dim, worth)
    if len(rows) < LEAST_DRAWS:
        hearing.told.append(f"Only {len(rows)} draws could be looked at: too few to tell.")
        return
    first, *others = (meter.of(each) for each in parts)
    each = math.inf
    with suppress(SpentError):
        _, each = timed(first, positions[rows[0]], meter.clock)
    left = FOR_SCORES * (meter.seconds - meter.elapsed) / max(each, 1e-9)
    left = min(left, FOR_SCORES * meter.left) / len(parts)
    if left < LEAST_DRAWS:
        hearing.told.append(
            "Slopes of the log density were too dear, even by a sample of the rows."
        )
        return
    some = rows[np.linspace(0, len(rows) - 1, min(len(rows), int(left))).astype(int)]
    found = sampled_identities(
        positions[some], [first, *others], written.rows_of_batch, program.names
    )
    if found is None:
        hearing.told.append("Slopes of the log density by a sample of the rows were not finite.")
        return
    (hearing.against if found.is_off else hearing.told).append(found.told)


def rounding_noise(
    evaluate: Evaluate,
    positions: Positions,
    values: Float[np.ndarray, " R"],
    scores: Positions,
    generator: np.random.Generator,
) -> float:
    """What rounding does to log densities, in nats: what is left of small steps without the slope.

    Terms that cancel leave more of it than the size of their sum tells.
    """
    z, values, scores = positions[:STEPPED], values[:STEPPED], scores[:STEPPED]
    step = STEP * positions.std(0) * generator.normal(size=z.shape) / np.sqrt(z.shape[1])
    further, slopes = evaluate(z + step)
    # The trapezoidal rule of the slopes at both ends is right to third order in the step.
    left = further - values - 0.5 * (step * (scores + slopes)).sum(1)
    # Its middle: where the density bends sharply a step is not small.
    return float(np.median(np.abs(left[np.isfinite(left)]))) if np.isfinite(left).any() else 0.0


def _rows(finite: Float[np.ndarray, " S"], dim: int, worth: float) -> Float[np.ndarray, " R"]:
    """Rows of draws that are about independent, spread evenly."""
    most = int(min(SCORES, worth, MOST_NUMBERS // dim, len(finite)))
    return finite[np.linspace(0, len(finite) - 1, most).astype(int)] if most else finite[:0]


def _by_site(
    columns: comparison.Columns, numbers: Float[np.ndarray, " K"]
) -> dict[str, SiteFigures]:
    found = {}
    for site in dict.fromkeys(columns.sites):
        rows = [k for k, name in enumerate(columns.sites) if name == site]
        least = float(min(numbers[rows]))
        values = comparison.column_values(columns, rows, numbers, {})
        found[site] = SiteFigures(least, least, float("nan"), size=len(rows), values=values)
    return found


class _Witness:
    """The density's testimony on independent draws."""

    def __init__(
        self,
        program: Program,
        positions: Positions,
        hearing: _Hearing,
        generator: np.random.Generator,
        labels: Symmetry | None,
    ) -> None:
        self.program, self.positions, self.generator = program, positions, generator
        self.hearing, self.labels = hearing, labels
        self.evaluate = hearing.meter.of(program.written.evaluate)
        self.names = program.names
        self.stein: Stein | None = None
        self.unknown = ""
        self.noise = 0.0
        self.values: Float[np.ndarray, " R"] = np.zeros(0)
        self.figures = facts.Program(program.written.dim, True, 0.0, 0.0)

    @property
    def sees_density(self) -> bool:
        """Whether log densities are exact enough to be compared.

        Draws of a density that is rounded differ from those of the exact one.
        """
        return self.noise < ROUNDING * float(np.std(self.values))

    def scores(self, log_density: Float[np.ndarray, " R"] | None) -> None:
        """Importance ratios, Stein's identities, rounding, and latents without data."""
        hearing, written, z = self.hearing, self.program.written, self.positions
        meter, each = hearing.meter, 0.0
        left = FOR_SCORES * meter.left
        if left >= LEAST_DRAWS:
            self.evaluate(z[:1])
            began = time.perf_counter()  # the first compiles
            # Several at once, as later, of which each costs less than one alone.
            self.evaluate(z[:LEAST_DRAWS])
            each = (time.perf_counter() - began) / LEAST_DRAWS
            left = FOR_SCORES * min((meter.seconds - meter.elapsed) / max(each, 1e-9), meter.left)
        most = int(min(len(z), left))
        if most < LEAST_DRAWS:
            self.unknown = "Slopes of the log density at the draws were too dear."
            return
        chosen = np.linspace(0, len(z) - 1, most).astype(int)
        self.positions = z = z[chosen]
        log_density = None if log_density is None else log_density[chosen]
        began = time.perf_counter()
        self.values, scores = self.evaluate(z)
        each = (time.perf_counter() - began) / len(z)
        finite = np.isfinite(self.values) & np.isfinite(scores).all(1)
        zero = np.isneginf(self.values).mean()
        if zero > 0.0:
            hearing.against.append(f"The posterior's density is zero at {zero:.1%} of the draws.")
            return
        if (~finite).mean() > BROKEN:
            # What is left are draws of the posterior where it can be computed.
            self.unknown = (
                f"Log density or score could not be computed at {(~finite).mean():.1%} of the "
                "draws. Use double precision."
            )
            if finite.sum() < LEAST_DRAWS:
                return
        if beyond := told_of_bounds(written.out_of_bounds, z):
            hearing.against += beyond
            return
        # Before all that uses scores, which such a program passes with wrong draws.
        missed = false_slopes(
            self.evaluate, z, self.values, scores, written.epsilon, np.random.default_rng(0)
        )
        if missed is not None:
            so = "neither they nor chains tell of the draws"
            self.unknown = NO_SLOPES.format(where="the draws", missed=missed, so=so)
            return
        deviations = np.maximum(z.std(0), 1e-300)
        self.figures = facts.Program(
            written.dim,
            written.is_whole,
            each,
            written.epsilon * float(np.median(np.abs(self.values[finite]))),
            written.epsilon * float(np.max(np.abs(z.mean(0)) / deviations)),
        )
        hearing.against += levels.of_rounding(self.figures)
        self.noise = rounding_noise(
            self.evaluate, z[finite], self.values[finite], scores[finite], self.generator
        )
        if self.noise > levels.ROUNDING:
            hearing.told.append(
                f"Rounding moves log densities by {self.noise:.2g} nats, so they were not compared."
            )
        if log_density is not None:
            ratios = importance_ratios(z, self.values, log_density, written.epsilon, self.names)
            if ratios is not None:
                (hearing.against if ratios.is_off else hearing.told).append(ratios.told)
        self.stein = stein_identities(z[finite], scores[finite], self.names)
        hearing.told.append(self.stein.told)
        alone = untouched(self.program.parts, written.coordinates, z[finite])
        if alone and len(alone) < len(written.coordinates):
            names = ", ".join(f"'{name}'" for name in alone)
            hearing.told.append(f"The data say nothing of {names}: their posterior is their prior.")

    def drift(self, chains: int, transitions: int) -> Drift | None:
        """Short chains from the draws, as far as they can be afforded."""
        meter = self.hearing.meter
        chains = min(chains, len(self.positions))
        cost = chains * transitions * EACH_TRANSITION
        each = self.figures.seconds_per_evaluation
        left = 0.5 * min(meter.left, (meter.seconds - meter.elapsed) / max(each, 1e-9))
        chains = int(min(chains, chains * (left - TUNING * TUNING_CHAINS * EACH_TRANSITION) / cost))
        try:
            if chains < LEAST_DRAWS:
                raise SpentError
            found = drift(
                self.evaluate,
                self.positions,
                self.generator,
                self.names,
                chains=chains,
                transitions=transitions,
                ordered=None if self.labels is None else self.labels.ordered,
                sees_density=self.sees_density,
                has_budget=meter.allows,
            )
        except SpentError:
            self.hearing.told.append("Short chains from the draws would take too long.")
            return None
        if found is not None:
            (self.hearing.against if found.is_adrift else self.hearing.told).append(found.told)
        return found


def _compared(
    source: Source,
    labels: Symmetry | None,
    witness: _Witness,
    reference: Fit,
    program: Program,
) -> tuple[comparison.Comparison, comparison.Comparison]:
    """Sites' values and coordinates, and the log density, beside those of the reference.

    Labels that can be exchanged are put in order in both.
    """
    chains = reference.num_chains
    draws, reference_draws = source.draws, reference.draws
    if labels is not None:
        draws, reference_draws = (_ordered(labels, each) for each in (draws, reference_draws))
        witness.hearing.told.append(_told_of_labels(labels))
    columns = _columns(program, replace(source, draws=draws))
    positions = source.positions
    if positions is None or labels is not None:
        positions = program.unconstrain(draws)
    theirs = _varying(program, comparison.flat_columns(reference_draws, program.shapes(), chains))
    of_theirs = program.unconstrain(reference_draws)
    # A coordinate that is a site's value would be compared twice, and take a share of the level.
    new = [
        (k, site)
        for k, site in enumerate(_sites_of(program))
        if not _is_written(k, site, program, columns, positions)
        and np.isfinite(positions[:, k]).all()
        and np.isfinite(of_theirs[:, k]).all()
    ]
    rows = [k for k, _ in new]
    names = [f"unconstrained {program.names[k]}" for k in rows]
    sites = [site for _, site in new]
    own = comparison.with_further(columns, names, sites, positions[:, rows])
    theirs = comparison.with_further(theirs, names, sites, of_theirs[:, rows])
    spread = in_chains(of_theirs, chains)
    step = max(1, len(spread) * chains // SCORES)
    # Every so many draws of each chain, one chain after the other as columns have them.
    some = spread[::step].transpose(1, 0, 2).reshape(-1, spread.shape[2])
    values, _ = witness.evaluate(some)
    # Where a value is rounded to an edge of its support the density cannot be computed; one such
    # draw must not end the comparison of the others.
    least = np.min(values, where=np.isfinite(values), initial=np.inf)
    finite = np.isfinite(witness.values)
    densities = comparison.compared(
        comparison.Columns(["log density"], [""], witness.values[finite][:, None]),
        comparison.Columns(
            ["log density"],
            [""],
            np.where(np.isfinite(values), values, least)[:, None],
            chains,
        ),
        program.written.dim,
    )
    return comparison.compared(own, theirs, program.written.dim), densities


def _ordered(labels: Symmetry, draws: Mapping[str, Any]) -> dict[str, np.ndarray]:
    values = {name: np.asarray(value) for name, value in draws.items()}
    return ordered_values(labels.as_written, values)


def _told_of_labels(labels: Symmetry) -> str:
    told, order = levels.words_of_labels(labels.alike)
    return (
        f"{told} Whether the draws have all orders of them was not looked at: figures are of draws "
        f"with their labels in order of {order}. Read figures that do not depend on labels."
    )


def _sites_of(program: Program) -> list[str]:
    where = program.written.coordinates
    return [name for name, part in where.items() for _ in range(part.stop - part.start)]


def _is_written(
    k: int, site: str, program: Program, columns: comparison.Columns, positions: Positions
) -> bool:
    """Whether a coordinate is one of the site's values, which are compared anyway."""
    own = [j for j, name in enumerate(columns.sites) if name == site]
    place = k - program.written.coordinates[site].start
    if place >= len(own):
        return False
    return bool(np.allclose(columns.values[:, own[place]], positions[:, k], rtol=1e-4, atol=1e-6))


def _agreed(
    found: tuple[comparison.Comparison, comparison.Comparison],
    witness: _Witness,
    hearing: _Hearing,
    cost: Sequence[Stage],
) -> Verdict:
    sites, density = found
    if sites.wrong:
        hearing.against.append(levels.words_of_wrong(sites.wrong, len(sites.found)))
    if density.wrong and witness.sees_density:
        off = density.worst
        hearing.against.append(
            "Log densities at the draws are not spread as the posterior's are: "
            f"{off.distance:.0%} of the probability lies elsewhere (Kolmogorov distance)."
        )
    if sites.dependent:
        hearing.against.append(sites.dependent)
    told = [sites.worst.told]
    unsure = sites.unsure
    if unsure:
        told.insert(0, unsure)
    return hearing.verdict(sites.by_site, *told, confirmed=not unsure, cost=cost)
