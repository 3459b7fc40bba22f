"""The image benchmark: calibration by hand, early stopping, both trainers, and a small run."""

from __future__ import annotations

import dataclasses
import math
import sys
import urllib.error
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets

from benchmarks import __main__ as command_line
from benchmarks import datasets, records
from benchmarks.images import (
    metrics,
    numpyro_networks,
    pyro_networks,
    small_data,
    training,
)
from benchmarks.images.training import ADVI, OURS, OURS_GRADIENT, POINT, Schedule
from benchmarks.records import Record

BACKENDS = [numpyro_networks, pyro_networks]
TINY = dataclasses.replace(
    small_data.REDUCED,
    percent=(20.0,),
    hidden=(12,),
    least_steps=40,
    most_steps=40,
    batch_size=32,
    evaluations=2,
    draws=3,
    temperature=(1e-6,),
    validation_rows=100,
    seeds=2,
    rates=(1e-2, 1e-4),
)


def make_images(number: int = 300, side: int = 4, seed: int = 0) -> datasets.Images:
    """Images of noise with one bright row or column for each of eight classes."""
    generator = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(8), generator.integers(0, 8, number - 8)])
    pixels = generator.integers(0, 60, (number, side, side))
    for image, label in zip(pixels, labels, strict=True):
        chosen = image if label < side else image.T
        chosen[label % side] += 180
    half = number * 2 // 3
    x, y = pixels.astype(np.uint8), labels.astype(np.int64)
    return datasets.Images("tiny", x[:half], y[:half], x[half:], y[half:], source="made up")


# -- metrics ---------------------------------------------------------------------------------------


def test_figures_of_four_predictions_by_hand() -> None:
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.35, 0.65], [0.4, 0.6]])
    labels = np.array([0, 1, 1, 1])
    assert metrics.error(probabilities, labels) == pytest.approx(1 / 4)
    expected = -np.log([0.9, 0.2, 0.65, 0.6]).mean()
    assert metrics.negative_log_likelihood(probabilities, labels) == pytest.approx(expected)
    # Five bins: (0.8, 1] holds 0.9, right; (0.6, 0.8] holds 0.8, wrong, and 0.65, right;
    # (0.4, 0.6] holds 0.6, right.
    gaps = [1 / 4 * (1 - 0.9), 2 / 4 * abs(1 / 2 - (0.8 + 0.65) / 2), 1 / 4 * (1 - 0.6)]
    found = metrics.calibration_error(probabilities, labels, bins=5)
    assert found == pytest.approx(sum(gaps))


def test_calibration_errors_by_a_slow_loop() -> None:
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.ones(4), size=200)
    labels = generator.integers(0, 4, 200)

    def slow(pairs: list[tuple[float, bool]], bins: int) -> float:
        total = 0.0
        for m in range(bins):
            inside = [pair for pair in pairs if m / bins < pair[0] <= (m + 1) / bins]
            if inside:
                accuracy = sum(right for _, right in inside) / len(inside)
                confidence = sum(value for value, _ in inside) / len(inside)
                total += len(inside) / len(pairs) * abs(accuracy - confidence)
        return total

    top = [(row.max(), row.argmax() == y) for row, y in zip(probabilities, labels, strict=True)]
    every = [
        (row[k], k == y) for row, y in zip(probabilities, labels, strict=True) for k in range(4)
    ]
    assert metrics.calibration_error(probabilities, labels) == pytest.approx(slow(top, 15))
    found = metrics.all_class_calibration_error(probabilities, labels)
    assert found == pytest.approx(slow(every, 15))


def test_well_calibrated_and_over_confident_predictions() -> None:
    probabilities = np.tile([0.75, 0.25], (4, 1))
    assert metrics.calibration_error(probabilities, np.array([0, 0, 0, 1])) == pytest.approx(0.0)
    certain = np.tile([1.0, 0.0], (4, 1))
    labels = np.array([0, 0, 1, 1])
    assert metrics.calibration_error(certain, labels) == pytest.approx(0.5)
    # Probabilities of zero fall into the first bin.
    assert metrics.all_class_calibration_error(certain, labels) == pytest.approx(0.5)
    assert math.isfinite(metrics.negative_log_likelihood(certain, labels))


