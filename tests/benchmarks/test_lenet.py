"""The LeNet experiment: figures against scikit-learn, its trainers, and the table of records."""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.infer
import pyro.infer
import pytest
import sklearn.metrics
import torch

from benchmarks import __main__ as command_line
from benchmarks import datasets, records
from benchmarks.images import lenet, metrics, numpyro_lenet, pyro_lenet
from benchmarks.images.lenet import METHODS, Plan

PLAN = Plan(steps=4, batch_size=8, particles=2, curvature_every=2, newton_share=0.5)


def make_images(number: int = 60) -> datasets.Images:
    """Images of noise, bright in one of four quarters."""
    generator = np.random.default_rng(0)
    labels = np.arange(number) % 4
    pixels = generator.integers(0, 60, (number, 28, 28))
    for image, label in zip(pixels, labels, strict=True):
        row, column = 14 * (label // 2), 14 * (label % 2)
        image[row : row + 14, column : column + 14] += 180
    half = number * 2 // 3
    x, y = pixels.astype(np.uint8), labels.astype(np.int64)
    return datasets.Images("tiny", x[:half], y[:half], x[half:], y[half:], source="made up")


# -- metrics ---------------------------------------------------------------------------------------


def test_figures_agree_with_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(3, 200, 4)).round(1)  # rounded: with ties
    labels = generator.integers(0, 4, 200)
    found = metrics.classification(logits, labels)
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    mixture = chances.mean(0)
    expected = {
        "accuracy": sklearn.metrics.accuracy_score(labels, mixture.argmax(1)),
        "NLL": sklearn.metrics.log_loss(labels, mixture),
        "AUROC": sklearn.metrics.roc_auc_score(labels, mixture, multi_class="ovr"),
        "Brier": np.mean([((mixture[i] - np.eye(4)[labels[i]]) ** 2).sum() for i in range(200)]),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value), name
    mean = np.exp(logits.mean(0))
    mean = mean / mean.sum(1, keepdims=True)
    assert found["NLL of mean logits"] == pytest.approx(sklearn.metrics.log_loss(labels, mean))
    one_class = metrics.area_under_roc(mixture, np.zeros(200, int))
    assert math.isnan(one_class)


def test_reliability_sums_up_to_the_calibration_error() -> None:
    generator = np.random.default_rng(1)
    probabilities = generator.dirichlet(np.ones(3), size=100)
    labels = generator.integers(0, 3, 100)
    found = metrics.reliability(probabilities, labels, bins=10)
    rows = np.array(found["rows"])
    gaps = np.abs(np.array(found["accuracy"]) - np.array(found["confidence"]))
    assert rows.sum() == 100
    assert rows[0] == 0 and math.isnan(found["accuracy"][0])
    weighted = np.nansum(rows * gaps) / 100
    assert weighted == pytest.approx(metrics.calibration_error(probabilities, labels, bins=10))


# -- training --------------------------------------------------------------------------------------


def test_training_and_validation_images_are_apart_and_scaled() -> None:
    images = make_images()
    problem = lenet.make_problem(images, 30, 10, seed=0)
    together = np.concatenate([problem.x_train, problem.x_validation])
    assert len(np.unique(together, axis=0)) == 40
    assert problem.x_train.mean() == pytest.approx(0.0, abs=1e-5)
    assert problem.x_train.std() == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(ValueError, match="at most 40 images"):
        lenet.make_problem(images, 31, 10, seed=0)


def make_weights() -> dict[str, np.ndarray]:
    """Weights by the names and shapes of NumPyro, of two particles."""
    generator = np.random.default_rng(0)
    shapes = {
        "convolution1": (25, 6),
        "convolution2": (150, 16),
        "dense1": (400, 120),
        "dense2": (120, 84),
        "output": (84, 10),
    }
    return {
        f"{name}.{part}": generator.normal(size=(2, *size)).astype(np.float32) * shape[0] ** -0.5
        for name, shape in shapes.items()
        for part, size in (("kernel", shape), ("bias", shape[1:]))
    }


def as_in_pyro(name: str, value: np.ndarray) -> torch.Tensor:
    """One site's values with torch's order of axes; flattened images have channels first."""
    if name == "dense1.kernel":
        value = value.reshape(2, 5, 5, 16, 120).transpose(0, 3, 1, 2, 4).reshape(2, 400, 120)
    if name.startswith("convolution") and "kernel" in name:
        value = value.reshape(2, 5, 5, -1, value.shape[-1]).transpose(0, 4, 3, 1, 2)
    elif "kernel" in name:
        value = value.swapaxes(1, 2)
    return torch.tensor(value.copy())


