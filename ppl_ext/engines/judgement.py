"""What a run says of its own answer at its end: a few witnesses, for a small part of its cost.

The draws that the engine would hand out are held against the density that it has fitted, with its
temperature. Where they have a density of their own, importance ratios tell how far it is from the
target's, and what weights would do to means and standard deviations. Of all draws the target's
scores tell: by Stein's identities they have mean zero, and -E[(z - c) s] is 1 in each coordinate,
less where draws lie too close together. At last, log densities of draws that have arrived differ by
no more than those of a posterior.

Modes that no draw is near are looked for by a few paths from draws of the prior, beside those that
the search for the run's start has found.

A judgement draws from a generator of its own, writes to no state, and takes at most 5 % of the run
or some 2,500 evaluations, of which paths to modes mostly take less than 100. A mode that no path
ends in is missed, and so is much of what is wrong by less than the tolerances. ``check`` looks more
closely.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtr, ndtri

from ppl_ext.errors import ArgumentError, DoubtfulFitWarning, ModelCheckError
from ppl_ext.start.find import is_near, more_modes
from ppl_ext.start.paths import Evaluate, SpentError
from ppl_ext.start.rows import Rows
from ppl_ext.start.search import WIDTH, within
from ppl_ext.start.start import Mode
from ppl_ext.statistics.khat import LEAST_KHAT_SAMPLES
from ppl_ext.target.bounds import Look, told_of_bounds
from ppl_ext.target.layouts import names_of_coordinates
from ppl_ext.witnesses.drift import DRAWS_PER_DIMENSION, Drift, drift
from ppl_ext.witnesses.ratios import LEAST_NUMBER, Ratios, importance_ratios
from ppl_ext.witnesses.sample import sampled_identities
from ppl_ext.witnesses.slopes import NO_SLOPES, false_slopes
from ppl_ext.witnesses.stein import Stein, identities_along_flows, stein_identities

#: Evaluations, at most, that are made however short the run: whole pieces, so that a piece that is
#: filled up does not lead beyond 500; and draws that are looked at, without the piece for
#: differences that scores are held against.
EVALUATIONS = 500 // WIDTH * WIDTH
DRAWS = EVALUATIONS - WIDTH
#: Share of a run's evaluations that its judgement may take where it takes all of many rows.
SHARE = 0.05
#: Evaluations that are enough, however long the run: they are made in small pieces, which take
#: longer than the run's own.
MOST = 4_000
#: Draws with fewer of which nothing is told.
LEAST = 8
#: Draws from which on fourth moments tell: with fewer one large draw more or less changes them by
#: more than their own standard error.
MANY = 200
#: Numbers that the draws may be together, 32 MiB in double precision: fewer draws of long vectors.
NUMBERS = 2**22
#: Dimensions beyond which scores of several positions at once may not find room.
LONGEST = 100_000
#: Errors that are let pass: of a mean in standard deviations, of the logarithm of a standard
#: deviation. A user reads two figures, of which neither changes a conclusion by as much.
MEAN, DEVIATION = 0.25, 0.2
#: The same of -E[(z - c) s], which is the ratio of variances where the posterior is Normal, and of
#: one draw's share of a variance.
VARIANCE = 1.0 - math.exp(-2.0 * DEVIATION)
#: Standard error of that ratio from which on scores cannot tell right draws from such that are all
#: alike, of which it is 0: so it is with few draws of many weights, far apart.
TOLD = 1.0
#: Pareto k-hat from which on ratios have no mean, so that nothing can be told by weights; and the
#: variance of log ratios for each dimension up to which that is the number of dimensions' doing:
#: half the square of a tenth, the error of a variance.
HOPELESS, OF_DIMENSIONS = 1.0, 0.005
#: Variance of log ratios of a guide whose mean is off by what is let pass in one coordinate.
OF_SHAPES = MEAN**2
#: Variance of half the distance between a Normal's quantiles at one standard deviation to either
#: side, times the number of draws.
OF_QUANTILES = 0.93
#: Effective share from which on the shape of the ratios' tail does not matter: that of ratios whose
#: logarithms have a standard deviation of a third.
EVEN = 0.9
#: Chains that a step size is found with, one piece; and the probability of calling right draws
#: adrift, or their weights uneven. Chains and draws are too few to see much at the level at which
#: check refuses draws.
TUNING_CHAINS, LEVEL = WIDTH, 1e-2
#: Share of a mode's own mass that its draws have at least, which is beyond what chance and the
#: rough masses of the search explain; and share of all mass from which on a mode counts.
FEW, COUNTS = 0.25, 0.1
#: Share of the draws that lie where the known modes have their mass, from which on masses of these
#: modes are shares of all.
MOSTLY = 0.5
#: Dimensions up to which modes are looked for, and evaluations that this may take: the Normal of a
#: new mode takes two for each dimension, and of 170 posteriors ten take more. Paths from the prior.
MOST_DIMENSIONS, FOR_MODES, PATHS = 100, 2_000, 8
#: Seconds after the first evaluation in which paths end: at draws of the prior a program may take
#: far longer than elsewhere, as one that solves differential equations.
SECONDS = 2.0
#: Evaluations in which a step size is found wherever the draws' covariance is that of the density:
#: such trajectories take some three steps, and these allow for more than fifteen.
ENOUGH = 1_500
#: Transitions of short chains, at most, and chains.
MOST_TRANSITIONS, MOST_CHAINS = 8, 128
#: Standard deviation of log densities, times the root of the dimensions, that no posterior has:
#: that of a log-concave density has 1 at most (M. Fradelizi, O. Guedon, A. Pajor, 2014).
SPREAD = 5.0

#: Modules whose lines are not the user's.
_OWN = ("ppl_ext", "pyro_ext", "numpyro_ext")

_IN_FIT: ContextVar[bool] = ContextVar("_IN_FIT", default=False)


@contextmanager
def unjudged() -> Iterator[None]:
    """Context in which runs are not judged: a fit looks at the draws of its engine itself."""
    before = _IN_FIT.set(True)
    try:
        yield
    finally:
        _IN_FIT.reset(before)


@dataclass(frozen=True)
class Drawn:
    """Draws to be judged.

    Attributes
    ----------
    positions : array (S, D)
        In flat unconstrained space.
    log_density : array (S,), optional
        The approximation's own there.
    where : array of int, optional
        The coordinates that are drawn; others are held where they are.
    """

    positions: Float[np.ndarray, "S D"]
    log_density: Float[np.ndarray, " S"] | None = None
    where: Int[np.ndarray, " d"] | None = None


@dataclass(frozen=True)
class Judgement:
    """What a run's end says for and against its answer; ``print`` shows it.

    Attributes
    ----------
    engine : str
    reasons : tuple of str
        What speaks against the answer; none where nothing was found.
    told : tuple of str
        What else was found, and what was not looked at.
    draws, evaluations : int
        Draws that were looked at, and log densities with scores that this took.
    centred : tuple of str
        Sites of latent scale that the program does not write non-centred, which
        ``reparameterise=True`` does.
    ratios : Ratios, optional
        Importance ratios: ``khat``, ``share``, and what weights do to moments.
    stein : Stein, optional
        Stein's identities by coordinate.
    variance, variance_error : float
        Mean over the coordinates of -E[(z - c) s], which is 1 for draws of the posterior and less
        for draws that lie too close together, and its standard error.
    spread : float
        Standard deviation of the draws' log densities, in nats.
    drift : Drift, optional
        How far short chains of an exact kernel move from draws without a density.
    of_chains : bool
        Whether these are chains, which are judged by how they move.

    Examples
    --------
    >>> found = Judgement("SVGD", ("The draws lie too close together.",))  # as a run gives it
    >>> found.doubtful
    True
    >>> print(found)
    SVGD: the answer is doubtful.
      - The draws lie too close together.
    """

    engine: str
    reasons: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    draws: int = 0
    evaluations: int = 0
    centred: tuple[str, ...] = ()
    ratios: Ratios | None = field(default=None, repr=False, compare=False)
    stein: Stein | None = field(default=None, repr=False, compare=False)
    variance: float = math.nan
    variance_error: float = math.nan
    spread: float = math.nan
    drift: Drift | None = field(default=None, repr=False, compare=False)
    of_chains: bool = False

    @property
    def doubtful(self) -> bool:
        """Whether something speaks against the answer."""
        return bool(self.reasons)

    def __str__(self) -> str:
        if self.doubtful:
            first = f"{self.engine}: the answer is doubtful."
        elif self.of_chains:
            first = f"{self.engine}: nothing was found against the answer."
        elif self.stein is None:
            first = f"{self.engine}: the answer was not judged."
        elif self.ratios is None and self.drift is None:
            first = f"{self.engine}: scores say nothing against the answer, and see little."
        else:
            first = f"{self.engine}: nothing was found against the answer."
        lines = [*self.reasons, *self.told]
        if self.draws and self.of_chains:
            lines.append(f"{self.draws:,} draws.")
        elif self.draws:
            lines.append(f"{self.draws:,} draws, {self.evaluations:,} evaluations.")
        return "\n".join([first, *(f"  - {each}" for each in lines)])

    def warn(self) -> None:
        """Say what speaks against the answer, if anything does, at the line that asked for it."""
        if self.doubtful:
            names = ", ".join(f"'{name}'" for name in self.centred)
            other = f"write {names} non-centred (`reparameterise=True`), " if names else ""
            # Kernels of the hosts' MCMC return no result.
            place = "The kernel's `judge`" if self.of_chains else "`result.judgement`"
            warnings.warn(
                f"The answer of {self.engine} is doubtful: {' '.join(self.reasons)} Look at it by "
                f"`check`, run longer, {other}or use `fit`, which chooses by itself. "
                f"{place} has the figures.",
                DoubtfulFitWarning,
                stacklevel=_level_of_the_caller(),
            )


def _level_of_the_caller() -> int:
    """How many frames lie between a warning and whoever called into these packages."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OWN):
        level, frame = level + 1, frame.f_back
    return level


