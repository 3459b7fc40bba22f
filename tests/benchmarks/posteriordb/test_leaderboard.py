"""The leaderboard page shows what the records say, and sorts it, in a real browser."""

from __future__ import annotations

import html
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import records
from benchmarks.posteriordb import leaderboard, report
from benchmarks.records import Record

KEPT = Path(leaderboard.__file__).parents[1] / "results" / "posteriordb.jsonl"
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium to look at the page with")


def run(engine: str, posterior: str, error: float) -> Record:
    """A record of a run with three looks, the last of which has that error."""
    figures = {
        report.JUDGED: True,
        "dimension": 3,
        "worst mean error": error,
        "least sd ratio": 0.9,
        "greatest sd ratio": 1.1,
        "right": error < 0.1,
        "evaluations": 5000,
        "curves": {
            "evaluations": [100, 200, 5000],
            "worst mean error": [math.inf, 2.0, error],
            "right": [False, error < 0.1, error < 0.1],
        },
    }
    settings = {"route": "native", "rate": None, "budget": 5000, "start": "path", "noise": 0.0}
    return Record("posteriordb", engine, "numpyro", posterior, 0, settings, figures)


def failed(engine: str, posterior: str, message: str) -> Record:
    """A record of a run that failed."""
    record = run(engine, posterior, math.nan)
    record.figures, record.error = {report.JUDGED: True}, message
    return record


RUNS = [
    run("SVGD", "arK", 0.5),
    run("SVN", "arK", 0.02),
    run("SVGD", "nes", 0.03),
    run("SVN", "nes", math.inf),
    failed("BaM", "arK", "ArithmeticError: the budget was spent </script><b>early</b>"),
]


def test_a_row_has_the_figures_of_its_record() -> None:
    found = leaderboard.row(RUNS[1])
    assert (found["outcome"], found["error"], found["cost"]) == ("right", 0.02, 200)
    # A look that is not finite is no point of the curve.
    assert found["curve"] == [[200, 2.0], [5000, 0.02]]
    assert leaderboard.row(RUNS[3])["error"] is None
    lost = leaderboard.row(RUNS[4])
    assert (lost["outcome"], lost["error"], lost["cost"], lost["curve"]) == (
        "failed",
        None,
        None,
        [],
    )
    assert lost["message"].startswith("the budget was spent")


def test_the_page_needs_nothing_beside_it() -> None:
    page = leaderboard.page(RUNS)
    assert not re.search(r"(?:src|@import|url\()", page)
    assert "href=" not in page
    # What a message says cannot end the script that holds it.
    assert page.count("</script>") == 2 and "spent <\\/script>" in page


def test_records_without_a_reference_make_no_page() -> None:
    record = run("SVGD", "arK", 0.5)
    record.figures = {report.JUDGED: False}
    with pytest.raises(ValueError, match="python -m benchmarks posteriordb"):
        leaderboard.page([record])


def cells(page: Path, address: str, table: str) -> list[list[str]]:
    """Text of a table's cells after the browser has run the page."""
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu"]
    command += [f"--user-data-dir={page.parent / 'browser'}", "--virtual-time-budget=2000"]
    command += ["--dump-dom", f"{page.as_uri()}#{address}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(rf'<table id="{table}">.*?<tbody>(.*?)</tbody>', ended.stdout, re.DOTALL)
    assert found is not None, ended.stdout[-2000:] + ended.stderr[-2000:]
    rows = re.findall(r"<tr.*?>(.*?)</tr>", found[1], re.DOTALL)
    return [[html.unescape(cell) for cell in re.findall(r"<td.*?>(.*?)</td>", row)] for row in rows]


@needs_browser
def test_a_browser_shows_and_sorts_the_runs(tmp_path: Path) -> None:
    page = tmp_path / "leaderboard.html"
    page.write_text(leaderboard.page(RUNS), encoding="utf-8")
    engines = cells(page, "", "engines")
    assert [row[0] for row in engines] == ["SVGD", "SVN", "BaM"]
    assert [row[2] for row in engines] == ["1 of 2", "1 of 2", "0 of 1"]
    ascending = cells(page, "runs=error", "runs")
    assert len(ascending) == len(RUNS)
    assert [row[3] for row in ascending] == ["0.02", "0.03", "0.5", "–", "–"]
    descending = cells(page, "runs=error&runs-down=1", "runs")
    # Without a figure a run stands last in either order.
    assert [row[3] for row in descending] == ["0.5", "0.03", "0.02", "–", "–"]
    chosen = cells(page, "engine=SVN", "runs")
    assert {row[1] for row in chosen} == {"SVN"} and len(chosen) == 2


@needs_browser
def test_the_kept_records_fill_the_page_and_a_picture_is_drawn(tmp_path: Path) -> None:
    kept = records.read(KEPT)
    page = tmp_path / "leaderboard.html"
    page.write_text(leaderboard.page(kept), encoding="utf-8")
    assert len(cells(page, "", "runs")) == len(report.best_rates(kept))
    picture = tmp_path / "page.png"
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu"]
    command += [f"--user-data-dir={tmp_path / 'browser'}", "--virtual-time-budget=2000"]
    command += ["--window-size=390,800", f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    image = pytest.importorskip("matplotlib.image").imread(picture)
    assert image.shape[:2] == (800, 390)
    # An empty page would have one colour.
    assert image[..., :3].std() > 0.05