def test_mixture_averages_probabilities_and_not_logits() -> None:
    logits = np.array([[[0.0, np.log(3.0)]], [[1000.0, 0.0]]], dtype=np.float32)
    found = metrics.mixture_probabilities(logits)
    np.testing.assert_allclose(found, [[(0.25 + 1.0) / 2, 0.75 / 2]], rtol=1e-6)


# -- data ------------------------------------------------------------------------------------------


def test_shares_are_nested_and_validation_is_apart() -> None:
    images = make_images()
    numbered = dataclasses.replace(
        images, x_train=np.arange(200, dtype=np.uint8).reshape(-1, 1, 1), y_train=np.arange(200)
    )

    def rows(percent: float, seed: int) -> tuple[set[int], set[int]]:
        problem = small_data.make_problem(numbered, percent, validation_rows=50, seed=seed)
        np.testing.assert_array_equal(np.round(problem.x_train[:, 0] * 255), problem.y_train)
        return set(problem.y_train.tolist()), set(problem.y_validation.tolist())

    small, validation = rows(5.0, 0)
    large, _ = rows(20.0, 0)
    assert (len(small), len(large), len(validation)) == (10, 40, 50)
    assert small < large
    assert not small & validation
    assert rows(5.0, 1)[0] != small
    with pytest.raises(ValueError, match="Expected a share that leaves images on both sides"):
        small_data.make_problem(numbered, 100.0, 50, 0)


def test_schedule_is_bounded_and_divisible() -> None:
    settings = dataclasses.replace(
        small_data.REDUCED, epochs=30, least_steps=610, most_steps=1000, evaluations=20
    )
    few = small_data.schedule_for(settings, 60)
    assert (few.steps, few.batch_size) == (640, 60)
    assert small_data.schedule_for(settings, 3000).steps == 720  # 30 times 23, then divisible
    assert small_data.schedule_for(settings, 60_000).steps == 1000


# -- training --------------------------------------------------------------------------------------


def test_minibatches_go_through_the_rows_once_an_epoch() -> None:
    rows = training.minibatches(10, 3, steps=7, seed=0)
    assert rows.shape == (7, 3)
    for epoch in (rows[:3], rows[3:6]):
        assert len(set(epoch.ravel())) == 9
    assert not np.array_equal(rows[:3], rows[3:6])
    np.testing.assert_array_equal(rows, training.minibatches(10, 3, steps=7, seed=0))
    assert not np.array_equal(rows, training.minibatches(10, 3, steps=7, seed=1))
    whole = training.minibatches(5, 8, steps=2, seed=0)
    np.testing.assert_array_equal(np.sort(whole, axis=1), [range(5)] * 2)


class Counter:
    """A trainer whose only parameter counts the steps."""

    def __init__(self) -> None:
        self.value = self.kept = 0

    def advance(self, rows: np.ndarray) -> None:
        self.value += len(rows)

    def predict(self, x: np.ndarray, seed: int) -> np.ndarray:
        return np.array([self.value])

    def keep(self) -> None:
        self.kept = self.value

    def restore(self) -> None:
        self.value = self.kept


def test_early_stopping_keeps_the_best_look() -> None:
    counter = Counter()
    losses = {2: 3.0, 4: 1.0, 6: math.nan, 8: 1.0, 10: 2.0}
    found = training.train(counter, np.zeros((10, 1), int), 5, lambda: losses[counter.value])
    assert counter.value == 4
    assert found.best_step == 4
    assert found.looked_at == [2, 4, 6, 8, 10]
    np.testing.assert_array_equal(found.losses, list(losses.values()))
    with pytest.raises(training.DivergedError, match="never finite in 4 steps; lower"):
        training.train(Counter(), np.zeros((4, 1), int), 2, lambda: math.nan)
    with pytest.raises(ValueError, match="3 evaluations divide, found 4"):
        training.train(Counter(), np.zeros((4, 1), int), 3, lambda: 0.0)


