"""The comparison of steps and curvature with other libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import records
from benchmarks.curvature import comparison, network


def test_steps_are_compared_with_svgd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "STEPS", {"SVN, last layer": network.STEPS["SVN, last layer"]})
    rows = comparison.steps("pyro", 1, tmp_path)
    assert [row["case"] for row in rows] == ["SVGD", "SVN, last layer"]
    assert rows[0]["ratio"] == 1.0 and rows[0]["goal"] is None and rows[1]["goal"] == 1.5
    (record,) = records.read(tmp_path / "curvature.jsonl")
    assert record.figures["SVN, last layer"]["ratio"] == rows[1]["ratio"]


def test_peers_that_are_missing_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "curvlinops", missing)
    monkeypatch.setitem(sys.modules, "laplace", missing)
    assert comparison.peers(1, tmp_path) == []
    runs = records.read(tmp_path / "curvature.jsonl")
    assert [run.method for run in runs] == ["Gauss-Newton products", "posterior precision"]
    assert all(run.failed for run in runs)
    assert "curvlinops cannot be imported" in capsys.readouterr().out
