"""The benchmark of networks: figures on known draws, comparisons, and runs on made-up rows."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy.stats import norm

from benchmarks import __main__ as command_line
from benchmarks import records
from benchmarks.bnn import chains, dropout, figures, protocol, report
from benchmarks.bnn.methods import METHODS, Method, NewtonTrainer, Setting
from benchmarks.datasets import Dataset
from benchmarks.records import Record


def _rows(number: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(number, 2))
    return x, 3.0 + 2.0 * np.maximum(x[:, 0], 0.0) + 0.1 * generator.normal(size=number)


def test_networks_are_computed_layer_by_layer() -> None:
    draws = {
        "w1": np.array([[[1.0, -1.0]], [[2.0, 0.0]]]),
        "b1": np.array([[0.0, 0.5], [1.0, 0.0]]),
        "w2": np.array([[[1.0], [3.0]], [[-1.0], [5.0]]]),
        "b2": np.array([[0.25], [0.0]]),
    }
    # At 2 the first network's units are 2 and 0, the second's 5 and 0; at -1 they are 0 and 1.5,
    # and 0 and 0.
    found = figures.network_output(draws, np.array([[2.0], [-1.0]]))
    np.testing.assert_allclose(found, [[2.25, 4.75], [-5.0, 0.0]])


def test_draws_with_a_mode_are_of_the_network_made_linear_there() -> None:
    generator = np.random.default_rng(0)
    sizes = {"w1": (3, 5), "b1": (5,), "w2": (5, 4), "b2": (4,), "w3": (4, 1), "b3": (1,)}
    mode = {name: generator.normal(size=(1, *shape)) for name, shape in sizes.items()}
    way = {name: generator.normal(size=(7, *shape)) for name, shape in sizes.items()}
    x = generator.normal(size=(20, 3))
    draws = {name: mode[name] + way[name] for name in sizes}
    found = figures.network_output(draws | {f"mode {name}": mode[name] for name in sizes}, x)
    # Over so short a way no unit changes sides, and a network is a polynomial of third degree.
    near = {name: mode[name] + 1e-6 * way[name] for name in sizes}
    at_mode = figures.network_output(mode, x)
    slope = (figures.network_output(near, x) - at_mode) / 1e-6
    np.testing.assert_allclose(found, at_mode + slope, atol=1e-3, rtol=1e-4)
    assert np.abs(found - figures.network_output(draws, x)).max() > 1.0


def test_units_are_left_out_and_others_scaled() -> None:
    generator = np.random.default_rng(0)
    network = {"w1": generator.normal(size=(2, 50)), "b1": np.ones(50)}
    network |= {"w2": generator.normal(size=(50, 1)), "b2": np.ones(1), "noise": np.array(0.5)}
    draws = dropout.masked(network, 4000, seed=0)
    np.testing.assert_array_equal(draws["w1"], np.broadcast_to(network["w1"], (4000, 2, 50)))
    np.testing.assert_array_equal(draws["noise"], 0.5)
    share = draws["w2"][..., 0] / network["w2"][:, 0]
    kept = 1.0 / (1.0 - dropout.RATE)
    assert np.all(np.isclose(share, 0.0) | np.isclose(share, kept))
    # Means of 200,000 numbers, and of 4,000, within five standard errors.
    error = kept * np.sqrt(dropout.RATE * (1.0 - dropout.RATE))
    assert share.mean() == pytest.approx(1.0, abs=5.0 * error / np.sqrt(share.size))
    assert np.abs(share.mean(axis=0) - 1.0).max() < 5.0 * error / np.sqrt(4000)
    # A unit is left out for all rows, and none at an input.
    x = generator.normal(size=(3, 2))
    hidden = np.maximum(x @ network["w1"] + 1.0, 0.0)
    expected = np.einsum("nu,su->sn", hidden * network["w2"][:, 0], share) + 1.0
    np.testing.assert_allclose(figures.network_output(draws, x), expected)


def test_the_likelihood_of_a_mixture_and_that_of_the_paper() -> None:
    mean, noise, y = np.array([[0.0, 1.0], [2.0, 1.0]]), np.array([0.5, 1.0]), np.array([1.0, 3.0])
    found = figures.regression_figures(mean, noise, y, 10.0)
    density = 0.5 * (norm.pdf(10 * y, 10 * mean[0], 5.0) + norm.pdf(10 * y, 10 * mean[1], 10.0))
    assert found["NLL"] == pytest.approx(-np.log(density).mean())
    # Means 10 and 10 with errors 0 and 20.
    assert found["RMSE"] == pytest.approx(np.sqrt(200.0))
    # The networks' variances are 100 and, bounded below, 1e-6.
    expected = 0.5 * (np.log(100.0) + np.log(1e-6) + 400.0 / 1e-6) / 2.0
    assert found["paper's NLL"] == pytest.approx(expected)
    assert found["noise"] == pytest.approx(7.5)


def test_figures_of_two_classes() -> None:
    labels = np.array([1, 0, 1, 0])
    logits = np.array([[4.0, -1.0, -0.5, 1.0], [0.0, -3.0, 0.5, 1.0]])
    found = figures.classification_figures(logits, labels)
    chance = (1.0 / (1.0 + np.exp(-logits))).mean(axis=0)
    right = np.where(labels == 1, chance, 1.0 - chance)
    assert found["NLL"] == pytest.approx(-np.log(right).mean())
    assert found["Brier"] == pytest.approx(2.0 * np.square(1.0 - right).mean())
    mean = logits.mean(axis=0)
    of_mean = np.where(labels == 1, 1.0 / (1.0 + np.exp(-mean)), 1.0 / (1.0 + np.exp(mean)))
    assert found["paper's NLL"] == pytest.approx(-np.log(of_mean).mean())
    # Of the four pairs only that of the third and the last row is the wrong way round.
    assert found["AUROC"] == pytest.approx(0.75)
    assert figures.area_under_curve(np.array([0.5, 0.5]), np.array([0, 1])) == 0.5
    assert 0.0 < found["ECE"] < 1.0


@pytest.mark.parametrize("backend", [pytest.param("numpyro", marks=pytest.mark.slow), "pyro"])
def test_a_newton_run_fits_and_is_of_the_model_that_is_described(backend: str) -> None:
    x, y = _rows(120)
    y = (y - y.mean()) / y.std()
    setting = Setting("regression", 2, 120, 40, (6,), particles=3, steps=30)
    trainer = protocol.make_trainer(backend, METHODS["SVN"], setting)
    assert isinstance(trainer, NewtonTrainer)
    trainer.start(x, y, 0, 1.0)
    engine: Any = getattr(trainer, "engine")  # noqa: B009 - the protocol has none
    assert engine.damping.adapt is False
    shapes = {name: value.shape for name, value in trainer.draws().items()}
    expected = {"w1": (3, 2, 6), "b1": (3, 6), "w2": (3, 6, 1), "b2": (3, 1), "noise": (3,)}
    assert shapes == expected
    np.testing.assert_allclose(trainer.draws()["noise"], 1.0, rtol=1e-6)
    np.testing.assert_allclose(trainer.draws()["b1"], 0.0, atol=1e-7)
    trainer.advance(30)
    draws = trainer.draws()
    error = figures.network_output(draws, x).mean(axis=0) - y
    # Noise is 0.1 of a response whose standard deviation is about 1.2.
    assert np.sqrt(np.square(error).mean()) < 0.3
    # Steps have fallen to nothing.
    trainer.advance(1)
    np.testing.assert_allclose(trainer.draws()["w1"], draws["w1"], atol=1e-6)
    slices, curvature = trainer.curvature()
    assert curvature.shape == (3, 26, 26)
    assert {name: where.stop - where.start for name, where in slices.items()} == {
        "w1": 12,
        "b1": 6,
        "w2": 6,
        "b2": 1,
        "noise": 1,
    }
    assert np.linalg.eigvalsh(curvature).min() > 0.0
    # Of the noise's logarithm: two for each row, and that of its prior.
    np.testing.assert_allclose(curvature[:, slices["noise"], slices["noise"]], 241.0, rtol=1e-4)


def _simple_rows() -> tuple[np.ndarray, np.ndarray]:
    x, y = _rows(120)
    return x, (y - y.mean()) / y.std()


@pytest.mark.parametrize("backend", [pytest.param("numpyro", marks=pytest.mark.slow), "pyro"])
def test_chains_give_draws_along_the_last_half(backend: str) -> None:
    x, y = _simple_rows()
    setting = Setting("regression", 2, 120, 40, (6,), particles=10, steps=400)
    assert chains.kept_steps(setting) == [240, 280, 320, 360, 400]
    trainer = protocol.make_trainer(backend, METHODS["SGLD"], setting)
    trainer.start(x, y, 0, 1e-6)
    before = trainer.draws()
    trainer.advance(1)
    moves = [(value - before[name]).ravel() for name, value in trainer.draws().items()]
    # So short a step is noise of twice its length in variance: 260 numbers, five standard errors.
    assert np.concatenate(moves).std() == pytest.approx(np.sqrt(2e-6 / 120), rel=5 / np.sqrt(520))
    trainer.start(x, y, 0, 0.05)
    np.testing.assert_allclose(trainer.draws()["noise"], 1.0, rtol=1e-6)
    trainer.advance(1)
    first = trainer.draws()["w1"]
    assert first.shape == (10, 2, 6)
    trainer.advance(238)
    moved = trainer.draws()["w1"]
    assert moved.shape == first.shape
    trainer.advance(1)
    kept = trainer.draws()["w1"]
    assert kept.shape == first.shape
    trainer.advance(160)
    draws = trainer.draws()
    assert draws["w1"].shape == (50, 2, 6) and draws["noise"].shape == (50,)
    np.testing.assert_array_equal(draws["w1"][:10], kept)
    # Chains go on, each by itself.
    assert np.abs(np.diff(draws["w1"].reshape(5, 10, 12), axis=0)).min() > 0.0
    assert draws["w1"][-10:].std(axis=0).min() > 0.0
    error = figures.network_output(draws, x).mean(axis=0) - y
    assert np.sqrt(np.square(error).mean()) < 0.3
    assert trainer.said() == {"skipped": 0.0}
    trainer.start(x, y, 0, 0.05)
    assert trainer.draws()["w1"].shape == first.shape


@pytest.mark.parametrize("backend", [pytest.param("numpyro", marks=pytest.mark.slow), "pyro"])
def test_networks_with_dropout_fit_and_differ(backend: str) -> None:
    x, y = _simple_rows()
    setting = Setting("regression", 2, 120, 40, (20,), steps=300)
    trainer = protocol.make_trainer(backend, METHODS["MC dropout"], setting)
    trainer.start(x, y, 0, 0.03)
    trainer.advance(300)
    draws = trainer.draws()
    assert {name: value.shape for name, value in draws.items()} == {
        "w1": (50, 2, 20),
        "b1": (50, 20),
        "w2": (50, 20, 1),
        "b2": (50, 1),
        "noise": (50,),
    }
    output = figures.network_output(draws, x)
    assert np.sqrt(np.square(output.mean(axis=0) - y).mean()) < 0.3
    assert output.std(axis=0).min() > 0.0
    # The noise takes up what comes of units that are left out, in training as in draws.
    error = np.sqrt(np.square(output - y).mean())
    assert draws["noise"][0] == pytest.approx(error, rel=0.3)


@pytest.mark.parametrize("backend", [pytest.param("numpyro", marks=pytest.mark.slow), "pyro"])
def test_a_linearised_fit_predicts_as_the_package_does(backend: str) -> None:
    x, y = _simple_rows()
    setting = Setting("regression", 2, 120, 40, (6,), steps=60)
    method = METHODS["Linearised Laplace"]
    trainer = protocol.make_trainer(backend, method, setting)
    trainer.start(x, y, 0, 0.03)
    trainer.advance(60)
    draws = trainer.draws()
    network = importlib.import_module(f"benchmarks.bnn.{backend}_network")
    package = importlib.import_module(f"{backend}_ext")
    mode = {name[5:]: value[0] for name, value in draws.items() if name.startswith("mode ")}
    values = {name: value for name, value in draws.items() if not name.startswith("mode ")}
    array = torch.tensor if backend == "pyro" else jnp.asarray
    rows = [array(part.astype(np.float32)) for part in (x, y)]
    # All rows in their order.
    model = network.program(dataclasses.replace(setting, batch=120))
    predictive = package.predictive_distribution(
        model, {name: array(value) for name, value in values.items()}, *rows, linearize=mode
    )
    expected = predictive["mean"].transpose("draw", ...).values
    np.testing.assert_allclose(figures.network_output(draws, x), expected, atol=1e-3)


def test_newton_steps_alone_have_a_curvature() -> None:
    setting = Setting("classification", 3, 10, 10, (2,), particles=2)
    for backend, (name, method) in itertools.product(("numpyro", "pyro"), METHODS.items()):
        trainer = protocol.make_trainer(backend, method, setting)
        assert isinstance(trainer, NewtonTrainer) == name.startswith("SVN"), name


def test_weights_start_from_their_prior() -> None:
    setting = Setting("classification", 40, 10, 10, (50,), particles=20)
    for backend in ("numpyro", "pyro"):
        trainer = protocol.make_trainer(backend, METHODS["Ensemble"], setting)
        trainer.start(np.zeros((10, 40)), np.zeros(10), 0, 0.01)
        w1 = trainer.draws()["w1"]
        # 40,000 numbers of variance 2 / 40, four standard errors of their variance.
        assert w1.var() == pytest.approx(2.0 / 40.0, rel=4.0 * np.sqrt(2.0 / w1.size)), backend


def test_epochs_of_the_curves() -> None:
    found = protocol.points(500)
    assert found[:21] == [*range(1, 21), 32] and found[-1] == 500 and len(found) <= 60
    assert protocol.points(7) == [1, 2, 3, 4, 5, 6, 7]
    assert protocol.points(100, few=True) == [25, 50, 75, 100]


def test_validation_rows_are_no_training_rows() -> None:
    x, y = np.arange(40.0)[:, None], np.arange(40.0)
    split = (np.arange(30), np.arange(30, 40))
    rows = protocol.split_rows(Dataset("some", "regression", x, y, "", (split,)), 0)
    location, scale = y[:30].mean(), rows.scale
    parts = [rows.y, rows.parts["validation"][1], rows.parts["test"][1]]
    assert [len(part) for part in parts] == [24, 6, 10]
    # All in the scale of the rows that are fitted: equal rows would be equal.
    assert len(np.unique(np.concatenate(parts).round(6))) == 40
    np.testing.assert_allclose(rows.y.mean(), 0.0, atol=1e-12)
    np.testing.assert_allclose(np.ptp(rows.parts["test"][1]) * scale, 9.0)
    assert location == pytest.approx(14.5)


def _record(method: str, split: int, test: list[float], epochs: list[int]) -> Record:
    curves: dict[str, list[Any]] = {"epoch": epochs, "test NLL": test, "validation NLL": test}
    curves |= {"seconds": [float(epoch) for epoch in epochs]}
    curves["processor seconds"] = curves["seconds"]
    ends = {name: values[-1] for name, values in curves.items()}
    ends |= {f"test {name}": 1.0 for name in ("RMSE", "paper's NLL", "noise")}
    settings = {"split": split, "particles": 5, "candidate": 1.0, "epochs": epochs[-1]}
    found: dict[str, Any] = {
        "curves": curves,
        "at last": ends,
        "at best": ends,
        "compiling seconds": 1.0,
    }
    return Record("bnn", method, "numpyro", "yacht", split, settings, found)


def test_who_is_there_first_and_who_is_best() -> None:
    slow = [[4.0, 2.0, 1.0, 1.25], [4.0, 2.0, 1.25, 0.5]]
    runs = [_record("SVGD", split, test, [1, 20, 60, 80]) for split, test in enumerate(slow)]
    fast = [[3.0, 1.2, 0.8], [3.0, 1.4, 1.0]]
    runs += [_record("SVN", split, test, [1, 2, 4]) for split, test in enumerate(fast)]
    groups = report.grouped(runs)
    (row,) = report.speed_rows(groups)
    # SVGD ends at 0.875, where SVN's mean is not: its least is 0.9.
    assert row["reached at"] == "never" and row["SVGD first there"] == 80
    runs[0].figures["at last"]["test NLL"] = 1.5
    (row,) = report.speed_rows(report.grouped(runs))
    assert row["reached at"] == "4" and row["SVGD first there"] == 80
    assert row["of processor seconds"] == pytest.approx(20.0)
    (rank,) = report.rank_rows(report.grouped(runs))
    # Differences of SVGD to SVN: 0.7 and -0.5, a mean of 0.1 with an error of 0.6.
    assert rank["best"] == "SVN" and rank["tied"] == "SVGD"
    for run in runs:
        run.figures["validation"] = 1.0
    assert "0.9 ± 0.1 " in report.page_table(runs)
    assert "| `SVN`, `SVGD` |" in report.best_table(runs)
    assert not report.tied(np.array([0.2])) and report.tied(np.array([0.0]))


def test_validation_chooses_among_what_is_recorded() -> None:
    def run(split: int, candidate: float, validation: float, epochs: int = 4) -> Record:
        made = _record("SVGD", split, [1.0], [epochs])
        made.settings["candidate"] = candidate
        made.figures["validation"] = validation
        return made

    old = run(0, 0.1, -9.0, epochs=2)
    runs = [old, run(0, 0.1, 2.0), run(0, 0.3, 1.0), run(1, 0.3, 3.0), run(1, 0.1, 0.0)]
    failed = run(2, 0.3, 0.0)
    failed.error = "Error: some"
    found = report.chosen([*runs, failed])
    assert found == [failed, runs[2], runs[3]]


def test_the_whole_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _rows(40)
    order = np.arange(40)
    splits = tuple((order[:30], order[30:]) for _ in range(20))
    data = Dataset("yacht", "regression", x, y, "", splits)
    monkeypatch.setattr(protocol, "load", lambda name: data)
    asked: dict[int, tuple[list[str], range]] = {}

    def compare(
        book: Any, data: Dataset, backend: str, methods: dict[str, Method], budget: protocol.Budget
    ) -> list[Record]:
        asked[budget.particles] = list(methods), budget.splits_for(data)
        runs = [_record(name, 0, [1.0], [1]) for name in methods]
        for run in runs:
            run.settings["particles"], run.figures["validation"] = budget.particles, 1.0
        records.append(book.path, *runs)
        return runs

    monkeypatch.setattr(protocol, "compare", compare)
    options = ["--sets", "yacht", "--full", "--out", str(tmp_path)]
    assert command_line.main(["bnn", *options]) == 0
    assert list(asked) == [5, 10, 20]
    assert asked[5] == (list(METHODS), range(20))
    without = ["LaplaceGGN", "LL-LaplaceGGN", "Linearised Laplace", "MFVI", "MC dropout"]
    assert asked[20] == ([name for name in METHODS if name not in without], range(20))
    rows = [line.split("|")[3:5] for line in (tmp_path / "bnn.md").read_text().splitlines()[6:]]
    found = [(name.strip(), int(number)) for name, number in rows]
    assert found == [(name, number) for number in (5, 10, 20) for name in asked[number][0]]
    # What is named stands.
    asked.clear()
    out = str(tmp_path / "named")
    named = ["--methods", "SVGD", "--splits", "2", "--particles", "7", "--out", out]
    assert command_line.main(["bnn", "--sets", "yacht", "--full", *named]) == 0
    assert asked == {7: (["SVGD"], range(1, 3))}
    # Fewer than there are begin with the second.
    assert protocol.Budget(splits=3).splits_for(data) == range(1, 4)


def test_runs_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = _rows(160)
    folder, out = tmp_path / "data", tmp_path / "out"
    folder.mkdir()
    order = np.random.default_rng(1).permutation(160)[None]
    np.savez(folder / "yacht.npz", X=x, y=y, split_train=order[:, :140], split_test=order[:, 140:])
    monkeypatch.setenv("PPL_EXT_DATA", str(folder))
    monkeypatch.setitem(METHODS, "SVN", Method("SVN", "Newton", 0.5, {"curvature": "diag"}, "RBF"))
    options = ["--sets", "yacht", "energy", "--methods", "SVGD", "SVN", "--splits", "1"]
    options += ["--epochs", "4", "--rates", "0.01", "--dampings", "3"]
    # Pyro has nothing to compile.
    options += ["--backend", "pyro"]
    assert command_line.main(["bnn", *options, "--out", str(out)]) == 0
    assert "energy" in capsys.readouterr().out
    runs = records.read(out / "bnn.jsonl")
    assert [run.method for run in runs] == ["SVGD", "SVN"]
    for run in runs:
        assert not run.failed, run.error
        epochs = 4 if run.method == "SVGD" else 2
        assert run.figures["curves"]["epoch"] == list(range(1, epochs + 1))
        assert np.isfinite(run.figures["at best"]["test NLL"])
    text = (out / "bnn.md").read_text()
    assert "paper's NLL" in text and (out / "bnn.png").stat().st_size > 0
    # What is recorded is not run again.
    monkeypatch.setattr(importlib.import_module("benchmarks.bnn.protocol"), "follow", None)
    assert command_line.main(["bnn", *options, "--resume", "--out", str(out)]) == 0
    assert len(records.read(out / "bnn.jsonl")) == 2