def test_rate_is_chosen_on_the_first_seed_by_validation_alone() -> None:
    asked = []

    def run(seed: int, rate: float) -> Record:
        asked.append((seed, rate))
        # The best rate by validation is the worst by test, and one rate fails.
        figures = {"validation": abs(rate - 2.0), "NLL": -abs(rate - 2.0)}
        error = "DivergedError: no" if rate == 3.0 else None
        settings = {"learning rate": rate}
        return Record("b", "m", seed=seed, settings=settings, figures=figures, error=error)

    chosen = training.tuned_runs(run, [5, 6, 7], [1.0, 2.0, 3.0])
    assert asked == [(5, 1.0), (5, 2.0), (5, 3.0), (6, 2.0), (7, 2.0)]
    assert [(r.seed, r.settings["learning rate"]) for r in chosen] == [(5, 2.0), (6, 2.0), (7, 2.0)]
    failed = training.tuned_runs(run, [5, 6], [3.0])
    assert len(failed) == 1 and failed[0].failed
    not_finite = Record("b", "m", seed=0, figures={"validation": math.nan})
    fine = Record("b", "m", seed=0, figures={"validation": 9.0})
    found = training.tuned_runs(lambda seed, rate: fine if rate else not_finite, [0], [0.0, 1.0])
    assert found == [fine]


def test_book_makes_no_run_twice_unless_asked(tmp_path: Path) -> None:
    """Failed runs too are results; those that somebody interrupted are none."""
    path = tmp_path / "records.jsonl"
    worked: list[float] = []
    interrupted = True

    def work(record: Record) -> None:
        worked.append(record.settings["rate"])
        if record.settings["rate"] == 2.0:
            raise training.DivergedError("too fast")
        if record.settings["rate"] == 3.0 and interrupted:
            raise KeyboardInterrupt
        record.figures["NLL"] = 1.0

    def all_runs(book: training.Book) -> list[Record]:
        worked.clear()
        return [
            book.run(
                Record("b", "m", "Pyro", seed=0, settings={"rate": rate, "sizes": [3, 4]}), work
            )
            for rate in (0.5, 2.0, 3.0)
        ]

    with pytest.raises(KeyboardInterrupt):
        all_runs(training.Book(path))
    assert [r.failed for r in records.read(path)] == [False, True, True]
    interrupted = False
    second = all_runs(training.Book(path, resume=True))
    assert worked == [3.0] and [record.failed for record in second] == [False, True, False]
    assert records.read(path) == second
    assert all_runs(training.Book(path, resume=True)) == second and worked == []
    # An earlier version wrote the failed run again and again.
    records.append(path, second[1])
    third = all_runs(training.Book(path, retry_failed=True))
    assert worked == [2.0] and [record.failed for record in third] == [False, True, False]
    assert len(records.read(path)) == 3 and third[0] == second[0]
    all_runs(training.Book(path))
    assert worked == [0.5, 2.0, 3.0] and len(records.read(path)) == 3


def test_spread_and_paired_differences() -> None:
    ours = [Record("b", "o", seed=s, figures={"NLL": float(s)}) for s in (0, 1, 2)]
    others = [Record("b", "a", seed=s, figures={"NLL": 10.0 * s}) for s in (2, 1)]
    others.append(Record("b", "a", seed=0, error="DivergedError: no"))
    np.testing.assert_array_equal(training.paired(ours, others, "NLL"), [-9.0, -18.0])


