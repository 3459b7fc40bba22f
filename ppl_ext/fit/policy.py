"""How far a fit climbs: from the figures so far to the next rung, and to a level in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ppl_ext.chains.coupling import Coupled
from ppl_ext.chains.sampler import MIXTURE_DIMENSIONS, MOST_DIVERGENT
from ppl_ext.diagnostics.importance import khat_in_words
from ppl_ext.fit.labels import Orders
from ppl_ext.fit.verdict import Level, Verdict

Rung = Literal["all rows", "engine", "correct", "chains", "end"]

#: Beyond so many dimensions chains are not tried.
MOST_DIMENSIONS = 2_000
#: Evaluations that a search and importance ratios take, and share of the seconds that these may
#: take where they want all of very many rows.
ROW_EVALUATIONS, ROW_SHARE = 2_500, 0.5
#: Evaluations that chains may take, for which there must be time for them to be tried.
CHAIN_EVALUATIONS = 20_000
#: Draws that importance ratios are taken at, an evaluation each, and the evaluations that chains
#: take at least before they are worth anything: 16 chains, 36 transitions, eight evaluations each.
DRAWS, LEAST_CHAINS = 1_000, 4_608
#: How far the figures of an engine that has not settled may still move, in standard deviations.
NEARLY = 0.5
#: Dimensions up to which an engine fits a full Normal, and one of low rank.
FULL, LOW_RANK = 200, 1_000
#: Pareto k-hat below which, and share of the draws that the weights must leave, for reweighted
#: draws to be trusted.
BEST_KHAT, BEST_SHARE = 0.5, 0.3
#: Pareto k-hat below which jumps to draws of the approximation are chains enough: they cost an
#: evaluation each, where trajectories take ten and more. Above, tails of the approximation are
#: thin, and chains that have few draws there look settled.
CLOSE_KHAT = 0.3
#: Mixtures are fitted to weighted draws, so many in turn at most, until jumps alone are enough;
#: where these cannot be, until the share is above the second number. After three mixtures not where
#: the share is below the last.
MIXTURES, NEAR_SHARE, HOPELESS = 5, 0.5, 0.1
#: Total variation distance that pairs may leave open, draws that jumps may take for each effective
#: one that is wanted (for 400 of them, and 850 known ones, the 2,800 evaluations that trajectories
#: take at least), and acceptance below which pairs of other chains are not tried.
OPEN, MOST_JUMPS, LEAST_JUMPS = 0.15, 9.0, 0.05
#: Effective draws of the tails, as a share of those that are wanted, that chains which jump alone
#: have at least: independent draws have as many there as in the middle, and where weights are large
#: in a tail chains stay there.
JUMPS_TAIL_SHARE = 0.5
#: Chains: R-hat that they run for, and at most. In the worst of a hundred entries 400 effective
#: draws have 1.02 by chance. Share of stuck chains at most, and effective numbers of the tails as a
#: share of those of the middle.
R_HAT, MOST_R_HAT, STUCK, TAIL_SHARE = 1.02, 1.03, 0.0, 0.25
#: The same of chains of which pairs do not meet, and standard errors of standard deviations, as a
#: share of them, that these run for: nothing but their agreement tells that they have come to rest.
#: R-hat is that of chains with heavy tails as well, which an improper posterior has at first.
SURE_R_HAT, MOST_SURE_R_HAT, SURE_DEVIATION = 1.0035, 1.005, 0.03
#: The same standard error where Pareto k-hat says that no approximation is near.
FAR_KHAT, FAR_DEVIATION = 0.7, 0.05
#: Standard error of standard deviations at most, as a share of what was asked for: the error of 16
#: chains is itself known to 18 % only, and this is two of those more.
MOST_DEVIATION = 4.0 / 3.0
#: Chains that had the effective draws that were asked for, and went on, have this share of them at
#: least: an estimate of their number varies by a fifth.
STILL = 0.5
#: Factor by which the curvature of sites of latent scale may change between two places for chains
#: to be believed as elsewhere. Chains whose steps are tuned to the widths at one of them do not
#: enter a neck of half of these, and nothing that they see tells.
STRAINED = 3.5
#: Nats of rounding in the log density at most, and standard deviations of rounding in positions.
ROUNDING, GRAIN = 0.1, 0.02
#: Share of the last paths that found new modes at most.
NEW_MODES = 0.25
#: Share of draws at which the log density is not a number that is told, where a fit is refused.
UNDEFINED = 0.01
#: Modes up to which the verdict names the share of each.
MOST_SHARES = 6
#: Share of the posterior in orders of labels that draws do not have, at most: labels ten standard
#: deviations apart shift a mean by a twentieth of one then, as 400 draws leave it uncertain.
MISSING = 0.005


@dataclass(frozen=True)
class Program:
    """What is known before the first step.

    Attributes
    ----------
    dim : int
    is_whole : bool
        Whether every evaluation takes all rows.
    seconds_per_evaluation : float
    seconds_with_all_rows : float
        Likewise, estimated where evaluations take a batch.
    has_engine : bool
        Whether an engine can fit it by minibatches.
    rounding : float
        Nats: machine epsilon times the size of log densities near the mode.
    grain : float
        Machine epsilon times the size of positions, in standard deviations.
    strain : float
        Factor by which widths of sites of latent scale still change with their scales, where they
        are written partly non-centred.
    far_out : int
        Evaluations that tell whether the density falls far out, where a prior is improper.
    """

    dim: int
    is_whole: bool
    seconds_per_evaluation: float
    rounding: float
    grain: float = 0.0
    seconds_with_all_rows: float = 0.0
    has_engine: bool = True
    strain: float = 1.0
    far_out: int = 0


@dataclass(frozen=True)
class Modes:
    """What the search found: separate modes, and the share of the last paths that found more.

    ``exchanged`` names sites whose entries change places from one mode to another, and where they
    do on the first axis; ``orders`` tells which orders of their labels draws have. ``alike`` names
    the sites of labels whose exchange leaves the density as it is, and after them the site that
    orders the labels: modes that differ by them count once, and draws have them in random orders.
    ``cut`` tells that the budget ended before the search did. ``paths`` are those that were
    followed, ``from_prior`` those of them that started at draws of the prior, and ``no_prior`` is
    why there are none of these. ``share_errors`` are standard errors of the shares, where these are
    by importance weights. ``left`` tells that the last chains still met another mode.
    """

    number: int
    last_new: float
    shares: tuple[float, ...]
    exchanged: tuple[tuple[str, tuple[int, ...]], ...] = ()
    orders: Orders = field(default_factory=Orders)
    alike: tuple[tuple[tuple[str, ...], str], ...] = ()
    cut: bool = False
    paths: int = 0
    from_prior: int = 0
    no_prior: str = ""
    left: bool = False
    share_errors: tuple[float, ...] = ()


@dataclass(frozen=True)
class Correction:
    """Importance ratios of the approximation: Pareto k-hat, and the weights' effective share.

    ``undefined`` is the share of draws at which the log density is not a number.
    """

    khat: float
    share: float
    undefined: float = 0.0


@dataclass(frozen=True)
class Chained:
    """Figures of chains, with the site that is worst.

    ``deviation_error`` is the standard error of the least certain standard deviation as a share of
    it, and ``deviation_number`` the number that has it; ``heavy`` the sites whose tails are too
    heavy for one, ``endless`` those whose draws come near the largest numbers there are,
    and ``improper`` those whose prior has no normaliser. ``has_other_form`` tells whether the worst
    site may be written non-centred and is not, and ``draws`` how many all chains have. All these
    are of the sites as written; ``coordinate_r_hat`` is the largest of the unconstrained
    coordinates.
    """

    r_hat: float
    ess_bulk: float
    ess_tail: float
    deviation_error: float
    heavy: tuple[str, ...]
    divergent: float
    stuck: float
    is_adrift: bool
    worst_site: str
    endless: tuple[str, ...] = ()
    has_other_form: bool = False
    coordinate_r_hat: float = 1.0
    coordinate_site: str = ""
    improper: tuple[str, ...] = ()
    draws: int = 0
    deviation_number: str = ""

    @property
    def words(self) -> str:
        """What is least certain, and how many of the draws of all chains count there."""
        of_draws = f" of {self.draws:,} draws" if self.draws else ""
        return (
            f"Least certain is '{self.worst_site}': R-hat {self.r_hat:.3f}, ESS "
            f"{self.ess_bulk:,.0f}{of_draws} (tails {self.ess_tail:,.0f})."
        )


@dataclass(frozen=True)
class Engine:
    """What an engine did: its name and steps, and whether its figures came to rest.

    ``moving`` is how far they still moved, in standard deviations and in words.
    """

    name: str
    steps: int
    settled: bool
    moving: float = 0.0
    figure: str = ""


@dataclass(frozen=True)
class Wanted:
    """What the user asks for: effective draws, whether chains may run, seconds, whether the draws
    are to be those of an engine, and an error of standard deviations, as a share of them."""

    target_ess: float
    exact: bool
    seconds: float
    engine: bool = False
    deviation_error: float | None = None


@dataclass(frozen=True)
class Evidence:
    """All figures so far.

    ``dropped`` tells which ways to write the program were, and why; ``left`` is what is left of the
    budget, in evaluations. ``coupled`` are pairs of chains, ``rested`` tells that the chains had
    done what was asked before they went on. ``flat`` are sites with an improper prior along which
    the density does not fall far out.
    """

    program: Program
    wanted: Wanted
    modes: Modes | None = None
    correction: Correction | None = None
    chains: Chained | None = None
    engine: Engine | None = None
    dropped: tuple[str, ...] = ()
    left: float = math.inf
    coupled: Coupled | None = None
    rested: bool = False
    flat: tuple[str, ...] = ()


def next_rung(evidence: Evidence) -> Rung:
    """Where to climb from here."""
    program = evidence.program
    if evidence.chains is not None or evidence.engine is not None:
        return "end"
    if not program.is_whole and rows_refused(evidence) is None:
        return "all rows"
    may_chain = evidence.wanted.exact and chains_refused(evidence) is None
    if not program.is_whole or program.dim > MOST_DIMENSIONS:
        return "engine" if program.has_engine else "end"
    if evidence.wanted.engine and not may_chain:
        return "engine"
    if evidence.correction is None:
        return "correct" if evidence.left >= DRAWS + program.far_out else "end"
    return "chains" if may_chain else "end"


def guide_for(dim: int) -> str:
    """The host's guide that an engine fits where the user names none: a Normal, by name."""
    if dim <= FULL:
        return "AutoMultivariateNormal"
    return "AutoLowRankMultivariateNormal" if dim <= LOW_RANK else "AutoDiagonalNormal"


