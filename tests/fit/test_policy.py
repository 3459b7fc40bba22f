"""The policy of a fit, row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ppl_ext.chains.coupling import Coupled
from ppl_ext.fit.after.saved import as_tree, from_tree
from ppl_ext.fit.verdict.agreement import enough, is_bounded, is_doubtful
from ppl_ext.fit.verdict.facts import Chained, Correction, Engine, Evidence, Modes, Program, Wanted
from ppl_ext.fit.verdict.labels import Orders
from ppl_ext.fit.verdict.levels import judge, words_of
from ppl_ext.fit.verdict.policy import (
    chains_refused,
    covers,
    is_adapted,
    is_better,
    is_close,
    is_good,
    is_reliable,
    may_adapt,
    may_aim,
    may_bend,
    next_rung,
)

PROGRAM = Program(dim=10, is_whole=True, seconds_per_evaluation=1e-5, rounding=1e-9)
WANTED = Wanted(target_ess=400.0, exact=True, seconds=600.0)
MODES = Modes(number=1, last_new=0.0, shares=(1.0,))
GOOD, FAIR, BAD = Correction(0.2, 0.8), Correction(0.65, 0.2), Correction(1.2, 0.01)
RESTED = Chained(1.004, 600.0, 500.0, 0.03, (), 0.0, 0.0, False, "mu")
SETTLED = Engine("ProximalScoreVI with AutoNormal", steps=3_000, settled=True)
MOVING = replace(SETTLED, settled=False, moving=0.3)
BATCH = replace(PROGRAM, is_whole=False, seconds_with_all_rows=1.0)
MET = Coupled(64, 0, 10, 3, 0.046)
EVIDENCE = Evidence(PROGRAM, WANTED, MODES, coupled=MET)


@pytest.mark.parametrize(
    ("changed", "rung"),
    [
        ({}, "correct"),
        ({"correction": GOOD}, "chains"),
        ({"correction": BAD}, "chains"),
        ({"correction": GOOD, "chains": RESTED}, "end"),
        ({"correction": GOOD, "wanted": replace(WANTED, exact=False)}, "end"),
        ({"program": replace(PROGRAM, dim=3_000)}, "engine"),
        ({"program": replace(PROGRAM, is_whole=False, seconds_with_all_rows=1e-3)}, "all rows"),
        ({"program": replace(PROGRAM, is_whole=False, seconds_with_all_rows=1.0)}, "engine"),
        ({"program": replace(BATCH, has_engine=False)}, "end"),
        ({"program": BATCH, "engine": SETTLED}, "end"),
        ({"wanted": replace(WANTED, engine=True)}, "correct"),
        ({"correction": GOOD, "wanted": replace(WANTED, engine=True)}, "chains"),
        ({"wanted": replace(WANTED, engine=True, exact=False)}, "engine"),
        ({"correction": GOOD, "program": replace(PROGRAM, seconds_per_evaluation=1.0)}, "end"),
        ({"correction": GOOD, "left": 4_600}, "end"),
        ({"correction": GOOD, "left": 4_608}, "chains"),
        ({"left": 999}, "end"),
        ({"left": 1_000}, "correct"),
        ({"left": 1_079, "program": replace(PROGRAM, far_out=80)}, "end"),
        ({"left": 1_080, "program": replace(PROGRAM, far_out=80)}, "correct"),
    ],
)
def test_next_rung(changed: dict[str, Any], rung: str) -> None:
    assert next_rung(replace(EVIDENCE, **changed)) == rung


def test_what_was_searched_is_always_said() -> None:
    searched = replace(MODES, paths=24, from_prior=8)
    assert judge(replace(EVIDENCE, modes=searched, chains=RESTED))[1][-1] == (
        "Found one mode in 24 searches, 8 of them from draws of the prior."
    )
    two = replace(searched, number=2, shares=(0.75, 0.25), share_errors=(0.01, 0.011))
    told = judge(replace(EVIDENCE, modes=two, correction=BAD))[1][-1]
    assert "Found 2 modes (shares 0.75 ± 0.01, 0.25 ± 0.01) in 24 searches" in told
    left = replace(EVIDENCE, modes=replace(two, left=True), chains=RESTED)
    level, reasons = judge(left)
    assert level == "not trusted" and "no chain started from" in reasons[0]


INEXACT = replace(WANTED, exact=False)
CERTAIN = replace(WANTED, deviation_error=0.03)


@pytest.mark.parametrize(
    ("changed", "level", "reason"),
    [
        ({"chains": RESTED}, "exact", "R-hat 1.004, ESS 600"),
        (
            {"chains": replace(RESTED, r_hat=1.04)},
            "not trusted",
            "Give a larger budget= or seconds=.",
        ),
        ({"chains": replace(RESTED, r_hat=1.025)}, "exact", "R-hat 1.025"),
        (
            {"chains": replace(RESTED, r_hat=1.04, has_other_form=True)},
            "not trusted",
            "or write 'mu' non-centred.",
        ),
        (
            {"chains": replace(RESTED, r_hat=1.2, worst_site="mu", improper=("mu",))},
            "not trusted",
            "The prior of 'mu' is improper",
        ),
        ({"chains": replace(RESTED, ess_bulk=300.0)}, "not trusted", "Expected 400 effective"),
        ({"chains": replace(RESTED, ess_tail=90.0)}, "not trusted", "Expected 400 effective"),
        ({"chains": replace(RESTED, ess_tail=110.0)}, "exact", "(tails 110)"),
        ({"chains": replace(RESTED, deviation_error=0.0712)}, "exact", "has an error of 7.1%."),
        (
            {"chains": replace(RESTED, deviation_error=0.0412), "wanted": CERTAIN},
            "not trusted",
            "error of 4.1%, expected 3.0%, and at most 4.0%",
        ),
        ({"chains": replace(RESTED, deviation_error=0.0312), "wanted": CERTAIN}, "exact", "3.1%"),
        # More draws refuse what they speak against, and not what an estimate is short of.
        ({"chains": replace(RESTED, ess_bulk=380.0), "rested": True}, "exact", "ESS 380"),
        ({"chains": replace(RESTED, ess_bulk=180.0), "rested": True}, "not trusted", "found 180"),
        ({"chains": replace(RESTED, r_hat=1.04), "rested": True}, "not trusted", "disagree"),
        (
            {"chains": replace(RESTED, coordinate_r_hat=1.05, coordinate_site="scale")},
            "exact",
            "On unconstrained space R-hat is 1.050, in 'scale'",
        ),
        (
            {"chains": RESTED, "coupled": MET},
            "exact",
            "of any event by at most 4.6%",
        ),
        # Chains that the time ended are asked for no less than those that had time for pairs.
        (
            {"chains": replace(RESTED, r_hat=1.017), "coupled": None},
            "not trusted",
            "R-hat 1.017, expected below 1.015",
        ),
        (
            {"chains": RESTED, "coupled": None},
            "exact",
            "not known: the budget or the time ended before there were pairs of chains.",
        ),
        (
            {
                "chains": replace(RESTED, r_hat=1.017),
                "coupled": Coupled(32, 2, 12, 25),
            },
            "not trusted",
            "R-hat 1.017, expected below 1.015",
        ),
        (
            {
                "chains": replace(RESTED, deviation_error=0.07),
                "coupled": Coupled(0, reason="jumps are rare"),
            },
            "not trusted",
            "error of 7.0%, expected 5.0%",
        ),
        (
            {"chains": RESTED, "coupled": Coupled(32, 2, 12, 25)},
            "exact",
            "2 of 32 pairs of chains from far apart had not met after 25 transitions",
        ),
        ({"chains": replace(RESTED, is_adrift=True)}, "not trusted", "drift away"),
        ({"chains": replace(RESTED, stuck=0.1)}, "not trusted", "hardly ever moved"),
        ({"chains": replace(RESTED, divergent=0.004)}, "exact", "R-hat"),
        ({"chains": replace(RESTED, divergent=0.02)}, "not trusted", "diverged"),
        ({"chains": replace(RESTED, heavy=("scale",))}, "exact", "Tails of 'scale' are heavy"),
        ({"chains": RESTED, "modes": replace(MODES, last_new=0.5)}, "not trusted", "new ones"),
        ({"chains": RESTED, "modes": replace(MODES, cut=True)}, "not trusted", "search for other"),
        ({"correction": None, "left": 500}, "not trusted", "The budget ended early"),
        ({"correction": GOOD, "left": 500}, "corrected", "500 evaluations of the budget"),
        (
            {"chains": RESTED, "program": replace(PROGRAM, rounding=0.5)},
            "not trusted",
            "double precision",
        ),
        (
            {"chains": RESTED, "program": replace(PROGRAM, grain=0.1)},
            "not trusted",
            "subtract a constant",
        ),
        ({"correction": GOOD, "wanted": INEXACT}, "corrected", "exact=False"),
        # Nobody wrote exact=False: there was no time.
        ({"correction": GOOD}, "corrected", "the time that seconds= allows ended before. Give"),
        (
            {"correction": GOOD, "modes": replace(MODES, left=True)},
            "not trusted",
            "Chains have no start in that mode.",
        ),
        ({"correction": FAIR, "wanted": INEXACT}, "approximate", "k-hat 0.65"),
        ({"correction": BAD, "wanted": INEXACT}, "not trusted", "far from the posterior"),
        ({"program": BATCH, "engine": SETTLED}, "approximate", "settled after 3,000 steps"),
        (
            {"program": BATCH, "engine": SETTLED},
            "approximate",
            "all rows the search alone would",
        ),
        ({"program": BATCH, "engine": SETTLED}, "approximate", "need all rows at every step"),
        (
            {"program": replace(PROGRAM, dim=3_000), "engine": SETTLED},
            "approximate",
            "3,000 unconstrained parameters",
        ),
        ({"engine": SETTLED, "wanted": INEXACT}, "approximate", "exact=False"),
        (
            {"correction": GOOD, "wanted": replace(WANTED, engine=True), "left": 500},
            "corrected",
            "not those of the engine or guide that was named",
        ),
        (
            {"program": BATCH, "engine": replace(MOVING, moving=0.7, figure="0.7 sd")},
            "not trusted",
            "was still moving when it ended after 3,000 steps (by 0.7 sd)",
        ),
        ({"program": BATCH, "engine": MOVING}, "approximate", "was still moving"),
        (
            {"program": replace(BATCH, has_engine=False), "correction": None},
            "not trusted",
            "at the mode of a batch of rows",
        ),
        (
            {"program": replace(PROGRAM, dim=3_000, has_engine=False), "correction": None},
            "not trusted",
            "too many parameters for chains, and no guide takes them",
        ),
        (
            {
                "chains": RESTED,
                "modes": replace(
                    MODES, exchanged=(("mean", (0, 1)),), orders=Orders(23, 24, 0.0412)
                ),
            },
            "not trusted",
            "23 of the 24 orders of the labels in 'mean', and the others have 4.12% of the",
        ),
        (
            {
                "chains": RESTED,
                "modes": replace(
                    MODES, exchanged=(("mean", (0, 1)),), orders=Orders(23, 24, 0.001, False)
                ),
            },
            "exact",
            "R-hat",
        ),
        (
            {"chains": RESTED, "modes": replace(MODES, alike=((("weight", "mean"), "mean"),))},
            "exact",
            "Labels in 'weight', 'mean' can be exchanged",
        ),
        (
            {"chains": replace(RESTED, endless=("scale",))},
            "not trusted",
            "Draws of 'scale' come near the largest numbers",
        ),
        (
            {"chains": replace(RESTED, saturated=("rate",))},
            "not trusted",
            "Many draws of 'rate' lie where the numbers of this precision end",
        ),
        (
            {"chains": RESTED, "flat": ("mean", "scale")},
            "not trusted",
            "density does not fall with 'mean', 'scale', whose prior is improper",
        ),
        (
            {"chains": RESTED, "modes": replace(MODES, number=2, exchanged=(("mean", (0, 1)),))},
            "exact",
            "exchange of labels in 'mean'",
        ),
    ],
)
def test_levels(changed: dict[str, Any], level: str, reason: str) -> None:
    found, reasons = judge(replace(EVIDENCE, **{"correction": GOOD, **changed}))
    assert found == level
    assert any(reason in each for each in reasons)


def test_chains_that_cannot_be_afforded_are_refused_in_words() -> None:
    refused = chains_refused(replace(EVIDENCE, program=replace(PROGRAM, dim=20_000_000)))
    assert refused is not None and "20,000,000" in refused
    slow = replace(EVIDENCE, program=replace(PROGRAM, seconds_per_evaluation=0.5))
    assert "about 10000 s" in str(chains_refused(slow))
    quick = replace(slow, program=PROGRAM, wanted=replace(WANTED, seconds=0.1))
    assert "about 0.2 s, more than the 0.1 s" in str(chains_refused(quick))
    assert chains_refused(EVIDENCE) is None


def test_chains_want_evaluations_for_the_search_before_them() -> None:
    """Without a search there are none, whatever is left."""
    before = replace(EVIDENCE, modes=None, correction=None)
    assert "6,108 at least" in str(chains_refused(replace(before, left=6_000)))
    assert chains_refused(replace(before, left=6_200)) is None
    assert chains_refused(replace(before, correction=GOOD, left=5_000)) is not None
    assert chains_refused(replace(EVIDENCE, modes=MODES, correction=GOOD, left=4_700)) is None


def test_chains_go_on_for_what_does_not_speak_against_them() -> None:
    assert enough(RESTED, WANTED)
    assert not enough(replace(RESTED, r_hat=1.025), WANTED)
    uncertain = replace(RESTED, deviation_error=0.0312)
    assert enough(uncertain, WANTED) and not enough(uncertain, CERTAIN)
    # Where pairs of chains do not meet more is asked.
    assert enough(replace(RESTED, r_hat=1.009), WANTED, is_alone=True)
    assert not enough(replace(RESTED, r_hat=1.012), WANTED, is_alone=True)
    for one in ({"is_alone": True}, {"is_far": True}):
        assert enough(replace(RESTED, deviation_error=0.049), WANTED, **one)
        assert not enough(replace(RESTED, deviation_error=0.051), WANTED, **one)
    # Tails that are heavy may be those of an improper posterior.
    sure = replace(RESTED, r_hat=1.003)
    assert enough(sure, WANTED, is_heavy=True) and not enough(RESTED, WANTED, is_heavy=True)
    heavy = replace(RESTED, heavy=("t",))
    assert is_doubtful(heavy, FAIR) and not is_doubtful(heavy, GOOD)


def test_jumps_alone_want_a_close_proposal_and_pairs_that_meet() -> None:
    assert is_good(GOOD) and is_close(GOOD)
    assert not is_good(replace(GOOD, khat=0.55)) and not is_good(replace(GOOD, share=0.25))
    assert is_good(replace(GOOD, khat=0.35)) and not is_close(replace(GOOD, khat=0.35))
    assert not is_close(replace(GOOD, share=0.25))
    # Even weights of draws given hyperparameters are close as well.
    even = replace(GOOD, khat=0.45, share=0.6, given=True)
    assert is_close(even) and not is_close(replace(even, given=False))
    assert not is_close(replace(even, share=0.45)) and not is_close(replace(even, khat=0.55))
    # Where they are all alike k-hat says nothing.
    alike = replace(GOOD, khat=1.1, share=0.8, given=True)
    assert is_close(alike) and is_reliable(alike) and covers(PROGRAM, alike)
    far = replace(alike, given=False)
    assert not (is_close(far) or is_reliable(far) or covers(PROGRAM, far))
    assert is_bounded(MET)
    assert not is_bounded(Coupled(64, 0, 10, 3, 0.2)) and not is_bounded(Coupled(64, 1, 10, 60))


def test_jumps_alone_to_a_mixture_want_normals_whose_weights_are_reliable() -> None:
    assert covers(PROGRAM, replace(BAD, khat=0.69)) and not covers(PROGRAM, replace(BAD, khat=0.71))
    assert not covers(replace(PROGRAM, strain=4.0), GOOD)


def test_mixtures_are_fitted_until_one_is_near_or_none_comes_near() -> None:
    assert may_adapt(FAIR, 20) and not may_adapt(FAIR, 21) and not may_adapt(GOOD, 2)
    # Good, and worth a closer one all the same, to which chains jump alone.
    worse = Correction(0.45, 0.55)
    assert is_good(worse) and may_adapt(worse, 2)
    assert is_better(worse, FAIR) and not is_better(FAIR, worse)
    assert is_better(Correction(0.25, 0.45), worse)
    assert is_better(worse, Correction(0.6, 0.6)) and is_better(replace(FAIR, share=0.25), FAIR)
    # Of those that are not good, weights tell up to a k-hat of 0.7.
    few = Correction(0.2, 0.12)
    assert is_better(Correction(0.6, 0.4), few) and not is_better(Correction(0.9, 0.4), few)
    assert is_adapted(GOOD, 1, jumps=True) and is_adapted(worse, 5, jumps=True)
    assert not is_adapted(worse, 4, jumps=True) and is_adapted(worse, 4, jumps=False)
    assert not is_adapted(replace(worse, share=0.45), 4, jumps=False)
    assert is_adapted(BAD, 3, jumps=True) and not is_adapted(BAD, 2, jumps=False)


def test_chains_of_jumps_aim_anew_where_a_mixture_would_be_taken_more_often() -> None:
    assert may_aim(0.6, 20) and not may_aim(0.6, 21) and not may_aim(0.8, 2)


def test_bends_are_left_where_they_could_draw_chains_away_from_a_neck() -> None:
    strained = replace(PROGRAM, strain=4.0)
    assert may_bend(PROGRAM, has_labels=False) and not may_bend(PROGRAM, has_labels=True)
    assert not may_bend(strained, has_labels=False)


def test_a_density_that_is_no_number_is_told_where_a_fit_is_refused() -> None:
    rough = replace(BAD, undefined=0.14)
    apart = replace(EVIDENCE, correction=rough, chains=replace(RESTED, r_hat=1.4))
    level, reasons = judge(apart)
    assert level == "not trusted" and "not a number at 14% of the draws" in reasons[0]
    assert "double precision" in reasons[0]
    for evidence in (replace(apart, chains=RESTED), replace(apart, correction=BAD)):
        assert not any("not a number" in each for each in judge(evidence)[1])
    level, reasons = judge(replace(apart, chains=None, wanted=replace(WANTED, exact=False)))
    assert level == "not trusted" and "not a number" in reasons[0]


def test_a_density_that_is_no_number_where_the_mass_is_speaks_against_draws() -> None:
    rough = Correction(0.1, 0.8, undefined=0.3, undefined_near=0.2)
    for chains in (RESTED, None):
        for near, expected in ((0.2, True), (0.01, False)):
            correction = replace(rough, undefined_near=near)
            wanted = replace(WANTED, exact=chains is not None)
            found = judge(replace(EVIDENCE, correction=correction, chains=chains, wanted=wanted))
            told = [each for each in found[1] if "not a number at 30%" in each]
            assert (found[0] == "not trusted") == expected and len(told) == expected


def test_ways_that_were_dropped_are_told_and_do_not_speak_against_a_fit() -> None:
    level, reasons = judge(replace(EVIDENCE, chains=RESTED, dropped=("Not fitted so: it fails.",)))
    assert level == "exact" and reasons[-1] == "Not fitted so: it fails."


@pytest.mark.parametrize(
    ("figure", "told"), [("72 sd", "(by 72 sd)"), ("too early to tell", "(too early to tell)")]
)
def test_how_far_an_engine_still_moved_is_said(figure: str, told: str) -> None:
    assert told in words_of(replace(SETTLED, settled=False, figure=figure))


def test_files_of_before_have_what_does_not_fall_with_the_chains() -> None:
    tree = as_tree(replace(EVIDENCE, chains=RESTED, flat=("mean",)))
    tree["fields"]["chains"]["fields"]["flat"] = tree["fields"].pop("flat")
    read = from_tree(tree, {})
    assert read.flat == ("mean",) and read.chains == RESTED
