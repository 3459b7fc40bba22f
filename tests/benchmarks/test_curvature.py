"""The comparison of steps and curvature with other libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import records
from benchmarks.curvature import comparison, network
from benchmarks.study import Study


def test_steps_are_compared_with_svgd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "STEPS", {"SVN, last layer": network.STEPS["SVN, last layer"]})
    comparison.steps(Study("curvature", tmp_path), "pyro", 1)
    (record,) = records.read(tmp_path / "curvature.jsonl")
    assert list(record.figures) == ["SVGD", "SVN, last layer"]
    (spent,), (own,) = (found["milliseconds"] for found in record.figures.values())
    assert record.figures["SVGD"]["ratio"] == 1.0
    assert record.figures["SVN, last layer"]["ratio"] == pytest.approx(own / spent)


def test_peers_that_are_missing_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "curvlinops", missing)
    monkeypatch.setitem(sys.modules, "laplace", missing)
    comparison.peers(Study("curvature", tmp_path), 1)
    runs = records.read(tmp_path / "curvature.jsonl")
    assert [run.method for run in runs] == ["Gauss-Newton products", "posterior precision"]
    assert all(run.failed for run in runs)
    assert "curvlinops" in capsys.readouterr().out
