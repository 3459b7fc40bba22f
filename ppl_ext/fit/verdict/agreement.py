"""When chains have done what was asked of them, and what speaks against them.

More is asked where less is known: where pairs of chains did not meet, where tails are heavy, or
where no approximation is near, the chains' agreement with each other is all that there is to go by.
"""

from __future__ import annotations

from ppl_ext.chains.coupling import Coupled
from ppl_ext.chains.sampler import MOST_DIVERGENT
from ppl_ext.fit.verdict import policy
from ppl_ext.fit.verdict.facts import Chained, Correction, Wanted

#: R-hat for which chains run: the worst of a hundred entries has so much by chance, with 400
#: effective draws.
R_HAT = 1.02
#: R-hat below which they are believed, where the budget or the time ended before they had that.
MOST_R_HAT = 1.03
#: Share of chains that hardly ever moved, at most: none.
STUCK = 0.0
#: Effective draws of the tails at least, as a share of those that are wanted: these are asked for
#: means, to which tails add little.
TAIL_SHARE = 0.25
#: R-hat for which chains run, and below which they are believed, where nothing but their agreement
#: tells that they have come to rest.
ALONE_R_HAT, MOST_ALONE_R_HAT = 1.01, 1.015
#: The same of chains with heavy tails, since an improper posterior looks so at first, and of
#: such that seldom enter some parts.
SURE_R_HAT, MOST_SURE_R_HAT = 1.0035, 1.005
#: Standard error of every standard deviation, as a share of it, for which chains run that may not
#: have been everywhere yet: where pairs did not meet, or no approximation is near.
FAR_DEVIATION = 0.05
#: Standard error of standard deviations that is let pass, as a multiple of what was asked for. The
#: errors of 16 chains are themselves known to 18 % only, and this is two of those more.
MOST_DEVIATION = 4.0 / 3.0
#: Share of the effective draws that were asked for which chains keep that had them once and went
#: on: an estimate of their number varies by a fifth, so that a smaller one is no news.
STILL = 0.5
#: Total variation distance that pairs of chains may leave open. A few dozen pairs that have all met
#: leave about 0.09, by their number alone.
OPEN = 0.15
#: Share of jumps that are taken, below which pairs of chains with trajectories are not tried: it is
#: in jumps that they meet.
LEAST_JUMPS = 0.05
#: Draws that jumps may take for each effective one that is wanted. For 400 of them, 850 of which
#: are known, more would cost the 2,800 evaluations that trajectories take at least.
MOST_JUMPS = 9.0
#: Effective draws of the tails at least, as a share of those that are wanted, where chains jump
#: alone. Independent draws have as many there as in the middle, and fewer tell that chains stay in
#: a tail, where weights are large.
JUMPS_TAIL_SHARE = 0.5


def is_bounded(coupled: Coupled) -> bool:
    """Whether pairs of chains from far apart have met."""
    return coupled.bound is not None and coupled.bound < OPEN


def is_doubtful(found: Chained, correction: Correction | None, strain: float = 1.0) -> bool:
    """Whether chains have to agree closely to be believed.

    They have where tails are heavy, unless weights of an approximation that is near are even: draws
    of an improper posterior look so at first. And they have where widths depend on scales so much
    that chains seldom enter some parts of the posterior.
    """
    is_heavy = bool(found.heavy) and (correction is None or not policy.is_good(correction))
    return is_heavy or policy.is_strained(strain)


def enough(
    found: Chained,
    wanted: Wanted,
    *,
    is_alone: bool = False,
    is_heavy: bool = False,
    is_far: bool = False,
    tail_share: float = TAIL_SHARE,
) -> bool:
    """Whether chains have done what was asked, and need not go on.

    Parameters
    ----------
    found : Chained
    wanted : Wanted
    is_alone : bool
        Whether nothing but the chains themselves tells that they have come to rest, since pairs did
        not meet: closer agreement and known standard deviations are asked for.
    is_heavy : bool
        Whether very close agreement is asked for; see :func:`is_doubtful`.
    is_far : bool
        Whether no approximation is near, so that chains may not have been to all parts yet:
        standard deviations have to be known.
    tail_share : float
        Effective draws of the tails, as a share of those that are wanted.
    """
    asked = wanted.deviation_error
    if is_alone or is_far:
        asked = min(FAR_DEVIATION, asked or FAR_DEVIATION)
    is_certain = asked is None or found.deviation_error <= asked
    is_agreed = found.r_hat < (SURE_R_HAT if is_heavy else ALONE_R_HAT if is_alone else R_HAT)
    has_tails = found.ess_tail >= tail_share * wanted.target_ess
    return is_certain and is_agreed and has_tails and not of_chains(found, wanted)


def of_chains(
    found: Chained,
    wanted: Wanted,
    *,
    rested: bool = False,
    is_alone: bool = False,
    is_heavy: bool = False,
    most_r_hat: float = MOST_R_HAT,
) -> list[str]:
    """What speaks against chains that have ended, each with what to do; nothing if all is well.

    Parameters
    ----------
    found : Chained
    wanted : Wanted
    rested : bool
        Whether the chains had done what was asked before they went on. Only a much smaller number
        of effective draws then speaks against them.
    is_alone, is_heavy : bool
        As of :func:`enough`.
    most_r_hat : float
        R-hat up to which chains are believed, where close agreement is not asked for.
    """
    most = MOST_SURE_R_HAT if is_heavy else MOST_ALONE_R_HAT if is_alone else most_r_hat
    least = wanted.target_ess * (STILL if rested else 1.0)
    reasons = []
    if found.endless:
        names = ", ".join(f"'{name}'" for name in found.endless)
        reasons.append(
            f"Draws of {names} come near the largest numbers that there are. The posterior may be "
            "unbounded there: look for a prior that is missing or improper."
        )
    if found.saturated:
        names = ", ".join(f"'{name}'" for name in found.saturated)
        reasons.append(
            f"Many draws of {names} lie where the numbers of this precision end, next to 0 or to "
            "1: some of the mass is beyond them, or the posterior has no end there. Look for a "
            "prior that is improper; where it is proper, use double precision."
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
    if is_alone:
        asked = min(FAR_DEVIATION, asked or FAR_DEVIATION)
    if asked is not None and found.deviation_error > MOST_DEVIATION * asked:
        reasons.append(
            f"{words_of_deviations(found)[:-1]}, expected {asked:.1%}, and at most "
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


def words_of_deviations(found: Chained) -> str:
    """How well the least certain standard deviation is known."""
    of = f", that of '{found.deviation_number}'," if found.deviation_number else ""
    return f"The least certain standard deviation{of} has an error of {found.deviation_error:.1%}."
