"""The commands horseshoe and linearized: data, starts, reports and a short run of each."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from benchmarks import records
from benchmarks.networks import horseshoe, linearized
from benchmarks.records import Record


def test_the_response_depends_on_the_planted_inputs_alone() -> None:
    x, y, relevant = horseshoe.data(3, 500)
    assert len(set(relevant.tolist())) == horseshoe.RELEVANT
    signal = np.sin(x[:, relevant.reshape(-1, 2)].sum(-1)).sum(-1)
    assert (y - signal).std() == pytest.approx(horseshoe.NOISE, rel=0.1)


def test_every_input_is_open_at_the_start() -> None:
    layers = {"net.0.weight": True, "net.2.weight": True, "net.4.weight": True}
    values = horseshoe.start(0, 0.01, layers)
    assert values["net.0.weight.unscaled"].shape == (50, 100)
    np.testing.assert_allclose(values["net.0.weight.local"] * 0.01, horseshoe.START_SCALE)


def figures(gain: float) -> dict[str, float]:
    found = {}
    for name in linearized.PREDICTIONS:
        nll = 1.0 - gain if name == "linearised" else 1.0 + 0.5 * (name == "all weights")
        found |= {f"{name}: NLL": nll, f"{name}: calibration error": 0.1}
    return found


def test_the_table_and_the_picture_have_runs_that_failed(tmp_path: Path) -> None:
    runs = [
        Record("linearized", "LaplaceGGN", "pyro", name, 0, {}, figures(gain))
        for name, gain in {"yacht": 0.2, "energy": -0.1}.items()
    ]
    runs.append(Record("linearized", "LaplaceGGN", "pyro", "naval", 0, {}, error="E: no"))
    assert "| failed" in linearized.page_table(runs)
    split = Record("linearized", "LaplaceGGN", "pyro", "yacht", 1, {}, figures(0.4))
    yacht = next(
        line for line in linearized.page_table([*runs, split]).splitlines() if "ya" in line
    )
    # A mean over two splits, and not a figure of each package.
    assert "0.700" in yacht and "/" not in yacht
    linearized.plot(runs, tmp_path / "linearized.png")
    assert (tmp_path / "linearized.png").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpyro", "pyro"])
def test_a_short_run_finds_the_inputs(backend: str, tmp_path: Path) -> None:
    """Fewer steps and rows than the command's: the planted inputs have the largest scales."""
    arguments = argparse.Namespace(
        out=tmp_path, seeds=1, rows=1000, steps=3000, backend=backend, resume=False,
        retry_failed=False,
    )  # fmt: skip
    assert horseshoe.main(arguments) == 0
    (run,) = records.read(tmp_path / "horseshoe.jsonl")
    order = np.argsort(-np.asarray(run.figures["scales"]))
    assert np.isin(order[:10], run.figures["relevant"]).sum() >= 9
    assert run.figures["false"] <= 1