def rows_refused(evidence: Evidence) -> str | None:
    """Why densities are not evaluated with all of very many rows, or None."""
    program = evidence.program
    if program.dim > MOST_DIMENSIONS:
        return (
            "Only batches of the rows were looked at: the program has too many parameters for all."
        )
    cost = ROW_EVALUATIONS * program.seconds_with_all_rows
    if cost > ROW_SHARE * evidence.wanted.seconds:
        return (
            f"Only batches of the rows were looked at: with all rows the search alone would take "
            f"about {cost:.0f} s, more than {ROW_SHARE:.0%} of the {evidence.wanted.seconds:.3g} s "
            "that seconds= allows."
        )
    return None


def chains_refused(evidence: Evidence) -> str | None:
    """Why chains are not tried, or None."""
    program = evidence.program
    if not program.is_whole:
        return "Chains were not run: they need all rows at every step."
    if program.dim > MOST_DIMENSIONS:
        return (
            f"Chains were not run: {program.dim:,} unconstrained parameters are more than the "
            f"{MOST_DIMENSIONS:,} up to which they are tried."
        )
    cost = CHAIN_EVALUATIONS * program.seconds_per_evaluation
    if cost > evidence.wanted.seconds:
        return (
            f"Chains were not run: they would take about {cost:.0f} s, more than the "
            f"{evidence.wanted.seconds:.3g} s that seconds= allows."
        )
    if evidence.left < LEAST_CHAINS:
        return (
            f"Chains were not run: {max(0, evidence.left):,.0f} evaluations of the budget were "
            f"left for them, which take {LEAST_CHAINS:,} at least. Give a larger budget=."
        )
    return None


