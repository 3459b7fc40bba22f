"""What draws are worth, as a level and the reasons for it in words."""

from __future__ import annotations

from collections.abc import Sequence

from ppl_ext.chains.coupling import Coupled
from ppl_ext.fit.verdict import agreement, policy
from ppl_ext.fit.verdict.facts import Chained, Correction, Engine, Evidence, Modes, Program
from ppl_ext.fit.verdict.verdict import Level, Verdict
from ppl_ext.statistics.khat import khat_in_words

#: Standard deviations by which the figures of an engine that has not settled may still move for its
#: draws to count as an approximation.
NEARLY = 0.5
#: Nats of rounding in the log density at most: a tenth changes a density by a tenth.
ROUNDING = 0.1
#: Standard deviations of the posterior that lie between neighbouring numbers at most.
GRAIN = 0.02
#: Share of the last paths that found new modes at most, before others are thought to be missing.
NEW_MODES = 0.25
#: Share of draws at which the log density is not a number, from which on a refused fit says so.
UNDEFINED = 0.01
#: The same share where the mass is, from which on mass may be lacking that this precision does not
#: see: 15 to 40 % where a fit was wrong, 0.2 % at most elsewhere.
UNDEFINED_NEAR = 0.05
#: Modes up to which the verdict names the share of each; more would fill a line.
MOST_SHARES = 6
#: Share of the posterior, in orders of labels that no draw has, at most. Labels that are ten
#: standard deviations apart shift a mean by a twentieth of one then, as 400 draws leave it
#: uncertain.
MISSING = 0.005
#: What is known of pairs where chains ended before any began.
NO_PAIRS = Coupled(0, reason="the budget or the time ended before there were pairs of chains")
#: What is said where an engine was asked for, and the draws are of the search before it.
NO_ENGINE = (
    "These draws are not those of the engine or guide that was named: the budget or the time ended "
    "before it ran. Give a larger budget= or seconds=."
)
#: What to do where a fit's engine or guide is wrong and its chains are right.
OWN_CHAINS = "Fit without engine= and guide=, for draws of the chains, or try another engine."


def judge(evidence: Evidence) -> tuple[Level, tuple[str, ...]]:
    """The level, and the reasons for it. What made the draws decides how they are judged."""
    if evidence.engine is not None:
        level, reasons = _of_engine(evidence, evidence.engine)
    elif evidence.chains is not None:
        level, reasons = _by_chains(evidence, evidence.chains)
    elif evidence.correction is not None:
        level, reasons = _by_weights(evidence, evidence.correction)
    else:
        level, reasons = _of_unchecked(evidence)
    if evidence.wanted.engine and evidence.engine is None and evidence.chains is None:
        reasons = (NO_ENGINE, *reasons)
    return level, (*reasons, *words_of_search(evidence.modes), *evidence.dropped)


def _against(evidence: Evidence) -> list[str]:
    """What speaks against draws whatever they are of."""
    correction = evidence.correction
    lacks = correction is not None and correction.undefined_near > UNDEFINED_NEAR
    found = [*_of_modes(evidence), *_of_far_out(evidence), *_of_neck(evidence)]
    undefined = _of_undefined(correction) if lacks else []
    return [*undefined, *found, *of_rounding(evidence.program)]


def _by_chains(evidence: Evidence, found: Chained) -> tuple[Level, tuple[str, ...]]:
    coupled = evidence.coupled or NO_PAIRS
    bounded = agreement.is_bounded(coupled)
    against = _against(evidence) + agreement.of_chains(
        found,
        evidence.wanted,
        rested=evidence.rested,
        is_alone=not bounded,
        is_heavy=agreement.is_doubtful(found, evidence.correction, evidence.program.strain),
    )
    figures = found.words
    if found.deviation_error > 0.0:  # of those that have one
        figures += f" {agreement.words_of_deviations(found)}"
    if found.heavy:
        names = ", ".join(f"'{name}'" for name in found.heavy)
        figures += (
            f" Tails of {names} are heavy, so that their standard deviations have no reliable "
            "error. Read the quantiles of fit.summary()."
        )
    if found.coordinate_r_hat > agreement.MOST_R_HAT > found.r_hat:
        figures += (
            f" On unconstrained space R-hat is {found.coordinate_r_hat:.3f}, in "
            f"'{found.coordinate_site}': the edge of its support is visited slowly."
        )
    if not against:
        figures += f" {coupled.told}"
        if not bounded:
            figures += " So closer agreement of the chains was asked for, and found."
    told = (figures, *_of_labels(evidence))
    if against:
        against = list(dict.fromkeys([*_of_undefined(evidence.correction), *against]))
        return "not trusted", (*against, *told)
    return "exact", told


