"""Guides without a density against exact draws: what is compared, the report, both packages."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import records
from benchmarks.implicit import comparison
from benchmarks.implicit.fits import fit, flat
from ppl_ext.implicit.samplers import PushForward


def test_draws_are_compared_with_exact_ones() -> None:
    exact = np.random.default_rng(0).normal(size=(4000, 2))
    same = comparison.compared(np.random.default_rng(1).normal(size=(4000, 2)), exact)
    assert same["worst statistic"] < comparison.NOISE
    assert same["ratios of deviations"] == pytest.approx([1.0, 1.0], abs=0.05)
    assert same["share on the left"] == pytest.approx(0.5, abs=0.03)
    narrow = comparison.compared(exact * [0.5, 1.0], exact)
    assert narrow["statistics"][0] > 0.15 and narrow["statistics"][1] == 0.0
    assert narrow["ratios of deviations"] == pytest.approx([0.5, 1.0])
    assert narrow["statistic of the radius"] > 0.1


def test_report_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fitted(backend: str, problem: Any, sampler: Any, start: Any, steps: int, *_: Any) -> Any:
        if backend == "pyro" and type(sampler) is PushForward:
            raise FloatingPointError("far off")
        return flat(problem.draws(comparison.DRAWS, seed=3), 2)

    monkeypatch.setattr(comparison, "fit", fitted)
    arguments = argparse.Namespace(out=tmp_path, backend="both", seeds=1, small=False)
    assert comparison.run(arguments) == 0
    found = records.read(tmp_path / "implicit.jsonl")
    assert len(found) == 2 * len(comparison.CASES) and sum(run.failed for run in found) == 3
    # Exact draws are right everywhere, and the left of the two modes has its share.
    text = comparison.page_table(found)
    assert text.count("**") == 2 * sum(not run.failed for run in found)
    assert "| failed " in text
    assert found[0].figures["share on the left"] == pytest.approx(0.3, abs=0.03)
    assert (tmp_path / "implicit.png").stat().st_size > 10_000


def test_both_packages_fit(backend: Any) -> None:
    problem = comparison.PROBLEMS["banana"]
    name = backend.host.__name__
    draws = fit(name, problem, PushForward((4,)), "host", 2, 0, 20)
    assert draws.shape == (20, 2) and np.isfinite(draws).all()
