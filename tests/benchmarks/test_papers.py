"""The papers' page: verdicts follow from records, and every table has its row."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import pages
from benchmarks.__main__ import build_parser
from benchmarks.papers import claims, overviews, page, readings, score_vi, svgd_vr, svn
from benchmarks.papers.claims import Beats, Below, Claim, Reading, Values
from benchmarks.queue import PARTS
from benchmarks.records import LABELS, Record

#: The tables of the papers; the two overviews have none.
TABLES = {
    "papers, SVGD-VR": ("I", "II", "III", "IV", "V"),
    "papers, SVN": ("1", "2", "3", "C.1", "C.2", "C.3"),
    "papers, score-vi": ("1", "2", "3", "4", "5", "6", "7", "8"),
}
CLAIMS = [claim for own in page.PAPERS.values() for claim in own]


def runs_of(values: dict[str, Sequence[float]], backend: str) -> list[Record]:
    """A record for each seed of each method; NaN is a run that failed."""
    found = []
    for method, own in values.items():
        for seed, value in enumerate(own):
            record = Record("study", method, backend, "set", seed, figures={"error": value})
            record.error = "RuntimeError: broken" if value != value else None
            found.append(record)
    return found


def verdict(claim: Claim, runs: Sequence[Record]) -> str:
    return claim.verdict(claim.outcomes(claims.by_package(runs)))


def reading(method: str) -> Reading:
    return readings.plain("study", "set", method, "error")


LOWER = Claim("Table 0", "ours is lower", "", Beats(reading("ours"), (reading("a"), reading("b"))))
BAD = float("nan")
OURS, NEAR, FAR = (1.0, 1.1, 1.2), (1.05, 1.0, 1.3), (2.0, 2.2, 2.1)


@pytest.mark.parametrize(
    ("numpyro", "pyro", "expected", "told"),
    [
        ((OURS, FAR, FAR), (OURS, FAR, FAR), "holds", ""),
        ((OURS, FAR, FAR), (OURS, NEAR, FAR), "holds in part", "Not told apart in Pyro."),
        ((FAR, OURS, FAR), (OURS, NEAR, FAR), "does not hold", "The reverse in NumPyro."),
        ((OURS, FAR, FAR), None, "holds in part", "Too few runs in Pyro."),
        (None, (FAR, OURS, FAR), "does not hold", "The reverse in Pyro."),
        ((OURS[:2], FAR[:2], FAR[:2]), None, "not tried", "Too few runs in NumPyro and Pyro."),
        # Each rival has to have runs, and a run that failed is worse than any other.
        ((OURS, FAR, ()), None, "not tried", "Too few runs in NumPyro and Pyro."),
        (((1.0, BAD, 1.0), FAR, FAR), None, "does not hold", "in NumPyro"),
        ((OURS, (2.0, BAD, 2.0), FAR), None, "holds in part", "So in NumPyro."),
        # Each fails once: neither is beaten.
        (((9.0, 1.0, 1.0), (2.0, BAD, 2.0), (3.0, BAD, 3.0)), None, "does not hold", "Not told"),
        (((9.0, BAD, 9.0), FAR, FAR), None, "does not hold", "The reverse in NumPyro."),
        # Both fail always: the fault may be the benchmark's.
        ((OURS, (BAD,) * 3, (BAD,) * 3), None, "not tried", "Too few runs"),
        (None, None, "not tried", "Too few runs in NumPyro and Pyro."),
    ],
)
def test_verdicts_follow_from_records(
    numpyro: tuple[Values, ...] | None, pyro: tuple[Values, ...] | None, expected: str, told: str
) -> None:
    runs = []
    for backend, values in (("numpyro", numpyro), ("Pyro", pyro)):
        if values is not None:
            runs += runs_of(dict(zip(("ours", "a", "b"), values, strict=True)), backend)
    packages = claims.by_package(runs)
    assert verdict(LOWER, runs) == expected
    assert told in LOWER.reason(LOWER.outcomes(packages))


def test_other_tests_of_a_claim() -> None:
    runs = [run for name in LABELS for run in runs_of({"ours": OURS, "a": NEAR, "b": OURS}, name)]
    tie = Claim("Table 0", "", "", Beats(reading("ours"), (reading("a"),), tie=True))
    assert verdict(tie, runs) == "holds"
    larger = Claim("Table 0", "", "", Beats(reading("a"), (reading("b"),), larger=True))
    assert verdict(larger, runs) == "does not hold"
    below = Claim("Table 0", "", "", Below(reading("ours"), 2.0))
    assert verdict(below, runs) == "holds"
    # Mean 1.1, standard error 0.058: two of them above it is 1.215.
    assert verdict(Claim("Table 0", "", "", Below(reading("ours"), 1.2)), runs) == "does not hold"
    one = runs_of({"ours": (0.4,)}, "pyro")
    exact = Claim("Table 0", "", "", Below(reading("ours"), 1.0, exact=True))
    assert verdict(exact, one) == "holds in part"
    assert verdict(Claim("Table 0", "", "", fixed="cannot be had"), runs) == "cannot be had"
    # Over orders of magnitude by logarithms: the mean of these differences is within its error.
    wide = {"ours": (1e-4, 1e-3, 1.0), "a": (1e-3, 1e-2, 12.0)}
    runs = [run for name in LABELS for run in runs_of(wide, name)]
    for log, expected in ((True, "holds"), (False, "does not hold")):
        claim = Claim("Table 0", "", "", Beats(reading("ours"), (reading("a"),), log=log))
        assert verdict(claim, runs) == expected


def test_networks_that_fail_count_in_their_claim() -> None:
    """Of three splits one fails: it is worse than any other, and not left out."""
    runs = []
    for split in range(3):
        run = Record("bnn", "SVN", "NumPyro", "yacht", seed=split)
        run.settings = {"split": split, "candidate": 0, "particles": 5}
        run.figures = {"validation": 1.0, "at best": {"test NLL": 0.5}}
        runs.append(run)
    runs[2].error = "DivergedError: at step 3"
    found = readings.bnn("yacht", "SVN").of(runs)
    assert [found[split] for split in (0, 1)] == [0.5, 0.5]
    assert math.isnan(found[2])


def test_a_rate_with_a_figure_that_is_no_number_is_not_the_best() -> None:
    runs = []
    for rate, error in ((0.1, BAD), (0.01, 1.0)):
        run = Record("score-vi uci", "ADVI", "NumPyro", "yacht", seed=4, settings={"rate": rate})
        run.figures = {"NLL": error}
        runs.append(run)
    assert readings.score_vi("yacht", "ADVI", "NLL").of(runs) == {4: 1.0}


def test_means_have_the_decimals_of_their_errors() -> None:
    assert claims.shown([84.99, 85.01, 85.0]) == "85.000 ± 0.006"
    assert claims.shown([1.0, 3.0, 5.0]) == "3 ± 1"
    assert claims.shown([0.1 + 0.2, 0.3, 0.3]) == "0.3"
    assert claims.shown([2.5]) == "2.5"


def test_a_missing_record_never_shows_a_figure() -> None:
    for claim in CLAIMS:
        row = claim.row(claims.by_package([]))
        assert [row[label] for label in LABELS.values()] == ["–", "–"]
        assert row["verdict"] in ("not tried", "cannot be had", "no claim")
    for maker in (svgd_vr.table, svn.table, score_vi.table, overviews.overview, page.left):
        assert maker([])
    assert page.failing([]) == "None so far.\n"


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_every_table_of_the_papers(name: str) -> None:
    text = (pages.DOCS / "papers.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- table: {name} -->\n(.*?)<!-- end of table -->", text, re.DOTALL)
    assert found is not None
    for number in TABLES[name]:
        assert re.search(rf"(?m)^\| Table {re.escape(number)}[, |]", found[1]), number
    assert len([claim for claim in CLAIMS if claim.test is not None]) >= 30


def test_the_queue_makes_the_records_of_every_claim() -> None:
    """But for those of studies whose records pages have."""
    made = {
        "row-noise",
        "linearized",
        "noisy-scores",
        "sgmcmc --parts bias",
        "sgmcmc --parts modes",
        "score-vi --experiment memory",
    }
    parts = {(part.study, part.options) for part in PARTS}
    for claim in CLAIMS:
        if claim.test is None or claim.command in made:
            continue
        study, *options = shlex.split(claim.command)
        _parsed(study, options)
        for package in LABELS:
            for wanted in _commands(study, options):
                assert (study, (*wanted, "--backend", package)) in parts, claim.command


def _parsed(study: str, options: Sequence[str]) -> argparse.Namespace:
    return build_parser(study).parse_args([study, *options])


def _commands(study: str, options: list[str]) -> list[list[str]]:
    """The command itself, or, of the networks, one for each method."""
    if (
        study != "bnn"
        or "--methods" not in options
        or "--particles" in options
        or "MFVI" in options
    ):
        return [options]
    at = options.index("--methods") + 1
    return [[*options[:at], method] for method in options[at:]]


def test_tables_of_several_files_take_those_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    assert "not tried" in pages.table("papers, SVGD-VR")
    assert "| logistic" in pages.table("papers, queue")
    with pytest.raises(FileNotFoundError):
        pages.table("regression")
