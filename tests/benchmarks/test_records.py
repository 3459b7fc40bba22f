"""Records survive a round trip, failures are kept, writes are whole, tables read well."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks import records
from benchmarks.records import Record


def test_round_trip_keeps_everything(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "runs.jsonl"
    first = Record(
        "speed",
        "SVGD",
        "pyro",
        "logistic",
        seed=3,
        settings={"num_particles": 100, "kernel": "rbf"},
        figures={"milliseconds": np.float32(1.5), "moments": np.array([1.0, math.inf])},
        seconds=0.25,
    )
    records.append(path, first)
    records.append(path, Record("speed", "SVGD", error="ValueError: no", figures={"x": math.nan}))
    back = records.read(path)
    assert [record.failed for record in back] == [False, True]
    assert back[0].figures == {"milliseconds": 1.5, "moments": [1.0, math.inf]}
    assert math.isnan(back[1].figures["x"])
    assert back[0].settings == first.settings
    assert back[0].versions["numpy"] == np.__version__
    # Every line is JSON that other tools read as well: no bare NaN.
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"bare {name}"))


def test_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    records.append(path, Record("speed", "SVGD"))
    path.write_text(path.read_text() + '{"benchmark": \n')
    with pytest.raises(ValueError, match=r"runs\.jsonl, line 2: expected one benchmark record"):
        records.read(path)


def test_failed_run_is_recorded_and_raised(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    ticks = iter([1.0, 3.5])
    with (
        pytest.raises(ZeroDivisionError),
        records.recorded_run(path, Record("demo", "SVGD"), clock=lambda: next(ticks)) as record,
    ):
        record.figures["before"] = 1
        raise ZeroDivisionError("by zero")
    (back,) = records.read(path)
    assert back.error == "ZeroDivisionError: by zero"
    assert back.seconds == 2.5
    assert back.figures == {"before": 1}


def test_named_failure_lets_the_benchmark_go_on(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with records.recorded_run(path, Record("demo", "a"), go_on_after=(ArithmeticError,)):
        raise ZeroDivisionError("by zero")
    with records.recorded_run(path, Record("demo", "b"), go_on_after=(ArithmeticError,)):
        pass
    assert [(record.method, record.failed) for record in records.read(path)] == [
        ("a", True),
        ("b", False),
    ]


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "report.md"
    records.write_text(path, "old")

    def refuse(source: str, target: str) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        records.write_text(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["report.md"]


def test_table() -> None:
    rows = [
        {"method": "SVGD", "error": 0.012345, "evaluations": 1234567},
        {"method": "a|b", "error": math.nan},
    ]
    table = records.markdown_table(rows, {"method": "Method", "error": "E", "evaluations": "N"})
    assert table.splitlines() == [
        "| Method |      E |         N |",
        "| ------ | -----: | --------: |",
        "| SVGD   | 0.0123 | 1,234,567 |",
        "| a\\|b   |    nan |         – |",
    ]


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (None, "–"),
        (True, "yes"),
        (0.0, "0"),
        (-math.inf, "-inf"),
        (12345.678, "12,346"),
        (1.5e9, "1.5e+09"),
        (np.float32(0.5), "0.5"),
        (np.int64(3), "3"),
        ("two\nlines", "two lines"),
    ],
)
def test_cells(value: object, cell: str) -> None:
    assert records.format_cell(value) == cell


def test_a_cut_last_line_is_dropped_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.jsonl"
    for method in ("A", "B"):
        records.append(path, Record("speed", method))
    whole = path.read_text()
    records.drop_cut_line(path)
    assert path.read_text() == whole and capsys.readouterr().err == ""
    path.write_text(whole[:-40])
    records.drop_cut_line(path)
    assert [record.method for record in records.read(path)] == ["A"]
    assert capsys.readouterr().err.count("dropped line 2, which was cut off") == 1


def test_earlier_records_are_moved_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.jsonl"
    assert records.moved_aside(path) is None
    for number in (1, 2):
        records.append(path, Record("speed", str(number)))
        aside = records.moved_aside(path)
        assert aside == tmp_path / f"runs-{number}.jsonl" and not path.exists()
        assert [record.method for record in records.read(aside)] == [str(number)]
        assert f"now in runs-{number}.jsonl" in capsys.readouterr().err