def _by_weights(evidence: Evidence, correction: Correction) -> tuple[Level, tuple[str, ...]]:
    against = _against(evidence)
    refused = _words_without_chains(evidence)
    figures = (
        "Importance weights of the approximation: Pareto k-hat "
        f"{khat_in_words(correction.khat)} (good below {policy.BEST_KHAT}), worth "
        f"{correction.share:.0%} of the draws (good above {policy.BEST_SHARE:.0%})."
    )
    if policy.is_good(correction) and not against:
        return "corrected", (figures, *_of_labels(evidence), refused)
    if against or correction.khat >= 1.0:
        far = "" if correction.khat < 1.0 else "The approximation is far from the posterior. "
        against = list(dict.fromkeys([*_of_undefined(correction), *against]))
        return "not trusted", (*against, f"{far}{figures}", refused)
    return "approximate", (figures, refused)


def _words_without_chains(evidence: Evidence) -> str:
    """Why draws are not of chains."""
    if refused := policy.chains_refused(evidence):
        return refused
    if not evidence.wanted.exact:
        return "Chains were not run: exact=False."
    if evidence.modes is not None and evidence.modes.left:
        return "Chains have no start in that mode."
    return "Chains were not run: the time that seconds= allows ended before. Give more seconds."


def _of_unchecked(evidence: Evidence) -> tuple[Level, tuple[str, ...]]:
    """Of draws of a Normal at a mode, for whose importance weights nothing was left."""
    program = evidence.program
    rows = None if program.is_whole else policy.rows_refused(evidence)
    if evidence.left < policy.DRAWS + program.far_out:
        why = (
            "The budget ended early: these are draws of a Normal at the mode that was found, which "
            "nothing has checked. Give a larger budget= or seconds=."
        )
    elif program.is_whole:
        why = (
            "Latent sites inside a subsampled plate have too many parameters for chains, and no "
            "guide takes them: these are draws of a Normal at the mode that was found, which "
            "nothing has checked. Write the plate without subsample_size= for a guide of all rows."
        )
    else:
        why = (
            "Latent sites inside a subsampled plate can be fitted with all rows only, for "
            "which there was no time: these are draws of a Normal at the mode of a batch of rows. "
            "Give more seconds."
        )
    return "not trusted", (why, *(each for each in (rows, policy.chains_refused(evidence)) if each))


def _of_engine(evidence: Evidence, engine: Engine) -> tuple[Level, tuple[str, ...]]:
    rows = None if evidence.program.is_whole else policy.rows_refused(evidence)
    chains = _words_without_chains(evidence)
    left = (rows, chains) if rows else (chains,)
    is_near = engine.settled or engine.moving < NEARLY
    return "approximate" if is_near else "not trusted", (words_of(engine), *left)


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


def judge_engine(
    engine: Engine, chains: Verdict, wrong: int, dependent: str = ""
) -> tuple[Level, tuple[str, ...]]:
    """The level of an engine's draws beside chains, so many of whose marginals they do not have.

    ``dependent`` says of which two they do not have the dependence.
    """
    told = (words_of(engine),)
    if chains.level != "exact":
        return "not trusted", (
            *told,
            "The comparison with chains decided nothing:",
            *chains.reasons,
        )
    against = [words_of_wrong(wrong)] * bool(wrong) + [dependent] * bool(dependent)
    if against:
        return "not trusted", (*told, *against[:-1], f"{against[-1]} {OWN_CHAINS}")
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
            "A mode that no chain started from was met again and again: others may be "
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


def _of_neck(evidence: Evidence) -> list[str]:
    if not policy.is_strained(evidence.neck):
        return []
    return [
        f"Curvatures of sites of latent scale change by a factor of {evidence.neck:,.0f} over the "
        f"draws, expected at most {policy.STRAINED}: draws where the scale is small may be missing."
        " Give a larger budget= or seconds=, or write these sites non-centred."
    ]


def _of_far_out(evidence: Evidence) -> list[str]:
    if not evidence.flat:
        return []
    names = ", ".join(f"'{name}'" for name in evidence.flat)
    return [
        f"Far out the density does not fall with {names}, whose prior is improper: the posterior "
        "has no normaliser. Give a proper prior."
    ]
