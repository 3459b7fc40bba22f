"""The study of `check`: planted faults are what they are called, and outcomes are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import records
from benchmarks.trust import checking, faults
from benchmarks.trust.faults import FAULTS


def drawn(fault: str, z: np.ndarray) -> np.ndarray | None:
    return FAULTS[fault][0](z, np.random.default_rng(3))


def test_faults_are_planted_in_one_coordinate() -> None:
    generator = np.random.default_rng(0)
    z = generator.normal([1.0, -2.0, 0.0], [1.0, 3.0, 0.5], size=(5_000, 3))
    right = drawn("right", z)
    assert right is not None and np.array_equal(right, z[: faults.DRAWS])
    for name, mean, ratio in (
        ("shifted 0.3 sd", 0.3, 1.0),
        ("sd ratio 0.7", 0.0, 0.7),
        ("sd ratio 1.4", 0.0, 1.4),
    ):
        wrong = drawn(name, z)
        assert wrong is not None
        (k,) = np.flatnonzero((wrong != right).any(0))
        own = right[:, k]
        assert abs(wrong[:, k].mean() - own.mean()) / z[:, k].std() == pytest.approx(mean, abs=0.02)
        assert wrong[:, k].std() / own.std() == pytest.approx(ratio, rel=1e-3)
    cut = drawn("tail cut at 2 sd", z)
    assert cut is not None and len(cut) == faults.DRAWS
    white = (cut - z.mean(0)) / z.std(0)
    ends = np.abs(np.stack([white.min(0), white.max(0)]))
    assert (ends < 2.0).sum() == 1
    # Of a uniform there is nothing beyond 2 standard deviations.
    assert drawn("tail cut at 2 sd", generator.uniform(size=(5_000, 2))) is None


def test_one_mode_needs_two() -> None:
    generator = np.random.default_rng(1)
    z = generator.normal(size=(5_000, 2))
    assert drawn("one mode", z) is None
    z[:2_000, 0] += 10.0
    half = drawn("one mode", z)
    assert half is not None and half[:, 0].max() < 5.0
    field = drawn("mean field", z @ np.array([[1.0, 0.9], [0.0, 0.4]]))
    assert field is not None and abs(np.corrcoef(field.T)[0, 1]) < 0.1
    assert drawn("mean field", z[:, :1]) is None


def test_outcomes_are_counted(tmp_path: Path) -> None:
    def made(method: str, outcome: str, **more: Any) -> records.Record:
        figures = {"outcome": outcome, "reference": outcome == "confirmed", "evaluations": 10}
        record = records.Record("check", method, "pyro", "x", 0, {}, {**figures, **more})
        record.figures.setdefault("reasons", ["because"])
        return record

    found = [
        made("right", "confirmed"),
        made("right", "undecided"),
        made("prior", "refused"),
        made("prior", "no fault"),
        made("one mode", "confirmed"),
    ]
    right, prior, one, wrong = checking.rows_of(found)
    assert (right["checks"], right["confirmed"], right["undecided"]) == (2, 1, 1)
    assert prior["checks"] == 1 and prior["share refused"] == "100.0%"
    assert one["before a fit"] == "0%" and wrong["share refused"] == "50.0%"
    assert "| Pyro    | all wrong |      2 |" in checking.page_table(found)
    checking.write(found, tmp_path)
    text = (tmp_path / "check.md").read_text()
    assert "x, pyro, one mode, seed 0: confirmed (because)" in text
    assert "right, seed 0: undecided" in text and (tmp_path / "check.png").stat().st_size > 0