def is_good(correction: Correction) -> bool:
    """Whether reweighted draws may be trusted."""
    return correction.khat < BEST_KHAT and correction.share > BEST_SHARE


def is_close(correction: Correction) -> bool:
    """Whether jumps to draws of an approximation are chains enough."""
    return is_good(correction) and correction.khat < CLOSE_KHAT


def covers(program: Program, first: Correction) -> bool:
    """Whether Normals at the modes, with these ``first`` weights, have draws of all parts.

    Then mixtures fitted to them have, and jumps alone may serve. Where the weights are not reliable
    a mixture lacks what the Normals lack, such as the thin ends of a ring; and where widths depend
    on scales jumps do not come to agree as closely as is asked there.
    """
    return first.khat < FAR_KHAT and program.strain <= STRAINED


def may_adapt(correction: Correction, dim: int) -> bool:
    """Whether a mixture fitted to weighted draws may be a better approximation."""
    return not is_close(correction) and dim <= MIXTURE_DIMENSIONS


def may_bend(program: Program, *, has_labels: bool) -> bool:
    """Whether approximations may be of coordinates in which curved ridges are straight.

    These are fitted where draws are, and draw chains away from a neck that no draw is in. Of labels
    in order the density has an edge, which is no ridge.
    """
    return not has_labels and program.strain <= STRAINED