@pytest.mark.parametrize(
    "backend",
    [pytest.param(numpyro_networks, marks=pytest.mark.slow), pyro_networks],
    ids=["numpyro", "pyro"],
)
def test_trainers_learn_start_equal_and_go_back(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = small_data.make_problem(make_images(), 50.0, 100, 0)
    schedule = Schedule(steps=60, batch_size=32, evaluations=2, draws=3, init_scale=1e-4)
    rows = training.minibatches(len(problem.x_train), 32, 60, seed=0)
    starts = []
    # Most of NumPyro's time here is compilation.
    methods = (ADVI, OURS_GRADIENT)
    for method in methods if backend is numpyro_networks else (*methods, POINT):
        model = backend.Classifier((16, 12, 10), len(problem.x_train), 1e-6)
        trainer = backend.Trainer(
            model, method, problem.x_train, problem.y_train, schedule, rate=2e-2, seed=0
        )
        assert trainer.num_weights == 16 * 12 + 12 + 12 * 10 + 10
        before = trainer.predict(problem.x_test, 0)
        assert before.shape == (1 if method is POINT else 3, len(problem.x_test), 10)
        np.testing.assert_array_equal(before, trainer.predict(problem.x_test, 0))
        # Rows predicted in pieces are predicted from the same draws.
        with monkeypatch.context() as patched:
            patched.setattr(sys.modules[backend.Trainer.__module__], "CHUNK", 30)
            in_pieces = trainer.predict(problem.x_test, 0)
        np.testing.assert_allclose(before, in_pieces, atol=1e-5)
        starts.append(before.mean(0))
        trainer.keep()
        trainer.advance(rows)
        after = metrics.figures(trainer.predict(problem.x_test, 0), problem.y_test)
        assert after["error"] < 0.3  # chance is 7 / 8
        trainer.restore()
        np.testing.assert_array_equal(before, trainer.predict(problem.x_test, 0))
    # The guides start at the same weights; 1e-4 of spread moves logits by about as much.
    for start in starts[1:]:
        np.testing.assert_allclose(start, starts[0], atol=0.02)
    assert np.abs(starts[0]).max() > 0.1


@pytest.mark.parametrize("backend", BACKENDS, ids=["numpyro", "pyro"])
def test_the_closed_form_learns_without_a_rate(backend: Any) -> None:
    problem = small_data.make_problem(make_images(), 50.0, 100, 0)
    schedule = Schedule(steps=600, batch_size=32, evaluations=1, draws=3, init_scale=1e-2)
    model = backend.Classifier((16, 12, 10), len(problem.x_train), 1.0)
    assert OURS.rates((1.0, 2.0)) == (None,)
    assert ADVI.rates((1.0, 2.0)) == (1.0, 2.0)
    trainer = backend.Trainer(
        model, OURS, problem.x_train, problem.y_train, schedule, rate=None, seed=0
    )
    trainer.advance(training.minibatches(len(problem.x_train), 32, 600, seed=0))
    after = metrics.figures(trainer.predict(problem.x_test, 0), problem.y_test)
    assert after["error"] < 0.5 * 7 / 8  # half of chance


# -- the command -----------------------------------------------------------------------------------


def run_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> list[Record]:
    images = make_images()
    arrays = {"X_train": images.x_train, "y_train": images.y_train}
    np.savez(tmp_path / "tiny.npz", **arrays, X_test=images.x_test, y_test=images.y_test)
    monkeypatch.setenv("PPL_EXT_DATA", str(tmp_path))
    monkeypatch.setattr(small_data, "REDUCED", TINY)
    command = ["images", "--experiment", "small-data", "--dataset", "tiny"]
    assert command_line.main([*command, "--out", str(tmp_path / "out"), *options]) == 0
    out = tmp_path / "out" / "small-data"
    return records.read(out / "records.jsonl")


def test_command_with_pyro(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_command(tmp_path, monkeypatch, "--backend", "pyro")
    # Both rates on the first seed, the better one on the second; the closed form has no rate.
    assert len(found) == 3 + 2 + 3
    assert not any(record.failed for record in found)
    for record in found:
        assert {"error", "ECE", "all-class ECE", "NLL", "validation"} <= set(record.figures)
        assert record.settings["training rows"] == 40
        assert record.settings["temperature"] == 1e-6
        assert record.versions["numpy"] == np.__version__
    table = (tmp_path / "out" / "small-data" / "table.md").read_text()
    lines = [line for line in table.splitlines() if "| Pyro " in line]
    assert len(lines) == 3 and all("tiny 20 %" in line for line in lines)
    again = run_command(tmp_path, monkeypatch, "--backend", "pyro", "--resume")
    assert len(again) == len(found)


@pytest.mark.slow
def test_command_with_numpyro(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--backend", "numpyro", "--rates", "1e-2", "--temperature", "1e-6", "0.1")
    found = run_command(tmp_path, monkeypatch, *options)
    assert [(r.method, r.settings["temperature"], r.seed) for r in found] == [
        (method, temperature, seed)
        for temperature in (1e-6, 0.1)
        for method in ("ADVI", "ProximalScoreVI", "ProximalScoreVI, gradient")
        for seed in (0, 1)
    ]
    assert not any(record.failed for record in found)


def test_missing_images_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("PPL_EXT_DATA", raising=False)

    def unreachable(*args: Any, **kwargs: Any) -> Any:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", unreachable)
    assert command_line.main(["images", "--out", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert "PPL_EXT_DATA" in message and "mnist.npz" in message and "no network" in message
    assert command_line.main(["images", "--dataset", "fashion_mnist"]) == 1
    message = capsys.readouterr().err
    assert "fashion_mnist.npz" in message and "X_train" in message
    assert not (tmp_path / "out").exists()
