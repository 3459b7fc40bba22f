"""The minibatch comparison: judgement by slow references, the rival's fixed point, small runs."""

from __future__ import annotations

import argparse
import importlib
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from benchmarks import __main__ as command_line
from benchmarks import records
from benchmarks.datasets import Split
from benchmarks.predictive import predictive_scores
from benchmarks.records import Record
from benchmarks.score_vi import memory, minibatch, natural_gradient, passes, problems
from ppl_ext.score_matching.regression import diagonal


def test_logistic_draws_have_the_posterior_moments() -> None:
    """One weight: moments by quadrature. The tolerance is four standard errors of the draws."""
    problem = problems.logistic(3, rows=300, features=1)
    draws = problems.logistic_draws(problem, number=4000)
    grid = np.linspace(-8, 8, 20_001)
    signed = (2 * problem.y - 1) * problem.x[:, 0]
    density = np.exp(-np.logaddexp(0, -np.outer(grid, signed)).sum(1) - grid**2 / 2)
    density /= density.sum()
    mean = (grid * density).sum()
    deviation = math.sqrt((np.square(grid - mean) * density).sum())
    assert draws.mean() == pytest.approx(mean, abs=4 * deviation / math.sqrt(4000))
    assert draws.std() == pytest.approx(deviation, rel=4 / math.sqrt(2 * 4000))


def test_minibatch_scores_average_to_the_full_one_over_an_epoch() -> None:
    problem = problems.logistic(0, rows=60, features=3)
    score = problems.logistic_minibatch_score(problem, 20, seed=1)
    theta = np.array([[0.3, -0.2, 0.5], [1.0, 0.0, -1.0]])
    found = np.mean([score(theta) for _ in range(3)], 0)
    expected = [problem.x.T @ (problem.y - expit(problem.x @ z)) - z for z in theta]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_moment_errors_of_a_known_offset() -> None:
    reference = np.random.default_rng(0).normal(size=(5000, 2)) * [1.0, 3.0] + [2.0, -1.0]
    covariance = np.cov(reference.T)
    mean = reference.mean(0) + np.array([0.0, 0.5 * reference[:, 1].std()])
    found = problems.moment_errors(mean, 4 * covariance, reference)
    assert found["worst mean error"] == pytest.approx(0.5)
    assert found["smallest sd ratio"] == pytest.approx(2.0, rel=1e-3)
    assert found["worst sd error"] == pytest.approx(math.log(2), rel=1e-3)
    assert found["covariance error"] == pytest.approx(3.0)


def test_predictive_scores_are_those_of_the_mixture_in_original_units() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(4, 2)), generator.normal(size=4)
    split = Split(x, y, x, y, y_location=5.0, y_scale=3.0)
    draws = {
        "w1": generator.normal(size=(3, 2, problems.HIDDEN)),
        "b1": generator.normal(size=(3, problems.HIDDEN)),
        "w2": generator.normal(size=(3, problems.HIDDEN)) / 7,
        "b2": generator.normal(size=3),
        "noise": np.array([0.3, 0.5, 0.9]),
    }
    found = predictive_scores(draws, split)
    means, densities = np.zeros((3, 4)), np.zeros((3, 4))
    for s in range(3):
        for i in range(4):
            hidden = np.maximum(x[i] @ draws["w1"][s] + draws["b1"][s], 0)
            means[s, i] = 3 * (hidden @ draws["w2"][s] + draws["b2"][s])
            densities[s, i] = norm.pdf(3 * y[i], means[s, i], 3 * draws["noise"][s])
    assert found["RMSE"] == pytest.approx(np.sqrt(np.mean((means.mean(0) - 3 * y) ** 2)))
    assert found["NLL"] == pytest.approx(-np.log(densities.mean(0)).mean())


def test_natural_gradient_finds_a_normal_target() -> None:
    """Correlated and off the origin; exact scores leave the steps' own noise, of a few percent."""
    covariance = np.array([[1.0, 0.6], [0.6, 2.0]])
    precision, center = np.linalg.inv(covariance), np.array([2.0, -1.0])
    mean, found = natural_gradient.natural_gradient_vi(
        lambda theta: (center - theta) @ precision, np.zeros(2), 4 * np.eye(2), 5000, 0.01, 0
    )
    np.testing.assert_allclose(mean, center, atol=1e-6)
    np.testing.assert_allclose(found, covariance, rtol=0.15)