def test_networks_are_the_same_on_both_backends() -> None:
    weights = make_weights()
    assert sum(value[0].size for value in weights.values()) == lenet.NUM_WEIGHTS
    x = np.random.default_rng(1).normal(size=(3, 28, 28)).astype(np.float32)
    ours = {f"network/{name}": jnp.asarray(value) for name, value in weights.items()}
    predictive = numpyro.infer.Predictive(
        numpyro_lenet.program(8, 4), ours, return_sites=["prediction"], parallel=True
    )
    found = jax.jit(predictive)(jax.random.key(0), jnp.asarray(x))["prediction"]
    theirs = {
        name.replace("kernel", "weight"): as_in_pyro(name, value) for name, value in weights.items()
    }
    other = pyro.infer.Predictive(
        pyro_lenet.LeNet(8, 4), posterior_samples=theirs, return_sites=["prediction"]
    )
    expected = other(torch.tensor(x))["prediction"].detach().numpy().reshape(2, 3, 10)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    "backend", [pytest.param(numpyro_lenet, marks=pytest.mark.slow), pyro_lenet]
)
def test_networks_start_by_the_fan_in(backend: Any) -> None:
    problem = lenet.make_problem(make_images(), 32, 8, seed=0)
    trainer = backend.Trainer(
        METHODS["ensemble"], problem.x_train, problem.y_train, PLAN, 1e-3, seed=0
    )
    assert trainer.num_weights == lenet.NUM_WEIGHTS
    before = trainer.predict(problem.x_test)
    assert before.shape == (2, 20, 10)
    dense = next(
        np.asarray(value)
        for name, value in trainer._draws().items()
        if "dense1" in name and "bias" not in name
    )
    assert dense.std() == pytest.approx(400**-0.5, rel=0.02)
    trainer.advance(2)
    assert not np.allclose(before, trainer.predict(problem.x_test))
    # The kept particles are those of the start.
    np.testing.assert_array_equal(before, trainer.predict_kept(problem.x_test))


class Countdown:
    """A trainer whose logits for the right class grow and then fall."""

    def __init__(self, labels: dict[int, np.ndarray]) -> None:
        self.labels, self.num_weights = labels, 1
        self.steps = self.kept = 0

    def advance(self, steps: int) -> dict[str, np.ndarray]:
        self.steps += steps
        return {"damping": np.full(steps, float(self.steps))}

    def _logits(self, x: np.ndarray, steps: int) -> np.ndarray:
        sharpness = 3.0 - abs(steps - 6)
        return sharpness * np.eye(4)[self.labels[len(x)]][None].repeat(2, axis=0)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self._logits(x, self.steps)

    def predict_kept(self, x: np.ndarray) -> np.ndarray:
        return self._logits(x, self.kept)

    def keep(self) -> None:
        self.kept = self.steps


def test_figures_are_those_of_the_best_epoch_in_validation() -> None:
    problem = lenet.make_problem(make_images(), 30, 10, seed=0)
    trainer = Countdown({10: problem.y_validation, 20: problem.y_test})
    plan = dataclasses.replace(PLAN, steps=12)
    found = lenet.follow(trainer, problem, plan, epochs=4, clock=iter(range(99)).__next__)
    assert trainer.steps == 12
    assert found["best epoch"] == 2
    assert found["NLL"] == pytest.approx(-math.log(math.exp(3) / (math.exp(3) + 3)))
    assert found["last"]["NLL"] == pytest.approx(-math.log(math.exp(-3) / (math.exp(-3) + 3)))
    assert found["seconds at epochs"] == [1, 2, 3, 4]
    assert found["tracks"]["damping"] == [3, 6, 9, 12]


# -- the command -----------------------------------------------------------------------------------


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole run with Pyro, whose steps need no compilation, with a method that fails."""
    images = make_images()
    np.savez(
        tmp_path / "tiny.npz",
        X_train=images.x_train,
        y_train=images.y_train,
        X_test=images.x_test,
        y_test=images.y_test,
    )
    monkeypatch.setenv("PPL_EXT_DATA", str(tmp_path))
    settings = lenet.Settings(32, 8, 2, 1, 8, 2, 2, rates=(1e-3,))
    monkeypatch.setattr(lenet, "REDUCED", settings)
    engine: Any = "unknown"
    broken = dataclasses.replace(METHODS["WGD"], engine=engine)
    monkeypatch.setitem(METHODS, "WGD", broken)
    command = ["images", "--experiment", "lenet", "--dataset", "tiny", "--backend", "pyro"]
    command += ["--methods", "ensemble", "WGD", "SVN adaptive", "LL-SVN", "--out", str(tmp_path)]
    assert command_line.main(command) == 0
    out = tmp_path / "lenet"
    found = records.read(out / "records.jsonl")
    names = [(record.method, record.failed) for record in found]
    expected = {"ensemble": False, "WGD": True, "SVN adaptive": False, "LL-SVN": False}
    assert names == list(expected.items())
    for record in found:
        if not record.failed:
            assert set(lenet.FIGURES) <= set(record.figures)
            assert len(record.figures["validation losses"]) == record.settings["epochs"]
    table = (out / "table.md").read_text()
    assert sum("| Pyro " in line for line in table.splitlines()) == 4


def test_missing_images_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PPL_EXT_DATA", raising=False)
    arguments = argparse.Namespace(step_cost=False, full=False, dataset="tiny")
    assert lenet.main(arguments) == 1
    assert "tiny.npz" in capsys.readouterr().err
