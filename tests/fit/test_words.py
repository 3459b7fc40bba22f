"""The sentences of verdicts, as readers get them: each stands on the page that explains it.

Those on the left were hard to read once; what they said then is gone.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppl_ext.chains.coupling import Coupled
from ppl_ext.check.check import _conclusion
from ppl_ext.fit.ladder.written import modes_in_words
from ppl_ext.fit.verdict import levels
from ppl_ext.fit.verdict.comparison import Comparison, Dependence, Off
from ppl_ext.fit.verdict.facts import Chained, Correction, Engine, Evidence, Modes, Program, Wanted
from ppl_ext.fit.verdict.levels import judge, judge_engine
from ppl_ext.fit.verdict.verdict import STAGES, Verdict
from ppl_ext.statistics.khat import ParetoKHat
from ppl_ext.target.bounds import words_of_bounds
from ppl_ext.witnesses.drift import Drift
from ppl_ext.witnesses.ratios import Ratios
from ppl_ext.witnesses.stein import Stein

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")

MET = Coupled(32, 0, 7, 7, 0.0891)
EVIDENCE = Evidence(
    Program(dim=10, is_whole=True, seconds_per_evaluation=1e-5, rounding=1e-9),
    Wanted(target_ess=400.0, exact=True, seconds=600.0),
    Modes(number=1, last_new=0.0, shares=(1.0,)),
    coupled=MET,
)
RESTED = Chained(1.004, 600.0, 500.0, 0.03, (), 0.0, 0.0, False, "mu", draws=5_760)
BATCH = replace(EVIDENCE.program, is_whole=False, seconds_with_all_rows=0.2)
STOPPED = Engine("SVGD", 1_320, settled=False, moving=72.0, figure="72 sd")
OFF = Off("theta[2]", "theta", 0.05, 1.04, 0.02, 0.014, 0.016, 0.4)
STEIN = Stein(*map(np.array, ([0.02], [0.01], [0.13], [0.06])), number=1_000.0, names=["theta[2]"])
DRIFT = Drift(
    *(np.array([[a, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]) for a in (-0.31, 0.02)),
    1.02,
    256,
    4,
    0.8,
    ["theta[2]"],
)


def _ratios(khat: float) -> Ratios:
    figures = (0.02, 0.01, 0.0, 0.01, 0.9, 0.05, 0.1)
    return Ratios(
        ParetoKHat(khat, 1_000), 0.4, *(np.array([each]) for each in figures), 0.02, ["theta[2]"]
    )


def reasons(**changed: Any) -> str:
    return " ".join(judge(replace(EVIDENCE, **changed))[1])


def headline(level: Any, **fields: Any) -> str:
    return Verdict(level, (), **fields).headline


SENTENCES: dict[str, Callable[[], str]] = {
    "exact: 16 chains agree": lambda: headline("exact", num_chains=16),
    "exact: 16 chains agree in predictions": (
        lambda: headline("exact", num_chains=16, of_outputs=True)
    ),
    "approximate, predictions confirmed: chains that started apart agree in them, and held-out "
    "rows are calibrated": lambda: headline("approximate", confirmed=True, of_outputs=True),
    "corrected: draws of a Normal approximation, reweighted, and the weights are even": (
        lambda: headline("corrected")
    ),
    "approximate: draws of an approximation, which nothing has confirmed": (
        lambda: headline("approximate")
    ),
    "approximate: trusted, the draws agree with chains that agree with each other": (
        lambda: headline("approximate", confirmed=True)
    ),
    "not trusted: do not rely on these draws, they may be wrong": lambda: headline("not trusted"),
    "Least certain is 'mu': R-hat 1.004, ESS 600 of 5,760 draws (tails 500).": (
        lambda: reasons(chains=RESTED)
    ),
    "Tails of 'scale' are heavy, so that their standard deviations have no reliable error. Read "
    "the quantiles of fit.summary().": (lambda: reasons(chains=replace(RESTED, heavy=("scale",)))),
    "Chains disagree: R-hat 1.200, expected below 1.03. Give a larger budget= or seconds=.": (
        lambda: reasons(chains=replace(RESTED, r_hat=1.2))
    ),
    "The log density is not a number at 14% of the draws near the mode, as where numbers become 0 "
    "or infinite in this precision, or a matrix has no Cholesky factor. Use double precision; of a "
    "matrix, add more to its diagonal.": (
        lambda: reasons(
            chains=replace(RESTED, r_hat=1.2), correction=Correction(0.9, 0.02, undefined=0.14)
        )
    ),
    "At 98.4% of the draws parameter 'probs' of 'y' lies out of the bounds of its distribution, "
    "where it has no density. Keep it inside by exp, softplus or sigmoid, or add a factor of -inf "
    "beyond.": lambda: words_of_bounds("y", "probs", 0.984),
    "At 98.4% of the draws probabilities of 'y' are so near to 0 or 1 that they are held off them, "
    "and what was observed does not count as it should. Give logits= in place of probs=, or use "
    "double precision.": lambda: words_of_bounds("y", "held", 0.984),
    "Many draws of 'rate' lie where the numbers of this precision end, next to 0 or to 1: some of "
    "the mass is beyond them, or the posterior has no end there. Look for a prior that is "
    "improper; where it is proper, use double precision.": (
        lambda: reasons(chains=replace(RESTED, saturated=("rate",)))
    ),
    "Curvatures of sites of latent scale change by a factor of 120 over the draws, expected at "
    "most 3.5: draws where the scale is small may be missing. Give a larger budget= or seconds=, "
    "or write these sites non-centred.": lambda: reasons(chains=RESTED, neck=120.0),
    "The least certain standard deviation, that of 'theta[2]', has an error of 4.1%.": (
        lambda: reasons(chains=replace(RESTED, deviation_error=0.0412, deviation_number="theta[2]"))
    ),
    "Importance weights of the approximation: Pareto k-hat 0.20 (good below 0.5), worth 80% of the "
    "draws (good above 30%).": (
        lambda: reasons(
            correction=Correction(0.2, 0.8), wanted=replace(EVIDENCE.wanted, exact=False)
        )
    ),
    "The budget ended early: these are draws of a Normal at the mode that was found, which nothing "
    "has checked. Give a larger budget= or seconds=.": lambda: reasons(left=500),
    "Only batches of the rows were looked at: with all rows the search alone would take about "
    "500 s, more than 50% of the 600 s that seconds= allows.": (
        lambda: reasons(program=BATCH, engine=replace(STOPPED, settled=True))
    ),
    "SVGD was still moving when it ended after 1,320 steps (by 72 sd). Give a larger budget= or "
    "seconds=.": lambda: reasons(engine=STOPPED),
    "SVGD ended after 1,320 steps before it had settled, with draws that the chains confirm all "
    "the same.": lambda: " ".join(judge_engine(STOPPED, Verdict("exact", ()), 0)[1]),
    "k-hat is below 0 (the ratios are all alike) with 1000 draws": (
        lambda: ParetoKHat(-np.inf, 1_000).message
    ),
    "Numbers of this precision are too coarse: neighbouring ones lie 0.05 standard deviations of "
    "the posterior apart.": (
        lambda: reasons(program=replace(EVIDENCE.program, grain=0.05), chains=RESTED)
    ),
    "The comparison with chains decided nothing:": (
        lambda: " ".join(judge_engine(STOPPED, Verdict("not trusted", ("Why.",)), 0)[1])
    ),
    "3 of 10 parameters differ from those of chains by more than chance explains.": (
        lambda: levels.words_of_wrong(3, 10)
    ),
    "1 parameter differs from those of chains by more than chance explains.": (
        lambda: levels.words_of_wrong(1)
    ),
    "Compared with chains, 'theta[2]' differs most: its mean by 0.05 sd, its sd is 1.04 times "
    "theirs, 2.0% "
    "of the probability lies elsewhere (Kolmogorov distance), and its tails are 1.4% and 1.6% "
    "where theirs are 1.5% each.": lambda: OFF.told,
    "Draws of 'theta[0]' and 'theta[2]' have a rank correlation of 0.02, those of chains 0.57: "
    "what depends on both is off.": (
        lambda: Dependence(("theta[0]", "theta[2]"), 0.02, 0.57, 3.0).told
    ),
    "Not confirmed: the sd of 'theta[2]' may be off by 108%, as far as these draws and chains "
    "tell. Take more draws, of particles by num_particles=.": (
        lambda: Comparison([replace(OFF, deviation_bound=1.084)], {}).unsure
    ),
    "Stein's identities, which right draws obey: the mean slope of the log density is +0.02 ± 0.01 "
    "in 'theta[2]' (0 for right draws), and the spread of the draws 0.87 ± 0.06 in 'theta[2]' (1 "
    "for right draws, "
    "less for draws that lie too close together).": lambda: STEIN.told,
    "256 short chains from the draws, 4 steps each, move the mean of 'theta[2]' most, by -0.31 ± "
    "0.02 sd (right draws stay where they are; nested R-hat of the chains 1.02).": lambda: (
        DRIFT.told
    ),
    "Far out the density does not fall with 'mean', whose prior is improper: the posterior has no "
    "normaliser. Give a proper prior.": (lambda: reasons(chains=RESTED, flat=("mean",))),
    "By importance ratios the draws' probability that 'theta[2]' lies below a value is off by up "
    "to "
    "0.10 (0.05 is let pass).": lambda: _ratios(0.2).told_of_distance,
    "The posterior of 'theta[2]' has a longer tail on the right and a shorter one on the left than "
    "the draws: by the importance ratios its skewness exceeds that of the draws "
    "by +0.90 ± 0.05. A guide that can be skewed, or `fit`, helps.": (
        lambda: _ratios(0.2).told_of_skewness
    ),
    "Importance ratios: Pareto k-hat 1.20, worth 40% of the draws: too uneven to say how far the "
    "draws are off.": (lambda: _ratios(1.2).told),
    "All 32 pairs of chains from far apart met within 7 transitions: with 95% confidence, where "
    "chains start changes the probability of any event by at most 8.9%.": (
        lambda: reasons(chains=RESTED, coupled=MET)
    ),
    "How much still depends on where chains started is not known: 2 of 32 pairs of chains from far "
    "apart had not met after 25 transitions. So closer agreement of the chains was asked for, and "
    "found.": (
        lambda: reasons(chains=replace(RESTED, r_hat=1.001), coupled=Coupled(32, 2, 25, 25))
    ),
    "Found one mode in 24 searches, 8 of them from draws of the prior.": (
        lambda: reasons(modes=replace(EVIDENCE.modes, paths=24, from_prior=8))
    ),
    "So these draws may be trusted.": (
        lambda: _conclusion(Verdict("approximate", (), confirmed=True))
    ),
    "So do not trust these draws.": lambda: _conclusion(Verdict("not trusted", ())),
    "So these draws are neither refuted nor confirmed. Give check more draws, or a larger budget= "
    "or seconds=; or fit by fit.": (lambda: _conclusion(Verdict("approximate", ()))),
    "finding a mode": lambda: STAGES["start"],
    "sampling": lambda: STAGES["chains"],
    "1 mode found": lambda: modes_in_words(1),
}
#: What readers did not understand.
GONE = (
    "have come to rest",
    " chains kept",
    "chains' limit",
    "as written, ",
    "-E[z s]",
    "had not settled after",
    "mean's error, sd",
    "is furthest off",
    "marginal(s)",
    "mode(s)",
    "evaluated only",
    "chance and tolerance allow",
    "agree in outputs",
    "Outputs are judged",
    "chance explains up to",
)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_is_what_the_page_explains(sentence: str) -> None:
    assert sentence in SENTENCES[sentence]()
    assert f"| {sentence} |" in PAGE


@pytest.mark.parametrize("stage", STAGES.values())
def test_a_stage_is_what_the_page_explains(stage: str) -> None:
    assert f"| {stage} |" in PAGE


def test_there_are_as_many_sentences_as_were_hard_to_read() -> None:
    assert len(SENTENCES) >= 25


def test_old_words_are_gone() -> None:
    paths = [path for room in ("fit", "check") for path in (ROOT / "ppl_ext" / room).glob("*.py")]
    found = []
    for path in paths:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        owners = (ast.Module, ast.ClassDef, ast.FunctionDef)
        told = {ast.get_docstring(node, clean=False) for node in nodes if isinstance(node, owners)}
        texts = {node.value for node in nodes if isinstance(node, ast.Constant)} - told
        found += [
            (path.name, text)
            for text in texts
            if isinstance(text, str) and any(old in text for old in GONE)
        ]
    assert not found
