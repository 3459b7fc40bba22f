"""The logistic benchmark: costs, controls, and a run of both protocols on made-up rows."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks import __main__ as command_line
from benchmarks import records
from benchmarks.logistic import protocol
from benchmarks.logistic.protocol import judge, make_trainer
from benchmarks.variance_reduction.methods import METHODS
from benchmarks.variance_reduction.numpyro_trainer import reset_every


def test_equal_budget_takes_the_gradients_of_variance_reduction() -> None:
    rows, batch = 32_561, 128
    schedule = protocol.schedule_of(rows)
    reduced, control = (
        schedule.gradients_per_step(METHODS[name]) for name in ("SVGD-VR", "SVGD, equal gradients")
    )
    # A cycle of T steps costs N + 2 T B gradients.
    assert reduced == pytest.approx((rows + 2 * 128 * batch) / (128 * rows))
    steps = {
        name: protocol.steps_of(METHODS[name], rows, 20)
        for name in ("SVGD", "SVGD-VR", "SVGD, equal gradients")
    }
    assert steps["SVGD"] == steps["SVGD-VR"]
    spent = steps["SVGD-VR"] * reduced
    equal = steps["SVGD, equal gradients"] * control
    assert equal == pytest.approx(spent, rel=1e-2)


def test_judge_by_hand() -> None:
    weights = np.array([[0.0], [2.0]])
    x, y = np.array([[1.0], [-1.0], [3.0]]), np.array([1, 0, 0])
    chances = 0.5 * (0.5 + 1 / (1 + np.exp(-2 * x[:, 0])))
    figures = judge(weights, x, y)
    assert figures["accuracy"] == pytest.approx(200 / 3)
    expected = np.log([chances[0], 1 - chances[1], 1 - chances[2]]).mean()
    assert figures["log likelihood"] == pytest.approx(expected)


def test_an_optimizer_that_starts_anew() -> None:
    inner = optax.rmsprop(0.1, decay=0.9)
    optimizer, params = reset_every(3, inner), jnp.array([1.0, -2.0])
    state, reference = optimizer.init(params), inner.init(params)
    for step in range(7):
        grads = jnp.array([0.5 + step, 1.0])
        if step % 3 == 0:
            reference = inner.init(params)
        expected, reference = inner.update(grads, reference, params)
        updates, state = optimizer.update(grads, state, params)
        np.testing.assert_allclose(updates, expected, rtol=1e-6)


@pytest.mark.parametrize("backend", ["numpyro", "pyro"])
def test_variance_falls_with_the_distance_to_the_anchor(backend: str) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(400, 3))
    y = (x[:, 0] > 0).astype(float)
    # The first step sets the anchor where the particles start; one small step later they have
    # hardly moved, and a hundred large ones later they have.
    ratios = {}
    for rate, steps in ((1e-5, 1), (0.05, 100)):
        trainer = make_trainer(backend, x, y, METHODS["SVGD-VR"], rate, 0)
        trainer.advance(steps)
        ratios[steps] = trainer.variance_ratio(20)
    assert ratios[1] < 1e-3 < 0.1 < ratios[100]


@pytest.mark.parametrize("backend", [pytest.param("numpyro", marks=pytest.mark.slow), "pyro"])
def test_both_protocols(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(700, 2))
    y = (x @ [3.0, -1.0] + 0.3 * generator.normal(size=700) > 0).astype(np.int64)
    folder = tmp_path / "data"
    folder.mkdir()
    np.savez(folder / "a9a.npz", X=x[:500], y=y[:500], X_test=x[500:], y_test=y[500:])
    monkeypatch.setenv("PPL_EXT_DATA", str(folder))
    monkeypatch.setattr(protocol, "RATES", (0.1, 0.1))
    monkeypatch.setattr(protocol, "NUTS_DRAWS", 40)
    monkeypatch.setattr(protocol, "CHECKPOINTS", 2)
    few = {name: METHODS[name] for name in ("SVGD, reset", "SVGD, equal gradients", "SVGD-VR")}
    if backend == "numpyro":  # of which each compiles
        del few["SVGD, reset"]
    monkeypatch.setattr(protocol, "METHODS", few)
    monkeypatch.setattr(protocol, "ONLINE", ("SVGD-VR",))
    out = tmp_path / "out"
    options = ["--seeds", "1", "--epochs", "30", "--online-rows", "60", "--out", str(out)]
    options += ["--backend", backend, *(["--reference"] if backend == "numpyro" else [])]
    assert command_line.main(["logistic", "--sets", "a9a", "w8a", *options]) == 0
    assert "w8a" in capsys.readouterr().out
    runs = records.read(out / "logistic.jsonl")
    assert not [run.error for run in runs if run.failed]
    reference = [run for run in runs if run.method == "NUTS"]
    assert [run.model for run in reference] == (["a9a"] if backend == "numpyro" else [])
    assert all(run.figures["accuracy"][-1] > 90 for run in reference)
    tested = [run for run in runs if run.settings["protocol"] == "test" and run.method != "NUTS"]
    assert [run.method for run in tested] == list(few)
    assert all(run.figures["accuracy"][-1] > 90 for run in tested), [
        (r.method, r.figures) for r in tested
    ]
    spent = {run.method: run.figures["gradients"][-1] for run in tested}
    assert spent["SVGD, equal gradients"] == pytest.approx(spent["SVGD-VR"], rel=0.01)
    online = [run for run in runs if run.settings["protocol"] == "online"]
    assert [run.method for run in online] == list(protocol.ONLINE)
    assert all(run.figures["accuracy"][-1] > 75 for run in online), [
        (r.method, r.figures) for r in online
    ]
    assert "online" in (out / "logistic.md").read_text()
    assert (out / "logistic.png").stat().st_size > 0