def is_better(correction: Correction, than: Correction) -> bool:
    """Whether one approximation is nearer than another: a close one, a good one, one with weights
    that are reliable, or one that leaves more of the draws."""

    def rank(one: Correction) -> tuple[bool | float, ...]:
        return is_close(one), is_good(one), one.khat < FAR_KHAT, one.share

    return rank(correction) > rank(than)


def is_adapted(best: Correction, number: int, *, jumps: bool) -> bool:
    """Whether so many mixtures are enough, of which this is the best; ``jumps`` alone may serve."""
    is_enough = is_close(best) or (not jumps and is_good(best) and best.share > NEAR_SHARE)
    is_hopeless = number > 2 and best.share < HOPELESS
    return is_enough or is_hopeless or number >= MIXTURES


def is_bounded(coupled: Coupled) -> bool:
    """Whether pairs of chains from far apart have met."""
    return coupled.bound is not None and coupled.bound < OPEN


def is_doubtful(found: Chained, correction: Correction | None, strain: float = 1.0) -> bool:
    """Whether chains have to agree closely to be believed.

    Where tails are heavy, and no approximation that is near says that this is all right; or where
    widths depend on scales, so that chains enter some parts of the posterior seldom.
    """
    is_heavy = bool(found.heavy) and (correction is None or not is_good(correction))
    return is_heavy or strain > STRAINED


def lacks_approximation(correction: Correction | None) -> bool:
    """Whether no approximation is near."""
    return correction is None or not correction.khat < FAR_KHAT


def enough(
    found: Chained,
    wanted: Wanted,
    *,
    is_sure: bool = False,
    is_heavy: bool = False,
    is_far: bool = False,
    tail_share: float = TAIL_SHARE,
) -> bool:
    """Whether chains have done what was asked, and ``is_sure`` what is asked without a bound.

    ``is_heavy`` asks the same agreement, and ``is_far``, where no approximation is near, that
    standard deviations are known: chains may not have been to all parts then. ``tail_share`` are
    the effective draws of the tails, as a share of those that are wanted.
    """
    asked = wanted.deviation_error
    if is_sure:
        asked = min(SURE_DEVIATION, asked or SURE_DEVIATION)
    elif is_far:
        asked = min(FAR_DEVIATION, asked or FAR_DEVIATION)
    is_certain = asked is None or found.deviation_error <= asked
    is_agreed = found.r_hat < (SURE_R_HAT if is_sure or is_heavy else R_HAT)
    has_tails = found.ess_tail >= tail_share * wanted.target_ess
    return is_certain and is_agreed and has_tails and not of_chains(found, wanted)


def judge(evidence: Evidence) -> tuple[Level, tuple[str, ...]]:
    """The level, and the reasons for it."""
    level, reasons = _judge(evidence)
    return level, (*reasons, *words_of_search(evidence.modes), *evidence.dropped)


