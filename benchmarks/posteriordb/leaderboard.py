"""The leaderboard as one HTML page, which needs nothing beside it and is made of records alone."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.posteriordb import report
from benchmarks.posteriordb.methods import METHODS
from benchmarks.records import Record
from benchmarks.trust.judge import MEAN

TEMPLATE = Path(__file__).with_suffix(".html")


def page(runs: Sequence[Record], explained: str | None = None) -> str:
    """The page, of runs on posteriors with reference draws and without noise in the scores.

    Of runs that differ in their step size alone the one is shown that the benchmark takes.
    `explained` is the address of a page that says how runs are judged, if there is one.

    Raises
    ------
    ValueError
        There are no such runs.
    """
    shown = judged(runs)
    if not shown:
        raise ValueError(
            "Expected records of runs on posteriors with reference draws, found none; make some "
            "by `python -m benchmarks posteriordb`."
        )
    posteriors = {run.model for run in shown}
    budgets = sorted({run.settings["budget"] for run in shown})
    days = sorted({run.time[:10] for run in shown})
    found = {
        "about": (
            f"{len(shown)} runs on {len(posteriors)} posteriors, of "
            f"{' or '.join(f'{budget:,}' for budget in budgets)} score evaluations at most, made "
            f"{' to '.join(dict.fromkeys([days[0], days[-1]]))} by python -m benchmarks "
            "posteriordb. All but NUTS and nutpie begin where a search for the mode ends."
        ),
        "explained": explained,
        "goal": MEAN,
        "runs": [row(run) for run in shown],
    }
    # A closing tag in a message would end the script that holds the data.
    text = json.dumps(found, allow_nan=False).replace("</", "<\\/")
    return TEMPLATE.read_text(encoding="utf-8").replace("DATA</script>", f"{text}</script>", 1)


def judged(runs: Sequence[Record]) -> list[Record]:
    """The runs that the page shows."""
    known = report.judged_posteriors(runs)
    return [
        run
        for run in report.best_rates(runs)
        if run.model in known and report.was_run(run) and run.settings["noise"] == 0.0
    ]


def row(run: Record) -> dict[str, Any]:
    """What the page has of a run; figures that are not finite are null, which stands last."""
    figures = run.figures
    if run.failed:
        outcome = "failed"
    else:
        outcome = "right" if figures.get("right") else "wrong"
    curves = figures.get("curves", {})
    looks = zip(curves.get("evaluations", ()), curves.get("worst mean error", ()), strict=False)
    return {
        "posterior": run.model,
        "engine": run.method,
        "backend": run.backend,
        "ours": run.method in METHODS and METHODS[run.method].ours,
        "outcome": outcome,
        "error": _number(figures.get("worst mean error")),
        "least": _number(figures.get("least sd ratio")),
        "greatest": _number(figures.get("greatest sd ratio")),
        "cost": _number(report.right_after(run)),
        "evaluations": _number(figures.get("evaluations")),
        "dimension": _number(figures.get("dimension")),
        "curve": [
            [int(at), max(float(error), 1e-4)] for at, error in looks if _number(error) is not None
        ],
        "message": (run.error or "").split(": ", 1)[-1].splitlines()[0] if run.failed else "",
    }


def _number(value: Any) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() else float(value)
