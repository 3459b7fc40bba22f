"""What studies share: runs are recorded, failures kept, what is recorded is taken up again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import records
from benchmarks.records import Record
from benchmarks.study import Study, backends_of


def worked(out: Path, calls: list[str], **options: bool) -> Study:
    study = Study("study", out, **options)

    def figures(method: str) -> dict[str, Any]:
        calls.append(method)
        if method == "broken":
            raise FloatingPointError("far off")
        return {"error": 0.5, "trace": [1.0, 2.0]}

    for method in ("sound", "broken"):
        study.run(method, "pyro", "ring", 0, {"steps": 3}, lambda method=method: figures(method))
    return study


def test_runs_are_recorded_and_taken_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []
    study = worked(tmp_path, calls)
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "ring, pyro, sound, seed 0: error 0.5",
        "ring, pyro, broken, seed 0: FloatingPointError: far off",
    ]
    written = records.read(tmp_path / "study.jsonl")
    assert written == study.runs and [run.failed for run in written] == [False, True]
    assert written[0].settings == {"steps": 3} and written[0].benchmark == "study"
    assert worked(tmp_path, calls, resume=True).runs == written and len(calls) == 2
    worked(tmp_path, calls, retry_failed=True)
    assert calls == ["sound", "broken", "broken"]
    # Begun anew: the earlier records lie beside the new ones.
    worked(tmp_path, calls)
    assert len(calls) == 5 and len(records.read(tmp_path / "study-1.jsonl")) == 2


def test_the_report_names_what_failed_and_shows_the_rest(tmp_path: Path) -> None:
    shown: list[str] = []

    def picture(runs: Sequence[Record], path: Path) -> None:
        shown.extend(run.method for run in runs)
        assert path == tmp_path / "study.png"

    study = worked(tmp_path, [])
    assert study.report("# Study\n", picture) == 0 and shown == ["sound"]
    text = (tmp_path / "study.md").read_text()
    assert text.startswith("# Study\n")
    assert "Failed: ring, pyro, broken, seed 0: FloatingPointError: far off" in text
    study.runs = [run for run in study.runs if run.failed]
    assert study.report("", picture) == 1 and shown == ["sound"]


def test_both_is_two_packages() -> None:
    assert backends_of("both") == ("numpyro", "pyro") and backends_of("pyro") == ("pyro",)
