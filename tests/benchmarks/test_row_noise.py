"""Variances of gradients with noise by row: their ratio, the report, each host's gradients."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import records
from benchmarks.row_noise import comparison


def test_ratio_of_variances() -> None:
    generator = np.random.default_rng(0)
    plain = generator.normal(size=(20_000, 3)) * [1.0, 2.0, 3.0] + [5.0, 0.0, -5.0]
    other = generator.normal(size=(20_000, 3))
    assert comparison.variance_ratio(plain, other) == pytest.approx(14.0 / 3.0, rel=0.05)


class Network:
    """Gradients whose variances are known."""

    def gradients(self, method: str, rows: int, draws: int) -> dict[str, np.ndarray]:
        scale = {"plain": 6.0, "flipout": 3.0, "local_reparameterization": 2.0}[method]
        one = scale * np.array([[1.0], [-1.0]])
        return {"means": one, "scales": 2.0 * one}

    def step(self, method: str, rows: int) -> Any:
        return lambda: None


def test_report_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(trained=lambda x, y, steps, seed: Network())
    monkeypatch.setattr(comparison.importlib, "import_module", lambda name: module)
    monkeypatch.setattr(
        comparison, "alternate", lambda cases, **_: dict.fromkeys(cases, np.ones(2))
    )
    arguments = argparse.Namespace(out=tmp_path, backend="both", seeds=2, steps=3, draws=4)
    assert comparison.run(arguments) == 0
    runs = records.read(tmp_path / "row-noise.jsonl")
    assert len(runs) == 2 * 2 * len(comparison.ROWS) and not any(run.failed for run in runs)
    assert runs[0].figures["flipout: means"] == 4.0
    assert runs[0].figures["local_reparameterization: scales"] == 9.0
    assert runs[0].figures["flipout: time"] == 1.0
    text = (tmp_path / "row-noise.md").read_text()
    assert all(f"| {name} " in text for name in ("numpyro", "pyro")) and "512" in text


def test_gradients_have_the_expectation_of_the_plain_one(backend: Any) -> None:
    module = importlib.import_module(f"benchmarks.row_noise.{backend.host.__name__}_network")
    network = module.trained(*comparison.data(0), 3, 0)
    plain = network.gradients(comparison.PLAIN, 32, 50)
    weights = sum(a * b for a, b in zip((8, 50, 50), (50, 50, 1), strict=True))
    for method in comparison.METHODS:
        found = network.gradients(method, 32, 50)
        for kind in ("means", "scales"):
            assert found[kind].shape == plain[kind].shape == (50, weights)
            difference = found[kind].mean(0) - plain[kind].mean(0)
            error = np.sqrt((found[kind].var(0) + plain[kind].var(0)) / 50)
            # Root mean square of standard normals, over thousands of entries.
            assert np.sqrt(np.square(difference / error).mean()) < 2.0
            assert not np.allclose(found[kind].var(0), plain[kind].var(0), rtol=0.01)
