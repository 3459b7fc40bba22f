"""How far a fit climbs: which rung is next, and what speaks against taking one.

Functions of what is known so far (:mod:`ppl_ext.fit.verdict.facts`), and of nothing else. What
chains have to reach is in :mod:`ppl_ext.fit.verdict.agreement`, and what the draws are worth in the
end in :mod:`ppl_ext.fit.verdict.levels`.
"""

from __future__ import annotations

from typing import Literal

from ppl_ext.chains.sampler import MIXTURE_DIMENSIONS
from ppl_ext.fit.verdict.facts import Correction, Evidence, Program

Rung = Literal["all rows", "engine", "correct", "chains", "end"]

#: Dimensions up to which chains are tried.
MOST_DIMENSIONS = 2_000
#: Evaluations with all rows that have to be affordable for very many rows to be taken: some
#: hundreds for a start, 1,000 in search of other modes and 1,000 for importance ratios.
ROW_EVALUATIONS = 2_500
#: Share of the seconds that these may take, so that as much is left for chains or an engine.
ROW_SHARE = 0.5
#: Evaluations that have to be affordable for chains to be tried: about four times what they take at
#: least, as they are to agree within the time.
CHAIN_EVALUATIONS = 20_000
#: Draws whose importance ratios are taken, with an evaluation for each.
DRAWS = 1_000
#: Evaluations that chains take before anything can be said of them: 16 chains, 36 transitions of
#: each, eight evaluations in a transition.
LEAST_CHAINS = 16 * 36 * 8
#: Evaluations that the search for other modes takes at least. Beside a Normal 375 paths start at
#: draws of the prior then: of 40 searches 39 have one that leads to where one ascent of a hundred
#: ends.
LEAST_SEARCH = 500
#: Dimensions up to which an engine fits a full Normal: its covariance has 20,100 numbers there.
FULL = 200
#: Dimensions up to which an engine fits a Normal of low rank, and beyond which a diagonal one.
LOW_RANK = 1_000
#: Pareto k-hat below which reweighted draws may be trusted: beyond a half the variance of the
#: weights is infinite, and with it the error of what they average.
BEST_KHAT = 0.5
#: Share of the draws that the weights must leave as well.
BEST_SHARE = 0.3
#: Pareto k-hat below which jumps to draws of an approximation are chains enough, and none nearer is
#: looked for. A jump costs an evaluation, and a trajectory ten or more. Above, the tails of the
#: approximation are thin, and chains that have few draws there look settled.
CLOSE_KHAT = 0.3
#: Pareto k-hat from which on no approximation is near: Vehtari and others (2024) find that smoothed
#: weights are not reliable beyond.
FAR_KHAT = 0.7
#: Mixtures that are fitted to weighted draws at most, each to the draws of all before it.
MIXTURES = 5
#: Share of jumps that are taken, from which on a mixture fitted to the draws is no better: so many
#: of its own draws are of the mixture, and the others of what is wide beside it.
MIXTURE_JUMPS = 0.75
#: Share of the draws that the weights leave, above which no more are fitted where jumps alone
#: cannot be enough.
NEAR_SHARE = 0.5
#: Share of draws given hyperparameters that weights leave from which on these are even: a sixth to
#: a fifth of the draws are of wide distributions beside the Normals, and have next to no weight.
EVEN_SHARE = 0.7
#: The same share, below which no more are fitted after three, and draws given hyperparameters are
#: not gone on from: they have not come near.
HOPELESS = 0.1
#: Factor by which the curvature of sites of latent scale may change from place to place for chains
#: to be believed as elsewhere. Chains whose steps are tuned to the widths at one place do not enter
#: a neck of half of these widths, and nothing that they see tells that they have not been there.
STRAINED = 3.5


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
            f"about {_rounded(cost)} s, more than {ROW_SHARE:.0%} of the "
            f"{evidence.wanted.seconds:.3g} s that seconds= allows."
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
            f"Chains were not run: they would take about {_rounded(cost)} s, more than the "
            f"{evidence.wanted.seconds:.3g} s that seconds= allows."
        )
    # What comes before them: a search that is cut short would count against draws that no chains
    # follow.
    before = DRAWS * (evidence.correction is None) + LEAST_SEARCH * (evidence.modes is None)
    if evidence.left < LEAST_CHAINS + before:
        return (
            f"Chains were not run: {max(0, evidence.left):,.0f} evaluations of the budget were "
            f"left{' for a search and' * bool(before)} for them, which take "
            f"{LEAST_CHAINS + before:,} at least. Give a larger budget=."
        )
    return None


