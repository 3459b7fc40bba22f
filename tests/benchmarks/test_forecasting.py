"""The forecasting benchmark: filter, local dynamics and metrics by slow references, a small run."""

from __future__ import annotations

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
import torch
from scipy import stats

from benchmarks import __main__ as command_line
from benchmarks import datasets, records
from benchmarks.forecasting import (
    experiment,
    metrics,
    numpyro_forecaster,
    pyro_forecaster,
)
from benchmarks.forecasting.problem import (
    Problem,
    fourier_filter,
    make_problem,
    standardised,
    windows,
)
from benchmarks.forecasting.sizes import RIDGE, Sizes
from benchmarks.images.training import ADVI_FLOW, OURS_FLOW, Schedule, minibatches
from benchmarks.records import Record

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

TINY_SIZES = Sizes(hidden=5, latent=3, local_hidden=4, local_latent=2)


def make_series(number: int = 500, seed: int = 0) -> datasets.Series:
    """Two channels: a daily wave with noise, and a random walk."""
    generator = np.random.default_rng(seed)
    time = np.arange(number)
    wave = np.sin(2 * np.pi * time / 24) + 0.1 * generator.normal(size=number)
    walk = 5.0 + generator.normal(size=number).cumsum()
    return datasets.Series("made_up", np.column_stack([wave, walk]), ("wave", "walk"), "made up")


def tiny_problem() -> Problem:
    """In float64, so that both backends can be compared to rounding."""
    problem = make_problem(make_series(), thinned_to=20)
    return dataclasses.replace(
        problem,
        **{
            field.name: getattr(problem, field.name).astype(np.float64)
            for field in dataclasses.fields(Problem)
            if isinstance(getattr(problem, field.name), np.ndarray)
        },
    )


# -- windows and splits ----------------------------------------------------------------------------


def test_windows_by_a_loop() -> None:
    values = np.arange(20.0).reshape(10, 2)
    x, y = windows(values, window=4, horizon=3, stride=2)
    assert len(x) == len(y) == 2
    for index, start in enumerate((0, 2)):
        np.testing.assert_array_equal(x[index], values[start : start + 4])
        np.testing.assert_array_equal(y[index], values[start + 4 : start + 7])
    assert len(windows(values, 4, 3)[0]) == 4
    with pytest.raises(ValueError, match="at least 11 time steps, found 10"):
        windows(values, 8, 3)


def test_split_is_in_time_order_and_scaled_by_the_training_part() -> None:
    number = 1000
    values = np.column_stack([np.arange(number) ** 1.5, np.ones(number)])
    problem = make_problem(datasets.Series("counted", values, ("a", "b"), ""))
    training = values[:700]
    scale = training[:, 0].std()

    def time(scaled: np.ndarray) -> np.ndarray:
        original = scaled[..., 0].astype(np.float64) * scale + training[:, 0].mean()
        return np.round(np.maximum(original, 0.0) ** (2 / 3)).astype(int)

    # Forecast time steps of the three parts: each its own, and all of them.
    assert (time(problem.y_train).min(), time(problem.y_train).max()) == (96, 699)
    assert (time(problem.y_validation).min(), time(problem.y_validation).max()) == (700, 799)
    assert (time(problem.y_test).min(), time(problem.y_test).max()) == (800, 999)
    np.testing.assert_array_equal(time(problem.x_test)[:, -1] + 1, time(problem.y_test)[:, 0])
    assert len(problem.x_test) == 200 - 48 + 1
    thinned = make_problem(datasets.Series("counted", values, ("a", "b"), ""), thinned_to=50)
    np.testing.assert_array_equal(thinned.x_test, problem.x_test[::3])
    np.testing.assert_array_equal(thinned.x_train, problem.x_train)
    # A channel that is constant in training does not become infinite.
    assert (problem.x_train[..., 1] == 0).all()
    assert make_problem(datasets.Series("illness", values, ("a", "b"), "")).horizon == 24


# -- the network's parts ---------------------------------------------------------------------------


