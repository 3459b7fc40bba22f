"""The regression benchmark: its networks, the choice of the noise, and a run on made-up rows."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as command_line
from benchmarks import datasets, records
from benchmarks.datasets import Split
from benchmarks.regression import protocol
from benchmarks.variance_reduction.methods import Method, Schedule


def _rows(number: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(number, 2))
    return x, 3.0 + 2.0 * np.maximum(x[:, 0], 0.0) + 0.1 * generator.normal(size=number)


@pytest.mark.parametrize("backend", ["numpyro", "pyro"])
def test_both_networks_are_the_same_model(backend: str) -> None:
    x, y = _rows(30)
    schedule = Schedule(30, 10, 8, 3, falling_over=8)
    module = importlib.import_module(f"benchmarks.regression.{backend}_network")
    trainer = module.Trainer((x, y), 5, schedule, Method(reduced=True, reset=True), 1e-3, 0)
    shapes = {name: value.shape for name, value in trainer.draws().items()}
    expected = {"w1": (3, 2, 5), "b1": (3, 5), "w2": (3, 5), "b2": (3,), "noise": (3,)}
    assert {name: shapes[name] for name in expected} == expected
    np.testing.assert_allclose(trainer.draws()["noise"], 1.0, rtol=1e-6)
    np.testing.assert_allclose(trainer.draws()["b1"], 0.0, atol=1e-7)
    trainer.advance(8)
    moved = trainer.draws()
    # The step size has fallen to nothing, and stays there where the optimizer starts anew.
    trainer.advance(1)
    np.testing.assert_allclose(trainer.draws()["w1"], moved["w1"], atol=1e-6)
    assert np.abs(moved["b1"]).max() > 1e-3


def test_the_best_factor_of_the_noise_is_that_of_the_residuals() -> None:
    x, y = _rows(2000)
    exact = {
        "w1": np.eye(2)[None, :, :1],
        "b1": np.zeros((1, 1)),
        "w2": np.full((1, 1), 2.0),
        "b2": np.array([3.0]),
        "noise": np.array([0.05]),
    }
    split = Split(x, y, x, y)
    plain, tuned, factor = protocol.best_noise(exact, split)
    assert factor == pytest.approx(2.0, rel=0.06) and tuned > plain
    assert tuned == pytest.approx(-np.log(0.1 * np.sqrt(2 * np.pi)) - 0.5, abs=0.05)


def test_the_leaked_set_has_the_other_response_as_a_feature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = _rows(20)
    np.savez(tmp_path / "energy.npz", X=x, y=y, y_cooling=y + 1.0)
    monkeypatch.setenv("PPL_EXT_DATA", str(tmp_path))
    leaked = protocol.load("energy_leaked")
    np.testing.assert_array_equal(leaked.x[:, -1], protocol.load("energy").y)
    np.testing.assert_array_equal(leaked.y, y + 1.0)
    with pytest.raises(datasets.MissingDataError, match="expected an array 'other'"):
        datasets.external_array("energy", "other")


@pytest.mark.parametrize("backend", [pytest.param("numpyro", marks=pytest.mark.slow), "pyro"])
def test_a_run(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    x, y = _rows(300)
    folder, out = tmp_path / "data", tmp_path / "out"
    folder.mkdir()
    order = np.random.default_rng(1).permutation(300)[None]
    splits = {"split_train": order[:, :240], "split_test": order[:, 240:]}
    np.savez(folder / "yacht.npz", X=x, y=y, **splits)
    monkeypatch.setenv("PPL_EXT_DATA", str(folder))
    monkeypatch.setattr(protocol, "CHECKPOINTS", 2)
    monkeypatch.setattr(protocol, "FRESH_BATCHES", 5)
    options = ["--sets", "yacht", "boston", "--methods", "SVGD-VR", "--splits", "1"]
    options += ["--rates", "0.03", "--steps", "192"]
    status = command_line.main(["regression", *options, "--backend", backend, "--out", str(out)])
    assert status == 0
    assert "boston" in capsys.readouterr().out
    runs = records.read(out / "regression.jsonl")
    assert [run.settings["split"] for run in runs] == ["published 0"]
    for run in runs:
        assert not run.failed, run.error
        # A constant prediction has an error of 1.2, the noise is 0.1.
        assert run.figures["RMSE"][-1] < 0.4, run.figures
        assert 0.0 < run.figures["variance ratio"][-1] < 0.5
    text = (out / "regression.md").read_text()
    assert "variance ratio" in text and "SVGD-VR" in text
    assert (out / "regression.png").stat().st_size > 0