@dataclass(frozen=True)
class EndedRun:
    """What a judgement asks of a run that has ended.

    Attributes
    ----------
    engine : str
    dim : int
    coordinates : mapping of str to slice
        Range of the flat vector that each site takes.
    epsilon : float
        Machine epsilon with which densities are computed.
    steps : int
        That it took.
    evaluations : float
        That it took, each with all rows.
    draw : callable
        So many draws at most.
    rows : callable
        What evaluates the target's density.
    has_rows : bool
        Whether the arguments hold all rows of the data, or a run's batches are kept.
    draws_take_all_rows : bool
        Whether no draw is made without a pass over them.
    modes : tuple of Mode
        That the search for its start has found.
    centred : tuple of str
        See :class:`Judgement`.
    constrain : callable, optional
        From flat positions (S, D) to the values of sites, arrays (S, ...) on the host.
    notes : tuple of str
        What is told of the engine's answer whatever its draws show.
    out_of_bounds : callable, optional
        See :data:`~ppl_ext.target.bounds.Look`.
    prior : callable, optional
        So many flat positions (S, D) that are draws of the prior; raises where there are none.
    """

    engine: str
    dim: int
    coordinates: dict[str, slice]
    epsilon: float
    steps: int
    evaluations: float
    draw: Callable[[int], Drawn]
    rows: Callable[[], Rows]
    has_rows: bool = True
    draws_take_all_rows: bool = False
    modes: tuple[Mode, ...] = ()
    centred: tuple[str, ...] = ()
    constrain: Callable[[np.ndarray], Mapping[str, Any]] | None = None
    notes: tuple[str, ...] = ()
    out_of_bounds: Look | None = None
    prior: Callable[[int], Float[np.ndarray, "S D"]] | None = None

    @property
    def names(self) -> list[str]:
        """Of each coordinate of the flat vector."""
        return names_of_coordinates(self.coordinates)