def words_of_search(modes: Modes | None) -> tuple[str, ...]:
    """What was searched for modes, and what was found."""
    if modes is None or not modes.paths:
        return ()
    found = "one mode" if modes.number == 1 else f"{modes.number} modes"
    if 1 < modes.number <= MOST_SHARES and modes.share_errors:
        pairs = zip(modes.shares, modes.share_errors, strict=True)
        found += f" (shares {', '.join(f'{share:.2f} ± {error:.2f}' for share, error in pairs)})"
    prior = f"{modes.from_prior} of them from draws of the prior"
    if not modes.from_prior:
        prior = "none of them from the prior"
        prior += f", {modes.no_prior}" if modes.no_prior else ""
    return (f"Found {found} in {modes.paths} searches, {prior}.",)


def _judge(evidence: Evidence) -> tuple[Level, tuple[str, ...]]:
    if evidence.engine is not None:
        return _of_engine(evidence, evidence.engine)
    against = [*_of_modes(evidence), *_of_far_out(evidence), *of_rounding(evidence.program)]
    undefined = _of_undefined(evidence.correction)
    if evidence.chains is not None:
        found = evidence.chains
        bounded = evidence.coupled is None or is_bounded(evidence.coupled)
        against += of_chains(
            found,
            evidence.wanted,
            rested=evidence.rested,
            is_sure=not bounded,
            is_heavy=is_doubtful(found, evidence.correction, evidence.program.strain),
        )
        figures = found.words
        if found.deviation_error > 0.0:  # of those that have one
            figures += f" {_words_of_deviations(found)}"
        if found.heavy:
            names = ", ".join(f"'{name}'" for name in found.heavy)
            figures += (
                f" Tails of {names} are heavy, so that their standard deviations have no reliable "
                "error. Read the quantiles of fit.summary()."
            )
        if found.coordinate_r_hat > MOST_R_HAT > found.r_hat:
            figures += (
                f" On unconstrained space R-hat is {found.coordinate_r_hat:.3f}, in "
                f"'{found.coordinate_site}': the edge of its support is visited slowly."
            )
        if evidence.coupled is not None:
            if not against:
                figures += f" {evidence.coupled.told}"
            if not (bounded or against):
                figures += " So closer agreement of the chains was asked for, and found."
        told = (figures, *_of_labels(evidence))
        return ("not trusted", (*undefined, *against, *told)) if against else ("exact", told)
    correction = evidence.correction
    if correction is None:
        left = (rows_refused(evidence), chains_refused(evidence))
        why = (
            "The budget ended early: these are draws of a Normal at the mode that was found, which "
            "nothing has checked. Give a larger budget= or seconds=."
            if evidence.left < DRAWS + evidence.program.far_out
            else "Latent sites inside a subsampled plate can be fitted with all rows only, for "
            "which there was no time: these are draws of a Normal at the mode of a batch of rows. "
            "Give more seconds."
        )
        return "not trusted", (why, *(each for each in left if each))
    refused = chains_refused(evidence) or "Chains were not run: exact=False."
    figures = (
        "Importance weights of the approximation: Pareto k-hat "
        f"{khat_in_words(correction.khat)} (good below {BEST_KHAT}), worth "
        f"{correction.share:.0%} of the draws (good above {BEST_SHARE:.0%})."
    )
    if is_good(correction) and not against:
        return "corrected", (figures, *_of_labels(evidence), refused)
    if against or correction.khat >= 1.0:
        far = "" if correction.khat < 1.0 else "The approximation is far from the posterior. "
        return "not trusted", (*undefined, *against, f"{far}{figures}", refused)
    return "approximate", (figures, refused)


def _of_engine(evidence: Evidence, engine: Engine) -> tuple[Level, tuple[str, ...]]:
    rows = None if evidence.program.is_whole else rows_refused(evidence)
    chains = chains_refused(evidence) or "Chains were not run: exact=False."
    left = (rows, chains) if rows else (chains,)
    is_near = engine.settled or engine.moving < NEARLY
    return "approximate" if is_near else "not trusted", (words_of(engine), *left)