def _run(method: str, seed: int, rate: float | None, error: float) -> Record:
    record = Record("score-vi uci", method, "NumPyro", "yacht", seed=seed, seconds=1.0)
    record.settings, record.figures = {"rate": rate}, {"RMSE": error, "NLL": 2 * error}
    return record


def test_the_tuned_rate_is_the_best_on_average_and_never_one_that_fails() -> None:
    broken = _run("ADVI", 1, 0.1, 0.0)
    broken.error, broken.figures = "FloatingPointError: no", {}
    runs = [
        _run("ours", 0, None, 1.0),
        _run("ours", 1, None, 3.0),
        _run("ADVI", 0, 0.1, 0.1),
        broken,
        _run("ADVI", 0, 0.01, 1.0),
        _run("ADVI", 1, 0.01, 2.0),
        _run("ADVI", 0, 0.001, 0.5),
        _run("ADVI", 1, 0.001, 9.0),
    ]
    rows = minibatch._rows(minibatch.tuned(runs, "NLL"), ["RMSE", "NLL"])
    found = [(row["method"], row["RMSE"]) for row in rows]
    assert found == [("ours", 2.0), ("ADVI", 1.5)]


def test_a_rate_with_a_figure_that_is_no_number_is_not_the_best() -> None:
    runs = [_run("ADVI", 0, 0.1, math.nan), _run("ADVI", 0, 0.01, 1.0)]
    assert [run.settings["rate"] for run in minibatch.tuned(runs, "NLL")] == [0.01]


@pytest.mark.parametrize(
    ("guide", "draws"), [("AutoDiagonalNormal", 1), ("AutoMultivariateNormal", 8)]
)
def test_the_gradient_solver_takes_all_its_scores(backend: Any, guide: str, draws: int) -> None:
    """As many as the other methods, whatever the draws of a step, which depend on the guide."""
    module = importlib.import_module(f"benchmarks.score_vi.{backend.host.__name__}_fits")
    data = backend.array(LOGISTIC.x), backend.array(LOGISTIC.y), 20
    model = module.logistic_model
    own = getattr(module, guide)(model)
    engine, run = module._run("ours, gradient", model, own, 16, 0, *data)
    assert engine.plan.num_samples == draws
    assert len(run.losses) * draws == 16