def judge(run: EndedRun) -> Judgement:
    """The judgement of a run; what cannot be looked at is said in it."""
    nothing = Judgement(run.engine, centred=run.centred)
    if _IN_FIT.get():
        return replace(nothing, told=("Not judged: the fit looks at its draws itself.",))
    if run.steps == 0:
        return replace(nothing, told=("Not judged: no step was taken.",))
    if run.dim > LONGEST:
        many = f"Not judged: {run.dim:,} latent numbers are too many."
        return replace(nothing, told=(many,))
    if not run.has_rows:
        batch = (
            "Not judged: of the batches of the run no sample of the rows could be kept, or each "
            "draw takes all rows. Use check with all rows."
        )
        return replace(nothing, told=(batch,))
    try:
        with np.errstate(all="ignore"):
            found = _judged(run)
        return replace(found, told=(*found.told, *run.notes))
    except (ArgumentError, ModelCheckError) as error:
        text = str(error).partition("\n")[0]
        return replace(nothing, told=(f"Not judged: {text}",))
    except (ArithmeticError, RuntimeError, ValueError) as error:
        # A run's answer is handed out even where it cannot be drawn from or evaluated.
        text = str(error).partition("\n")[0]
        reason = f"It could not be drawn from, or evaluated at its draws: {text}"
        return replace(nothing, reasons=(reason,))
    except Exception as error:  # noqa: BLE001 - whatever it is, the run has its answer.
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        return replace(nothing, told=(f"Not judged: the look at its draws failed with {text}",))


