"""Tables of `docs/papers.md` that are of all papers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks import records
from benchmarks.papers import claims, overviews, score_vi, svgd_vr, svn
from benchmarks.papers.claims import Claim
from benchmarks.queue import PARTS
from benchmarks.records import Record

#: The claims of each paper, by what pages call it.
PAPERS: Mapping[str, Sequence[Claim]] = {
    "Dam et al.": svgd_vr.CLAIMS,
    "Dam et al., at equal gradients": svgd_vr.CONTROLS,
    "Flöge et al.": svn.CLAIMS,
    "Flöge et al., by time": svn.CONTROLS,
    "Kim": score_vi.CLAIMS,
    "Ursulean": overviews.OVERVIEW,
    "Chen et al.": overviews.SURVEY,
}


def failing(runs: Iterable[Record]) -> str:
    """The claims that fail in a package."""
    return claims.failing(PAPERS, runs)


def counted(runs: Iterable[Record]) -> str:
    """How many claims of each paper have each verdict, and how many figures of both packages."""
    packages = claims.by_package(runs)
    rows = []
    for paper, own in PAPERS.items():
        found = [claim.outcomes(packages) for claim in own]
        verdicts = [claim.verdict(each) for claim, each in zip(own, found, strict=True)]
        row: dict[str, str | int] = {"paper": paper, "rows": len(own)}
        row["of both packages"] = sum(
            all(outcome.passed is not None for outcome in each.values()) for each in found
        )
        row |= {verdict: verdicts.count(verdict) for verdict in claims.VERDICTS}
        rows.append(row)
    return records.markdown_table(rows)


def left(runs: Iterable[Record]) -> str:
    """What the queue has ended of each study."""
    last = {run.model: run for run in runs if run.benchmark == "queue"}
    rows = []
    for study in dict.fromkeys(part.study for part in PARTS):
        names = [part.name for part in PARTS if part.study == study]
        ended = [last[name] for name in names if name in last]
        row: dict[str, str | int] = {"study": study, "parts": len(names), "ended": len(ended)}
        rows.append(row | {"failed": sum(run.failed for run in ended)})
    return records.markdown_table(rows)