def _rounded(seconds: float) -> str:
    """So many seconds, of which small ones are not rounded to none."""
    return f"{seconds:.0f}" if seconds >= 10.0 else f"{seconds:.2g}"


def is_strained(factor: float) -> bool:
    """Whether curvatures change so much that parts of the posterior may be lacking."""
    return factor > STRAINED


def is_good(correction: Correction) -> bool:
    """Whether reweighted draws may be trusted."""
    return correction.khat < BEST_KHAT and correction.share > BEST_SHARE


def is_close(correction: Correction) -> bool:
    """Whether jumps to draws of an approximation are chains enough.

    Also those to draws given hyperparameters whose weights are near even, where k-hat tells that
    their variance is finite: mixtures fitted to them come no nearer, as tails of hyperparameters
    are looked for.
    """
    is_near = correction.given and correction.share > NEAR_SHARE
    is_close = is_good(correction) and (is_near or correction.khat < CLOSE_KHAT)
    return is_close or is_even(correction)


def is_even(correction: Correction) -> bool:
    """Whether weights of draws given hyperparameters differ too little for k-hat to tell of them.

    Its Pareto distribution is of the shape of their tail, however near that is to the others.
    """
    return correction.given and correction.share > EVEN_SHARE


def is_reliable(correction: Correction) -> bool:
    """Whether weights of draws given hyperparameters tell that there are some of all parts."""
    return correction.given and is_known(correction) and correction.share > BEST_SHARE


def is_known(correction: Correction) -> bool:
    """Whether weights can be relied on: by k-hat, or where they are all but alike."""
    return correction.khat < FAR_KHAT or is_even(correction)


def covers(program: Program, first: Correction) -> bool:
    """Whether Normals at the modes, with these ``first`` weights, have draws of all parts.

    Then mixtures fitted to them have, and jumps alone may serve. Where the weights are not reliable
    a mixture lacks what the Normals lack, such as the thin ends of a ring. Where widths depend on
    scales jumps do not come to agree as closely as is asked there.
    """
    return is_known(first) and not is_strained(program.strain)


def may_adapt(correction: Correction, dim: int) -> bool:
    """Whether a mixture fitted to weighted draws may be a better approximation."""
    return not is_close(correction) and dim <= MIXTURE_DIMENSIONS


def may_aim(jumped: float, dim: int) -> bool:
    """Whether jumps of which this share is taken may be taken more often by a mixture."""
    return jumped < MIXTURE_JUMPS and dim <= MIXTURE_DIMENSIONS


def may_bend(program: Program, *, has_labels: bool) -> bool:
    """Whether approximations may be of coordinates in which curved ridges are straight.

    Such coordinates are fitted where draws are, and lead chains away from a neck in which no draw
    is. Where labels are put in order the density has an edge, which they would take for a ridge.
    """
    return not has_labels and not is_strained(program.strain)


def is_better(correction: Correction, than: Correction) -> bool:
    """Whether one approximation is nearer than another.

    A close one is; of two that are alike in this, a good one; then one whose weights are reliable;
    and of two that are alike in all, one whose weights leave more of the draws.
    """

    def rank(one: Correction) -> tuple[bool | float, ...]:
        return is_close(one), is_good(one), one.khat < FAR_KHAT, one.share

    return rank(correction) > rank(than)


def is_adapted(best: Correction, number: int, *, jumps: bool) -> bool:
    """Whether so many mixtures are enough, of which this is the best; ``jumps`` alone may serve."""
    is_enough = is_close(best) or (not jumps and is_good(best) and best.share > NEAR_SHARE)
    is_hopeless = number > 2 and best.share < HOPELESS
    return is_enough or is_hopeless or number >= MIXTURES


def is_far(correction: Correction) -> bool:
    """Whether draws given hyperparameters are not gone on from: mixtures may come nearer."""
    return not is_known(correction) or correction.share < HOPELESS


def lacks_approximation(correction: Correction | None) -> bool:
    """Whether no approximation is near."""
    return correction is None or not is_known(correction)