def _judged(run: EndedRun) -> Judgement:
    rows, number = run.rows(), min(DRAWS, NUMBERS // run.dim)
    evaluate, parts = rows.few, []
    if rows.times > 1.0:
        affordable = int(SHARE * run.evaluations)
        if rows.every is not None and affordable >= LEAST * WIDTH:
            evaluate, number = rows.every, min(number, affordable)
        else:
            parts = list(rows.parts())
            number = min(number, EVALUATIONS // max(1, len(parts)))
            if not parts or number < LEAST or run.draws_take_all_rows:
                many = "Not judged: all rows are too many."
                return Judgement(run.engine, told=(many,), centred=run.centred)
    drawn = run.draw(number)
    positions = drawn.positions
    # Evenly over all draws, since those of neighbouring particles or steps may be alike.
    some = np.linspace(0, len(positions) - 1, min(len(positions), number)).astype(int)
    log_q = None if drawn.log_density is None else np.asarray(drawn.log_density[some], np.float64)
    z = np.asarray(positions[some], np.float64)
    found = Judgement(
        run.engine,
        draws=len(z),
        evaluations=len(z) * max(1, len(parts)),
        centred=run.centred,
    )
    broken = ~np.isfinite(z).all(1)
    if broken.any():
        return replace(found, reasons=(f"{broken.mean():.1%} of the draws are not finite.",))
    if parts:
        return _by_rows(run, found, z, rows, parts)
    values, scores = evaluate(z)
    missed = false_slopes(evaluate, z, values, scores, run.epsilon, np.random.default_rng(0))
    if missed is not None:
        # Nothing else can be told by scores that are none.
        so = "the engine does not see it, and the draws are of another posterior"
        reason = NO_SLOPES.format(where="the draws", missed=missed, so=so)
        return replace(found, reasons=(reason,))
    spent = 0
    if rows.times <= 1.0:
        best = z[np.where(np.isfinite(values), values, -np.inf).argmax()]
        modes, spent = _modes(run, best, evaluate)
        run = replace(run, modes=modes)
    found = replace(found, evaluations=found.evaluations + WIDTH + spent)
    reasons, told = _missed_modes(run, z, evaluate)
    reasons = (*told_of_bounds(run.out_of_bounds, z), *reasons)
    found = replace(found, reasons=reasons, told=told)
    found = _by_density(run, found, z, values, scores, log_q, drawn.where)
    if found.doubtful or log_q is not None:
        return found
    most = max(EVALUATIONS, min(MOST, int(SHARE * run.evaluations))) - found.evaluations + spent
    return _by_drift(run, found, z, evaluate, most)


def _by_density(
    run: EndedRun,
    found: Judgement,
    z: Float[np.ndarray, "S D"],
    values: Float[np.ndarray, " S"],
    scores: Float[np.ndarray, "S D"],
    log_q: Float[np.ndarray, " S"] | None,
    where: Int[np.ndarray, " d"] | None,
) -> Judgement:
    reasons, told = list(found.reasons), list(found.told)
    finite = np.isfinite(values) & np.isfinite(scores).all(1)
    if not finite.all():
        reasons.append(
            f"Log density or score is not finite at {(~finite).mean():.1%} of the draws."
        )
    if finite.sum() < LEAST:
        told.append(f"Only {finite.sum()} draws could be looked at.")
        return replace(found, reasons=tuple(reasons), told=tuple(told))
    names, coordinates = run.names, run.coordinates
    if where is not None and len(where) < run.dim:
        held = dict.fromkeys(names[k] for k in np.setdiff1d(np.arange(run.dim), where))
        told.append(f"Held where they are, and not judged: {', '.join(held)}.")
        coordinates = {}
        z, scores, names = z[:, where], scores[:, where], [names[k] for k in where]
    dim = len(names)
    spread = float(values[finite].std(ddof=1))
    if spread > SPREAD * math.sqrt(dim):
        reasons.append(
            f"Log densities of the draws differ by {spread:.3g} nats (one standard deviation), far "
            f"more than those of a posterior of {dim} dimension(s): some have not arrived."
        )
    ratios = None
    if log_q is not None and len(z) >= LEAST_KHAT_SAMPLES and np.isfinite(log_q).all():
        # A draw where the density is not finite has no weight, and is not left out: it stands for
        # mass of the guide.
        known = np.where(finite, values, -np.inf)
        ratios = importance_ratios(z, known, log_q, run.epsilon, names)
        assert ratios is not None
        ratios = replace(ratios, tolerances=(MEAN, DEVIATION), level=LEVEL)
        uneven = ratios.share * len(z) < LEAST_NUMBER or (
            ratios.khat.khat >= HOPELESS and ratios.share < EVEN
        )
        # Errors of each coordinate that pass add up over many: ratios are uneven then, and tell of
        # no fault.
        by_dimensions = float((values - log_q)[finite].var()) < OF_DIMENSIONS * dim
        off = not by_dimensions if uneven else ratios.moves
        (reasons if off else told).append(ratios.told)
        if ratios.is_skewed:
            reasons.append(ratios.told_of_skewness)
        if not off and ratios.is_misplaced:
            reasons.append(ratios.told_of_distance)
        if not reasons and (other := _other_shape((values - log_q)[finite], dim)):
            reasons.append(other)
    stein = stein_identities(z[finite], scores[finite], names)
    stein = replace(stein, tolerances=(MEAN, VARIANCE))
    variance, error = _variance(z[finite], scores[finite])
    (reasons if stein.is_off else told).append(stein.told)
    flows = identities_along_flows(z[finite], scores[finite], names, coordinates)
    if flows is not None and not stein.is_off:
        flows = replace(flows, tolerances=(MEAN, VARIANCE), level=LEVEL)
        if flows.is_off:
            reasons.append(f"With sites that follow others moved along: {flows.told}")
    tails, tails_error = _tails(z[finite], scores[finite])
    allowed = np.hypot(VARIANCE, stein.quantile * tails_error)
    worst = int((np.abs(tails - 1.0) / allowed).argmax())
    if len(z) >= MANY and not np.abs(tails[worst] - 1.0) <= allowed[worst]:
        reasons.append(
            f"The tails of '{names[worst]}' are not the posterior's: -E[(z - c)^3 s] / 3 E[(z - "
            f"c)^2] is {tails[worst]:.2f} ± {tails_error[worst]:.2f} (1)."
        )
    off = abs(variance - 1.0) > math.hypot(VARIANCE, 3.0 * error)
    if off or not math.isfinite(variance):
        way = "close together" if variance < 1.0 else "far apart"
        reasons.append(
            f"The draws lie too {way}: by their scores their variance is {variance:.2f} ± "
            f"{error:.2f} times the posterior's, over all {dim} coordinates."
        )
    return replace(
        found,
        reasons=tuple(reasons),
        told=tuple(told),
        ratios=ratios,
        stein=stein,
        variance=variance,
        variance_error=error,
        spread=spread,
    )


def _other_shape(ratios: Float[np.ndarray, " S"], dim: int) -> str:
    """What is to be said of log ratios that spread by more than errors of moments that pass.

    The spread is of the middle, which few draws tell well and heavy tails do not change.
    """
    low, high = np.quantile(ratios, ndtr([-1.0, 1.0]))
    spread, allowed = 0.5 * (high - low), math.sqrt(OF_SHAPES + OF_DIMENSIONS * dim)
    # Of a Normal's quantiles: 0.16 * 0.84 / density^2 each, half of their difference.
    error = spread * math.sqrt(OF_QUANTILES / len(ratios))
    if not spread - float(ndtri(1.0 - LEVEL)) * error > allowed:
        return ""
    return (
        "The draws have another shape than the posterior: logarithms of their importance ratios "
        f"spread by {spread:.2f} ± {error:.2f} nats, where at most {allowed:.2f} are let pass. A "
        "guide of another shape, or `fit`, helps."
    )


def _variance(z: Float[np.ndarray, "S D"], scores: Float[np.ndarray, "S D"]) -> tuple[float, float]:
    """Mean over coordinates of -E[(z - c) s], with its standard error."""
    number = len(z)
    # Of draws whose mean is their own, a share 1 / S of it is missing.
    each = -((z - z.mean(0)) * scores).mean(1) * number / (number - 1.0)
    return float(each.mean()), float(each.std(ddof=1) / math.sqrt(number))


def _modes(
    run: EndedRun, best: Float[np.ndarray, " D"], evaluate: Evaluate
) -> tuple[tuple[Mode, ...], int]:
    """The modes of the search and those of paths from the prior, and what these paths took.

    Where there was no search, a path from the best draw finds the mode that the draws are of.
    """
    if run.prior is None or run.dim > MOST_DIMENSIONS:
        return run.modes, 0
    try:
        points = run.prior(PATHS)
    except Exception:  # noqa: BLE001 - improper, or whatever a program does: no look is made.
        return run.modes, 0
    points = points[np.isfinite(points).all(1)]
    if not run.modes:
        points = np.concatenate([best[None], points])
    timely = within(evaluate, SECONDS, time.perf_counter)
    limited, new = _Limited(timely, FOR_MODES), tuple[Mode, ...]()
    with suppress(SpentError):
        generator = np.random.default_rng(0)
        new, _ = more_modes(limited, points, run.modes, generator, run.epsilon)
    modes = sorted((*run.modes, *new), key=lambda mode: mode.log_mass, reverse=True)
    return tuple(modes[:WIDTH]), limited.spent


def _missed_modes(
    run: EndedRun, z: Float[np.ndarray, "S D"], evaluate: Evaluate
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What speaks against draws, and what else is told, of modes without draws."""
    modes = run.modes
    if not 1 < len(modes) <= WIDTH:
        return (), ()
    if np.any([is_near(mode, z) for mode in modes], axis=0).mean() < MOSTLY:
        return (), ()
    # By Laplace's method: the search's own bounds on masses are loose where modes are bent.
    heights = evaluate(np.stack([mode.mean for mode in modes]))[0]
    masses = heights + np.array([mode.log_scale for mode in modes])
    shares = np.exp(masses - masses.max())
    shares = shares / shares.sum()
    held = np.bincount(_nearest_mode(modes, z), minlength=len(modes)) / len(z)
    most, exchanged = int(held.argmax()), 0.0
    for k in np.flatnonzero(held < FEW * shares):
        apart = {
            # Sorted within a site: two modes that differ by an exchange of labels have the same
            # numbers.
            name: np.abs(np.sort(modes[k].mean[where]) - np.sort(modes[most].mean[where])).max()
            for name, where in run.coordinates.items()
        }
        if max(apart.values()) <= modes[k].deviations.max():
            exchanged += shares[k]  # Of labels, within sites.
        elif shares[k] > COUNTS:
            doubt = (
                f"The search for a start and paths from the prior found {len(modes)} modes; one "
                f"with about {shares[k]:.0%} of the mass has {held[k]:.0%} of the draws."
            )
            return (doubt,), ()
    if exchanged > COUNTS:
        # Whoever reads figures of one label means them in one order.
        order = (
            f"Modes without draws, about {exchanged:.0%} of the mass, are others with labels "
            "exchanged: figures of one label are those of the order that the draws have."
        )
        return (), (order,)
    return (), ()


def _nearest_mode(modes: Sequence[Mode], z: Float[np.ndarray, "S D"]) -> Int[np.ndarray, " S"]:
    """The mode whose Normal has most density at each draw, the modes' masses alike."""
    logs = [-0.5 * np.square(mode.whitened(z)).sum(1) - mode.log_scale for mode in modes]
    return np.stack(logs).argmax(0)


def _within_modes(modes: Sequence[Mode], z: Float[np.ndarray, "S D"]) -> Float[np.ndarray, "S D"]:
    """The draws less the mean of those that are near the same mode."""
    if not 1 < len(modes) <= WIDTH:
        return z
    nearest, moved = _nearest_mode(modes, z), z.copy()
    for mode in np.unique(nearest):
        moved[nearest == mode] -= z[nearest == mode].mean(0)
    return moved


class _Limited:
    """Evaluations that are counted in whole pieces, which is what is computed, and end at most so
    many."""

    def __init__(self, evaluate: Evaluate, most: int) -> None:
        self._evaluate, self._most, self.spent = evaluate, most, 0

    def __call__(
        self, positions: Float[np.ndarray, "P D"]
    ) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, "P D"]]:
        number = -len(positions) // WIDTH * -WIDTH
        if self.spent + number > self._most:
            raise SpentError
        self.spent += number
        return self._evaluate(positions)


def _by_drift(
    run: EndedRun, found: Judgement, z: Float[np.ndarray, "S D"], evaluate: Evaluate, most: int
) -> Judgement:
    """Short chains from the draws, as far as so many evaluations last."""
    limited = _Limited(evaluate, most)
    try:
        moved = drift(
            limited,
            z,
            np.random.default_rng(0),
            run.names,
            like=_within_modes(run.modes, z),
            chains=min(len(z), MOST_CHAINS),
            transitions=MOST_TRANSITIONS,
            tuning_chains=TUNING_CHAINS,
            least=1,
            # A fifth is left for the transition that is under way.
            has_budget=lambda: limited.spent * 1.2 < most,
        )
    except SpentError:
        if most >= ENOUGH and len(z) >= DRAWS_PER_DIMENSION * run.dim:
            stiff = (
                f"Within {most:,} evaluations no step size was found with which short chains move "
                "in the draws' own coordinates: the density bends sharply where they lie, as in "
                "the neck of a funnel."
            )
            reasons = (*found.reasons, stiff)
            return replace(found, reasons=reasons, evaluations=found.evaluations + most)
        found = replace(found, evaluations=found.evaluations + most)
        dear = "Short chains from the draws, which see most, were too dear: take more steps."
        if found.variance_error > TOLD:
            unknown = (
                "Whether the draws are right cannot be told: by their scores their variance is "
                f"{found.variance:.2f} ± {found.variance_error:.2f} times the posterior's. {dear}"
            )
            return replace(found, reasons=(unknown,))
        return replace(found, told=(*found.told, dear))
    found = replace(found, evaluations=found.evaluations + limited.spent, drift=moved)
    if moved is None:
        return found
    moved = replace(moved, level=LEVEL)
    if moved.stuck:
        narrow = (
            f"{moved.stuck} of {moved.chains} draws lie where the density is many times narrower "
            "than at the others, as in the neck of a funnel: no chain with their step leaves."
        )
        return replace(found, reasons=(narrow,), drift=moved)
    if moved.is_adrift:
        return replace(found, reasons=(moved.told,), drift=moved)
    if alone := _alone(run, moved):
        return replace(found, reasons=(alone,), drift=moved)
    return replace(found, told=(*found.told, moved.told), drift=moved)


def _alone(run: EndedRun, moved: Drift) -> str:
    """What is to be said of a standard deviation that rests on one draw that is out of place.

    Ranks do not see one draw of many that lies too far out, and a standard deviation sees little
    else. A draw that no transition moves lies where the density is narrower than at the others.
    """
    if run.constrain is None or moved.starts is None or moved.unmoved is None:
        return ""
    if not moved.unmoved.any():
        return ""
    for name, values in run.constrain(moved.starts).items():
        flat = np.asarray(values, np.float64).reshape(len(values), -1)
        squares = np.square(flat - flat.mean(0))
        shares = squares / np.maximum(squares.sum(0), np.finfo(float).tiny)
        for column, farthest in enumerate(shares.argmax(0)):
            share = shares[farthest, column]
            if share > VARIANCE and moved.unmoved[farthest]:
                entry = f"{name}[{column}]" if flat.shape[1] > 1 else name
                return (
                    f"One of {len(flat)} draws alone makes {share:.0%} of the variance of "
                    f"'{entry}', and short chains do not move it: the density is narrower there."
                )
    return ""


def _tails(
    z: Float[np.ndarray, "S D"], scores: Float[np.ndarray, "S D"]
) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " D"]]:
    """-E[(z - c)^3 s] / 3 E[(z - c)^2], 1 for draws of the posterior, and its standard errors.

    A Normal that is matched to a density with heavy tails keeps both identities of lower order.
    """
    moves = z - z.mean(0)
    squares = 3.0 * np.square(moves).mean(0)
    each = -(moves**3) * scores / squares
    # The ratio's error: that of the difference at its value.
    ratio = each.mean(0)
    left = each - ratio * 3.0 * np.square(moves) / squares
    return ratio, left.std(0, ddof=1) / math.sqrt(len(z))


def _by_rows(
    run: EndedRun,
    found: Judgement,
    z: Float[np.ndarray, "S D"],
    rows: Rows,
    parts: Sequence[Evaluate],
) -> Judgement:
    """Stein's identities by a sample of very many rows."""
    sampled = sampled_identities(z, parts, rows.number, run.names, (MEAN, VARIANCE))
    if sampled is None:
        return replace(found, reasons=("Scores at the draws are not finite.",))
    found = replace(found, stein=sampled.stein)
    if sampled.is_off:
        return replace(found, reasons=(sampled.told,))
    return replace(found, told=(sampled.told,))


__all__ = ["Drawn", "Judgement", "EndedRun", "judge"]