def test_fourier_filter_by_sums_of_waves() -> None:
    generator = np.random.default_rng(0)
    window, windows_given, channels = 12, 5, 2
    x = generator.normal(size=(windows_given, window, channels))
    time = np.arange(window)
    amplitude = np.zeros(window // 2 + 1)
    for frequency in range(len(amplitude)):
        for row in range(windows_given):
            for channel in range(channels):
                angle = 2 * np.pi * frequency * time / window
                real = (x[row, :, channel] * np.cos(angle)).sum()
                imaginary = (x[row, :, channel] * np.sin(angle)).sum()
                amplitude[frequency] += math.hypot(real, imaginary)
    kept = np.argsort(amplitude)[-round(0.4 * len(amplitude)) :]
    given = generator.normal(size=window)
    expected = np.zeros(window)
    for frequency in kept:
        angle = 2 * np.pi * frequency * time / window
        # The mean and the highest frequency have no partner of the same frequency.
        weight = (1.0 if frequency in (0, window // 2) else 2.0) / window
        expected += weight * (given * np.cos(angle)).sum() * np.cos(angle)
        expected += weight * (given * np.sin(angle)).sum() * np.sin(angle)
    np.testing.assert_allclose(fourier_filter(x, 0.4) @ given, expected, atol=1e-6)


def test_fourier_filter_keeps_the_wave_that_is_always_there() -> None:
    time = np.arange(96)
    generator = np.random.default_rng(1)
    phases = generator.uniform(0, 2 * np.pi, (40, 1, 1))
    common = np.sin(2 * np.pi * 4 * time[None, :, None] / 96 + phases)
    matrix = fourier_filter(common + 0.1 * generator.normal(size=common.shape), share=1 / 49)
    np.testing.assert_allclose(matrix @ matrix, matrix, atol=1e-6)
    other = np.cos(2 * np.pi * 7 * time / 96)
    np.testing.assert_allclose(matrix @ (common[0, :, 0] + other), common[0, :, 0], atol=1e-5)


def slow_local_dynamics(latent: np.ndarray, steps: int) -> np.ndarray:
    """Continue one sequence (S, d) by the ridge regression's own d x d system."""
    before, after = latent[:-1], latent[1:]
    matrix = np.linalg.solve(before.T @ before + RIDGE * np.eye(latent.shape[1]), before.T @ after)
    present, found = latent[-1], []
    for _ in range(steps):
        present = present @ matrix
        found.append(present)
    return np.array(found)


@pytest.mark.parametrize("backend", ["numpyro", "pyro"])
def test_local_dynamics_by_the_normal_equations(backend: str) -> None:
    latent = np.random.default_rng(0).normal(size=(3, 2, 4, 5))
    if backend == "numpyro":
        found = np.asarray(numpyro_forecaster.local_dynamics(jnp.asarray(latent), 3))
    else:
        found = pyro_forecaster.local_dynamics(torch.as_tensor(latent), 3).numpy()
    assert found.shape == (3, 2, 3, 5)
    for i in range(3):
        for j in range(2):
            expected = slow_local_dynamics(latent[i, j], 3)
            np.testing.assert_allclose(found[i, j], expected, rtol=1e-10)


def test_local_dynamics_find_a_linear_system() -> None:
    # Large latents make the ridge small beside them.
    turn = np.array([[0.0, 1.1], [-1.1, 0.0]])
    sequence = [np.array([3e4, 1e4])]
    for _ in range(5):
        sequence.append(sequence[-1] @ turn)
    found = pyro_forecaster.local_dynamics(torch.as_tensor(np.array(sequence[:4])), 2).numpy()
    np.testing.assert_allclose(found, sequence[4:], rtol=1e-6)


def flax_name(name: str) -> str:
    return "network/" + name.replace("weight", "kernel")


def draw_weights(problem: Problem) -> dict[str, np.ndarray]:
    """Weights of the forecaster under Pyro's names, outputs first."""
    model = pyro_forecaster.Forecaster(problem, TINY_SIZES, 1.0)
    torch.manual_seed(0)
    found = pyro.infer.Predictive(model, num_samples=1)(torch.as_tensor(problem.x_train[:1]))
    return {name: value[0].numpy() for name, value in found.items() if name != "prediction"}


def slow_forecast(problem: Problem, weights: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Forecast of one window (window, channels), channel by channel."""

    def perceptron(name: str, value: np.ndarray) -> np.ndarray:
        first = weights[f"{name}.first.weight"] @ value + weights[f"{name}.first.bias"]
        return weights[f"{name}.second.weight"] @ np.tanh(first) + weights[f"{name}.second.bias"]

    columns = []
    for channel in x.T:
        scale = math.sqrt(channel.var() + 1e-5)
        standard = (channel - channel[-1]) / scale
        invariant = problem.invariant @ standard
        latent = weights["koopman.weight"] @ perceptron("invariant_encoder", invariant)
        forecast = perceptron("invariant_decoder", latent)
        segments = (standard - invariant).reshape(4, 24)
        codes = np.array([perceptron("variant_encoder", segment) for segment in segments])
        later = slow_local_dynamics(codes, 2)
        forecast = forecast + np.concatenate([perceptron("variant_decoder", z) for z in later])
        columns.append(forecast * scale + channel[-1])
    return np.array(columns).T


def test_both_forecasters_by_loops() -> None:
    problem = tiny_problem()
    weights = draw_weights(problem)
    x = problem.x_test[:3]
    expected = np.array([slow_forecast(problem, weights, window) for window in x])
    model = pyro_forecaster.Forecaster(problem, TINY_SIZES, 1.0)
    draws = {name: torch.as_tensor(value)[None] for name, value in weights.items()}
    found = pyro.infer.Predictive(model, posterior_samples=draws)(torch.as_tensor(x))
    np.testing.assert_allclose(found["prediction"].numpy().reshape(3, 48, 2), expected, rtol=1e-9)
    model = numpyro_forecaster.Forecaster(problem, TINY_SIZES, 1.0)
    draws = {flax_name(name): jnp.asarray(value.T)[None] for name, value in weights.items()}
    # Compiled as a whole: one by one, the operations take far longer to compile.
    predict = jax.jit(numpyro.infer.Predictive(model, draws).__call__)
    found = predict(jax.random.key(0), jnp.asarray(x))["prediction"]
    np.testing.assert_allclose(found[0], expected, rtol=1e-9)


def test_both_models_have_the_tempered_density_of_all_windows() -> None:
    problem = tiny_problem()
    weights = draw_weights(problem)
    temperature, batch = 0.3, 4
    x, y = problem.x_train[:batch], problem.y_train[:batch]
    means = np.array([slow_forecast(problem, weights, window) for window in x])
    factor = len(problem.x_train) / batch / temperature
    expected = factor * stats.norm.logpdf(y, means).sum()
    for name, value in weights.items():
        layer = weights[name.rpartition(".")[0] + ".weight"]
        expected += stats.norm.logpdf(value, scale=layer.shape[1] ** -0.5).sum()
    model = pyro_forecaster.Forecaster(problem, TINY_SIZES, temperature)
    conditioned = pyro.poutine.condition(
        model, {name: torch.as_tensor(value) for name, value in weights.items()}
    )
    trace = pyro.poutine.trace(conditioned).get_trace(torch.as_tensor(x), torch.as_tensor(y))
    assert float(trace.log_prob_sum()) == pytest.approx(expected, rel=1e-9)
    model = numpyro_forecaster.Forecaster(problem, TINY_SIZES, temperature)
    values = {flax_name(name): jnp.asarray(value.T) for name, value in weights.items()}
    seeded = numpyro.handlers.seed(model, 0)
    arguments = (jnp.asarray(x), jnp.asarray(y))
    found = jax.jit(lambda v: numpyro.infer.util.log_density(seeded, arguments, {}, v)[0])(values)
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_standardised_windows_end_at_zero() -> None:
    x = np.random.default_rng(0).normal(size=(3, 8, 2)) * [1.0, 50.0] + 7.0
    found = standardised(x)
    np.testing.assert_allclose(found[:, -1], 0.0)
    np.testing.assert_allclose(found.std(1), 1.0, atol=1e-4)


# -- metrics ---------------------------------------------------------------------------------------


def test_errors_are_those_of_the_mean_draw() -> None:
    draws = np.array([[[[1.0], [3.0]]], [[[3.0], [5.0]]]])
    y = np.array([[[2.0], [1.0]]])
    assert metrics.mean_square_error(draws, y) == pytest.approx(9 / 2)
    assert metrics.mean_absolute_error(draws, y) == pytest.approx(3 / 2)


def test_mixture_likelihood_by_loops_and_its_variance_by_a_grid() -> None:
    generator = np.random.default_rng(0)
    y = generator.normal(size=(4, 3, 2))
    draws = y + 0.5 * generator.normal(size=(5, 4, 3, 2)) + 0.3 * generator.normal(size=y.shape)
    total = 0.0
    for index in np.ndindex(y.shape):
        densities = [stats.norm.pdf(y[index], draw[index], math.sqrt(0.2)) for draw in draws]
        total -= math.log(sum(densities) / 5)
    assert metrics.mixture_nll(draws, y, 0.2) == pytest.approx(total / y.size)
    variance = metrics.best_variance(draws, y)
    best = metrics.mixture_nll(draws, y, variance)
    grid = np.exp(np.linspace(-6.0, 2.0, 400))
    assert best <= min(metrics.mixture_nll(draws, y, value) for value in grid) + 1e-6
    # A single draw: the mean square error.
    assert metrics.best_variance(draws[:1], y) == pytest.approx(
        np.square(draws[0] - y).mean(), rel=3e-3
    )
    with pytest.raises(ArithmeticError, match="finite and not exact"):
        metrics.best_variance(y[None], y)


# -- the command -----------------------------------------------------------------------------------

TINY = experiment.Settings(
    series=("made_up",),
    flow_series=("made_up",),
    network=TINY_SIZES,
    least_steps=20,
    most_steps=20,
    batch_size=16,
    evaluations=2,
    draws=3,
    thinned_to=20,
    seeds=2,
    rates=(1e-2,),
)


def run_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> list[Record]:
    series = make_series()
    np.savez(tmp_path / "made_up.npz", X=series.values, columns=np.array(series.columns))
    monkeypatch.setenv("PPL_EXT_DATA", str(tmp_path))
    monkeypatch.setattr(experiment, "REDUCED", TINY)
    out = tmp_path / "out"
    assert command_line.main(["forecasting", "--out", str(out), *options]) == 0
    return records.read(out / "records.jsonl")


def test_command_with_pyro(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_command(tmp_path, monkeypatch, "--backend", "pyro")
    # Last value, then six methods with two seeds.
    assert len(found) == 1 + 6 * 2
    assert not any(record.failed for record in found)
    for record in found:
        assert {"MSE", "MAE", "NLL", "variance", "validation", "weights"} <= set(record.figures)
        assert np.shape(record.figures["example"])[-1] == 48
    assert len({record.figures["weights"] for record in found[1:]}) == 2
    table = (tmp_path / "out" / "table.md").read_text()
    assert sum("| Pyro " in line for line in table.splitlines()) == 6
    again = run_command(tmp_path, monkeypatch, "--backend", "pyro", "--resume")
    assert len(again) == len(found)


@pytest.mark.slow
def test_command_with_numpyro(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--backend", "numpyro", "--flow-series", "--seeds", "1"]
    found = run_command(tmp_path, monkeypatch, *options)
    assert [record.method for record in found] == [
        "last value",
        "point estimate",
        "ADVI",
        "ProximalScoreVI",
        "ProximalScoreVI, gradient",
    ]
    assert not any(record.failed for record in found)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [numpyro_forecaster, pyro_forecaster], ids=["numpyro", "pyro"])
@pytest.mark.parametrize("method", [ADVI_FLOW, OURS_FLOW], ids=lambda method: method.engine)
def test_flows_learn(backend: Any, method: Any) -> None:
    problem = tiny_problem()
    steps = 300
    schedule = Schedule(steps=steps, batch_size=32, evaluations=1, draws=5, init_scale=1e-2)
    model = backend.Forecaster(problem, TINY_SIZES, 1e-6)
    trainer = backend.Trainer(
        model, method, problem.x_train, problem.y_train, schedule, rate=1e-2, seed=0
    )
    before = metrics.mean_square_error(trainer.predict(problem.x_test, 0), problem.y_test)
    trainer.advance(minibatches(len(problem.x_train), 32, steps, 0))
    after = metrics.mean_square_error(trainer.predict(problem.x_test, 0), problem.y_test)
    assert after < 0.9 * before