#: What to do where a fit's engine or guide is wrong and its chains are right.
OWN_CHAINS = "Fit without engine= and guide=, for draws of the chains, or try another engine."


def judge_engine(engine: Engine, chains: Verdict, wrong: int) -> tuple[Level, tuple[str, ...]]:
    """The level of an engine's draws beside chains, so many of whose marginals they do not have."""
    told = (words_of(engine),)
    if chains.level != "exact":
        return "not trusted", (
            *told,
            "The comparison with chains decided nothing:",
            *chains.reasons,
        )
    if wrong:
        return "not trusted", (*told, f"{words_of_wrong(wrong)} {OWN_CHAINS}")
    return "approximate", (words_of(engine, confirmed=True),)


def words_of(engine: Engine, *, confirmed: bool = False) -> str:
    """Whether an engine settled; where chains gave the same, no more is asked of it."""
    if engine.settled:
        return f"{engine.name} settled after {engine.steps:,} steps."
    if confirmed:
        return (
            f"{engine.name} ended after {engine.steps:,} steps before it had settled, with draws "
            "that the chains confirm all the same."
        )
    by = "by " if engine.figure[:1].isdigit() else ""  # Else words, such as "too early to tell".
    return (
        f"{engine.name} was still moving when it ended after {engine.steps:,} steps ({by}"
        f"{engine.figure}). Give a larger budget= or seconds=."
    )


def words_of_wrong(wrong: int, of: int | None = None) -> str:
    """That so many numbers differ from those of chains, of as many as were compared."""
    among = "" if of is None else f" of {of:,}"
    noun = "parameter" if (of or wrong) == 1 else "parameters"
    verb = "differs" if wrong == 1 else "differ"
    return f"{wrong:,}{among} {noun} {verb} from those of chains by more than chance explains."


def words_of_labels(alike: Sequence[tuple[tuple[str, ...], str]]) -> tuple[str, str]:
    """That labels of these sites can be exchanged, and which sites order them."""
    sites, by = zip(*alike, strict=True)
    names = ", ".join(f"'{name}'" for each in sites for name in each)
    told = f"Labels in {names} can be exchanged: the density stays the same."
    return told, ", ".join(f"'{name}'" for name in by)


def _of_labels(evidence: Evidence) -> list[str]:
    if evidence.modes is None:
        return []
    if evidence.modes.alike:
        told, order = words_of_labels(evidence.modes.alike)
        return [
            f"{told} Draws have them in random order, all orders alike, so that figures of one "
            "label mean nothing by themselves. The figures here are of labels in order of "
            f"{order}, as ordered_draws has them."
        ]
    if not (evidence.modes.exchanged and evidence.modes.orders.alike):
        return []  # Labels whose exchange changes the density have a meaning of their own.
    names = ", ".join(f"'{name}'" for name, _ in evidence.modes.exchanged)
    return [
        f"Modes differ by an exchange of labels in {names}: read figures that do not depend on "
        "labels, or order them in the model."
    ]


def _of_modes(evidence: Evidence) -> list[str]:
    modes = evidence.modes
    if modes is None:
        return []
    reasons = []
    if modes.cut:
        reasons.append(
            "The budget ended before the search for other modes did: some may be missing. Give a "
            "larger budget= or seconds=."
        )
    if modes.last_new > NEW_MODES:
        reasons.append(
            f"{modes.number} separate modes were found, and the last paths still found new ones: "
            "others may be missing. Look for labels that can be exchanged, and order them."
        )
    if modes.left:
        reasons.append(
            "The chains met a mode that none of them started from, again and again: others may be "
            "missing. Narrow the priors, or write the model so that its modes are alike in width."
        )
    found = modes.orders
    if found.missing > MISSING:
        names = ", ".join(f"'{name}'" for name, _ in modes.exchanged)
        reasons.append(
            f"Draws have {found.seen:,} of the {found.possible:,} orders of the labels in {names}, "
            f"and the others have {found.missing:.2%} of the posterior, expected at most "
            f"{MISSING:.2%}: averages that depend on labels are off. Order the labels in the "
            "model, or read figures that do not depend on them."
        )
    return reasons


