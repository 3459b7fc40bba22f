"""What studies share: runs are recorded, failures kept, what is recorded is taken up again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import records
from benchmarks.records import Record
from benchmarks.study import Study, backends_of, forget_programs


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


def test_an_overview_has_means_over_seeds_and_ends_of_named_lists(tmp_path: Path) -> None:
    study = Study("study", tmp_path)
    for seed, error in enumerate((1.0, 3.0)):
        found = {"RMSE": [9.0, error], "end": {"NLL": 2.0 * error}, "told": "fine"}
        for rate in (0.1, 0.2):
            study.run("sound", "pyro", "ring", seed, {"rate": rate}, partial(dict, found))

    def broken(figures: dict[str, Any]) -> None:
        figures["RMSE"] = 100.0
        raise FloatingPointError("far off")

    study.follow("sound", "pyro", "ring", 2, {"rate": 0.2}, broken, benchmark="study, a part")
    assert study.runs[-1].failed and study.runs[-1].figures == {"RMSE": 100.0}
    heading, *tables = study.overview(by=("rate",)).split("\n## ")
    assert heading == "# study\n"
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables[0].splitlines()]
    columns = ["model", "package", "method", "rate", "runs", "failed", "end: NLL", "told"]
    assert lines[2][:8] == columns
    assert lines[4][:8] == ["ring", "pyro", "sound", "0.1", "2", "0", "4", "fine"]
    assert [line[3] for line in lines[4:6]] == ["0.1", "0.2"]
    # A run that failed is counted, and its figures are not.
    assert tables[1].startswith("study, a part\n") and "100" not in tables[1]
    named = study.overview("RMSE", by=("rate",)).split("\n## ")[1].splitlines()
    assert [cell.strip() for cell in named[4].split("|")[7:8]] == ["2"] and "told" not in named[2]
    assert Study.recorded("study", tmp_path).runs == study.runs
    # Times are those of runs that did not fail and were timed.
    for run, seconds in zip(study.runs, (1.0, 1.0, 3.0, None, 100.0), strict=True):
        run.seconds = seconds
    (row,) = [line for line in study.overview().split("\n## ")[1].splitlines() if "ring" in line]
    assert row.split("|")[-2].strip() == "1.67"


def test_both_is_two_packages() -> None:
    assert backends_of("both") == ("numpyro", "pyro") and backends_of("pyro") == ("pyro",)


def test_programs_that_are_forgotten_are_compiled_again() -> None:
    jax = pytest.importorskip("jax")
    from numpyro_ext.programs import Program

    compiled: list[str] = []

    def note(name: str, *_: Any, **__: Any) -> None:
        compiled.extend([name] if name.endswith("backend_compile_duration") else [])

    def compilations() -> int:
        before = len(compiled)
        Program(lambda x: jax.numpy.sinh(3.0 * x))(values)
        return len(compiled) - before

    values = jax.numpy.ones(7)
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        found = [compilations(), compilations()]
        forget_programs()
        assert [*found, compilations()] == [1, 0, 1]
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
