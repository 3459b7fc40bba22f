"""Write `leaderboard.html` beside the pages, from the kept records of the posteriordb benchmark."""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

RECORDS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "posteriordb.jsonl"


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the page when HTML pages have been built."""
    if exception is None and app.builder.format == "html":
        from benchmarks import records
        from benchmarks.posteriordb import leaderboard

        page = leaderboard.page(records.read(RECORDS), "posteriordb.html")
        records.write_text(Path(app.outdir) / "leaderboard.html", page)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register it."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