def of_rounding(program: Program) -> list[str]:
    """What rounding hides of a program."""
    reasons = []
    if program.rounding > ROUNDING:
        reasons.append(
            f"Rounding changes the log density by about {program.rounding:.2g} nats, which hides "
            "differences between draws. Use double precision."
        )
    if program.grain > GRAIN:
        reasons.append(
            f"Numbers of this precision are too coarse: neighbouring ones lie {program.grain:.2g} "
            "standard deviations of the posterior apart. Use double precision, or subtract a "
            "constant from the data."
        )
    return reasons


def _of_undefined(correction: Correction | None) -> list[str]:
    """That the log density is not a number at some of the approximation's draws."""
    if correction is None or correction.undefined < UNDEFINED:
        return []
    return [
        f"The log density is not a number at {correction.undefined:.0%} of the draws near the "
        "mode, as where numbers become 0 or infinite in this precision, or a matrix has no "
        "Cholesky factor. Use double precision; of a matrix, add more to its diagonal."
    ]


def _words_of_deviations(found: Chained) -> str:
    of = f", that of '{found.deviation_number}'," if found.deviation_number else ""
    return f"The least certain standard deviation{of} has an error of {found.deviation_error:.1%}."


def _of_far_out(evidence: Evidence) -> list[str]:
    if not evidence.flat:
        return []
    names = ", ".join(f"'{name}'" for name in evidence.flat)
    return [
        f"Far out the density does not fall with {names}, whose prior is improper: the posterior "
        "has no normaliser. Give a proper prior."
    ]


def of_chains(
    found: Chained,
    wanted: Wanted,
    *,
    rested: bool = False,
    is_sure: bool = False,
    is_heavy: bool = False,
    most_r_hat: float = MOST_R_HAT,
) -> list[str]:
    """What speaks against chains; of those that had ``rested`` before they went on what is sure.

    ``is_sure`` asks more, of chains of which pairs did not meet, and ``is_heavy`` more agreement.
    """
    most = MOST_SURE_R_HAT if is_sure or is_heavy else most_r_hat
    least = wanted.target_ess * (STILL if rested else 1.0)
    reasons = []
    if found.endless:
        names = ", ".join(f"'{name}'" for name in found.endless)
        reasons.append(
            f"Draws of {names} come near the largest numbers that there are. The posterior may be "
            "unbounded there: look for a prior that is missing or improper."
        )
    if found.is_adrift:
        reasons.append(
            f"Chains still drift away from where they started, most in '{found.worst_site}'. The "
            "posterior may be unbounded there: look for a prior that is missing or improper."
        )
    if not found.r_hat < most:
        other = f", or write '{found.worst_site}' non-centred" if found.has_other_form else ""
        advice = f"Give a larger budget= or seconds={other}."
        if found.worst_site in found.improper:
            advice = (
                f"The prior of '{found.worst_site}' is improper, and the data may not say enough "
                "of it. Give it a proper prior."
            )
        reasons.append(f"Chains disagree: R-hat {found.r_hat:.3f}, expected below {most}. {advice}")
    if found.ess_bulk < least or found.ess_tail < TAIL_SHARE * least:
        reasons.append(
            f"Expected {wanted.target_ess:.0f} effective draws, found {found.ess_bulk:.0f} (tails "
            f"{found.ess_tail:.0f}) before budget= or seconds= was spent. Give a "
            "larger budget= or seconds=."
        )
    asked = wanted.deviation_error
    if is_sure:
        asked = min(SURE_DEVIATION, asked or SURE_DEVIATION)
    if asked is not None and found.deviation_error > MOST_DEVIATION * asked:
        reasons.append(
            f"{_words_of_deviations(found)[:-1]}, expected {asked:.1%}, and at most "
            f"{MOST_DEVIATION * asked:.1%}. Give a larger budget= or seconds=."
        )
    if found.divergent > MOST_DIVERGENT:
        reasons.append(
            f"{found.divergent:.1%} of trajectories diverged: the density bends too sharply "
            "somewhere, and draws from there are missing."
        )
    if found.stuck > STUCK:
        reasons.append(f"{found.stuck:.0%} of chains hardly ever moved.")
    return reasons