def test_annealed_advi_tempers_the_entropy_alone(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At temperature t the best Normal for a standard one has variance t, transforms or not."""
    module = importlib.import_module(f"benchmarks.score_vi.{backend.host.__name__}_fits")
    monkeypatch.setattr(diagonal, "schedule", lambda *at: SimpleNamespace(temperature=0.25))

    def model(x: Any, y: Any, batch_size: int) -> None:
        backend.host.sample("plain", backend.dist.Normal(0.0, 1.0))
        backend.host.sample("positive", backend.dist.LogNormal(0.0, 1.0))

    data = backend.array(np.zeros(3)), backend.array(np.zeros(3)), 3
    guide = module.AutoDiagonalNormal(model)
    if backend.is_pyro:
        module._advi(model, guide, 0.05, 1000, 0, *data, annealed=True)
        mean, scale = guide.loc, guide.scale
    else:
        found = module._annealed_advi(model, guide, 0.05, 1000, 0, *data)
        mean, scale = found["auto_loc"], found["auto_scale"]
    # A wrong entropy would leave a scale of 1, a tempered Jacobian a mean of -0.75.
    np.testing.assert_allclose(backend.numpy(mean), 0.0, atol=0.1)
    np.testing.assert_allclose(backend.numpy(scale), 0.5, atol=0.1)


def test_parameters_of_the_large_network() -> None:
    assert memory.num_parameters((3, 5, 2)) == 4 * 5 + 6 * 2
    assert memory.num_parameters(memory.LAYERS) == 20_048_010


LONG = 100_000


def test_passes_of_a_compiled_program() -> None:
    """Whole arrays, slices of a loop that updates in place, and arrays too short to count."""
    jax = pytest.importorskip("jax")
    from benchmarks.score_vi import numpyro_passes

    def step(x: Any, y: Any, short: Any, z: Any) -> Any:
        def body(k: Any, values: Any) -> Any:
            with jax.named_scope("draw"):
                start = k * 1000
                part = jax.lax.dynamic_slice_in_dim(values, start, 1000)
                other = jax.lax.dynamic_slice_in_dim(y, start, 1000)
                part = part + jax.numpy.cumsum(other) * other
                return jax.lax.dynamic_update_slice_in_dim(values, part, start, 0)

        x = jax.lax.fori_loop(0, LONG // 1000, body, x)
        with jax.named_scope("score"):
            # A slice written over an array outside of loops, at a place that is no constant.
            place = short[0].astype(int)
            z = jax.lax.dynamic_update_slice_in_dim(z, jax.numpy.sin(y[:5000]), place, 0)
            return x * y[::-1] + short.sum(), z

    arrays = (jax.numpy.ones(size) for size in (LONG, LONG, 100, LONG))
    text = jax.jit(step, donate_argnums=(0, 3)).lower(*arrays).compile().as_text()
    assert dict(numpyro_passes.count(text, LONG // 50)) == {
        ("draw", "read"): 8 * LONG,
        ("draw", "written"): 4 * LONG,
        ("score", "read"): 8 * LONG + 4 * 5000,
        ("score", "written"): 4 * LONG + 4 * 5000,
    }


def test_passes_of_operations_of_torch() -> None:
    """New tensors, in place, views, slices that stay in the cache, and what is held at most."""
    torch = pytest.importorskip("torch")
    from benchmarks.score_vi import pyro_passes

    x, y, out = (torch.ones(LONG) for _ in range(3))
    count = pyro_passes.Count(4 * LONG // 50)
    with count:
        torch.mul(x, 2.0, out=out)
        with count.named("draw"):
            for k in range(0, LONG, 1000):
                x[k : k + 1000].normal_().mul_(y[k : k + 1000])
                short = y[k : k + 1000] * 3.0
                short.add_(1.0)
        with count.named("score"):
            found = x.view(-1, 10) + y.reshape(-1, 10)
    assert dict(count.moved) == {
        ("other", "read"): 4 * LONG,
        ("other", "written"): 4 * LONG,
        ("draw", "read"): 4 * LONG,
        ("draw", "written"): 4 * LONG,
        ("score", "read"): 8 * LONG,
        ("score", "written"): 4 * LONG,
    }
    assert count.most == 16 * LONG
    assert found.shape == (LONG // 10, 10)


def test_table_of_passes() -> None:
    moved = {"draw": {"read": 2.0, "written": 1.0}, "other": {"read": 0.26, "written": 0.0}}
    runs = [
        Record("score-vi passes", method, "pyro", "network", 0, {}, figures)
        for method in ("ours", "Adam")
        for figures in [{"passes": moved, "vectors held": 8.04}]
    ]
    lines = passes.page_table(runs).splitlines()
    assert [line.split("|")[3].strip() for line in lines[2:5]] == [
        "2.0 + 1.0",
        "0.0 + 0.0",
        "0.0 + 0.0",
    ]
    assert [line.split("|")[3].strip() for line in lines[5:]] == [
        "2.3 + 1.0",
        "2.3 + 1.0",
        "8.0",
        "8.0",
    ]


@pytest.mark.slow
def test_memory_run(tmp_path: Path) -> None:
    arguments = ["score-vi", "--experiment", "memory", "--quick", "--out", str(tmp_path)]
    assert command_line.main([*arguments, "--backend", "both"]) == 0
    runs = records.read(tmp_path / "score-vi.jsonl")
    assert len(runs) == 6 and not any(run.failed for run in runs)
    assert all(len(run.figures["seconds a step"]) == 3 for run in runs)


@pytest.mark.parametrize("backend", ["numpyro", "pyro"])
def test_logistic_run(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minibatch, "RATES", (1e-2,))
    monkeypatch.setattr(minibatch, "LOGISTIC_METHODS", ("ours", "ADVI"))
    monkeypatch.setattr(problems, "logistic", lambda seed: LOGISTIC)
    arguments = argparse.Namespace(out=tmp_path, seeds=1, backend=backend, quick=True)
    assert minibatch.run_logistic(arguments) == 0
    runs = records.read(tmp_path / "score-vi.jsonl")
    assert [run.method for run in runs] == ["ours", "ADVI", "natural gradient"]
    assert not any(run.failed for run in runs)
    # A thousand scores of a small problem: the default is near already.
    assert runs[0].figures["worst mean error"] < 0.5
    assert "natural gradient, tuned" in (tmp_path / "score-vi.md").read_text()


LOGISTIC = problems.logistic(1, rows=200, features=2)
