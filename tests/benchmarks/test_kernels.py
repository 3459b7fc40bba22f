"""The kernel comparison: its targets are what they claim, and it runs and reports."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from benchmarks import __main__ as command_line
from benchmarks import records
from benchmarks.kernels.fits import KERNELS, judge
from benchmarks.kernels.targets import Target, make_targets

TARGETS = make_targets()
#: Dimensions of which a grid can be summed, and targets that are products of such.
PLANE = ("banana", "log-gamma", "two modes")


@pytest.mark.parametrize("name", TARGETS)
def test_log_density_is_the_same_in_every_library(name: str) -> None:
    target = TARGETS[name]
    z = np.random.default_rng(0).normal(size=target.dim)
    plain = target.log_density(np, z, target.constants)
    jax_constants = {key: jnp.asarray(value) for key, value in target.constants.items()}
    torch_constants = {key: torch.tensor(value) for key, value in target.constants.items()}
    np.testing.assert_allclose(
        target.log_density(jnp, jnp.asarray(z), jax_constants), plain, rtol=1e-4
    )
    np.testing.assert_allclose(
        target.log_density(torch, torch.tensor(z), torch_constants), plain, rtol=1e-10
    )


@pytest.mark.parametrize("name", PLANE)
def test_moments_are_those_of_the_density(name: str) -> None:
    target = TARGETS[name]
    axis = np.linspace(-14.0, 14.0, 561)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    logs = np.array([target.log_density(np, z, target.constants) for z in grid])
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    assert target.moments is not None
    mean, covariance = target.moments
    np.testing.assert_allclose(weights @ grid, mean, atol=1e-3)
    deviations = grid - mean
    np.testing.assert_allclose(
        (weights[:, None] * deviations).T @ deviations, covariance, atol=2e-3
    )


@pytest.mark.parametrize("name", ["Normal, D = 5", "funnel", "Student t, D = 5"])
def test_exact_draws_have_the_moments(name: str) -> None:
    # Importance weights of draws made another way are constant only for the right density.
    target, generator, num = TARGETS[name], np.random.default_rng(0), 40_000
    noise = generator.normal(size=(num, 5))
    if name == "funnel":
        draws = noise * np.exp(0.5 * np.c_[np.zeros(num), *[noise[:, 0]] * 4])
        logs = -0.5 * (noise**2).sum(1) - 2.0 * noise[:, 0]
    elif name == "Student t, D = 5":
        draws = noise / np.sqrt(generator.chisquare(5, size=(num, 1)) / 5)
        logs = -5.0 * np.log1p((draws**2).sum(1) / 5.0)
    else:
        assert target.moments is not None
        draws = noise @ np.linalg.cholesky(target.moments[1]).T
        logs = -0.5 * (noise**2).sum(1)
    found = [target.log_density(np, z, target.constants) for z in draws[:50]]
    np.testing.assert_allclose(found, logs[:50], rtol=1e-9, atol=1e-9)
    assert target.moments is not None
    mean, covariance = target.moments
    errors = (draws.mean(0) - mean) / np.sqrt(np.diag(covariance) / num)
    assert np.abs(errors).max() < 4.5
    # The sample variance of the heaviest of these tails is still good to a few per cent.
    np.testing.assert_allclose(draws.var(0) / np.diag(covariance), 1.0, atol=0.15)


def test_judge_by_hand() -> None:
    target = Target("two", 1, lambda xp, z, c: 0.0)
    figures = judge(target, np.array([[1.0], [3.0]]), np.array([1.0]), np.array([[4.0]]))
    assert figures == {
        "mean error": 0.5,
        "least variance ratio": 0.25,
        "greatest variance ratio": 0.25,
        "covariance error": 0.75,
    }


def test_runs_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.kernels import comparison, fits

    for name in set(KERNELS) - {"default"}:
        monkeypatch.delitem(fits.KERNELS, name)
    out = str(tmp_path)
    arguments = ["kernels", "--targets", "banana", "--seeds", "1", "--out", out]
    assert command_line.main([*arguments, "--backend", "both"]) == 0
    runs = records.read(tmp_path / "kernels.jsonl")
    assert [run.method for run in runs] == ["reference", "default", "default"]
    assert all(run.figures["covariance error"] < 0.1 for run in runs[1:])
    assert (tmp_path / "kernels.png").stat().st_size > 0

    def broken(*_: object) -> None:
        raise RuntimeError("made up")

    monkeypatch.setattr(comparison, "fit", broken)
    assert command_line.main(arguments) == 0
    assert "made up" in (tmp_path / "kernels.md").read_text()
    assert command_line.main(["kernels", "--targets", "nothing", "--out", out]) == 2
    assert "banana" in capsys.readouterr().out
