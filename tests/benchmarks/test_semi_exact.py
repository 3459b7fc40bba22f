"""The study of semi-exact kernels: draws and figures are what they claim, and it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp, wasserstein_distance

from benchmarks import __main__ as command_line
from benchmarks import records
from benchmarks.kernels.targets import make_targets
from benchmarks.semi_exact import figures, problems, report, study
from benchmarks.semi_exact.figures import Truth
from benchmarks.semi_exact.methods import EXACT, METHODS, hybrid
from benchmarks.trust.judge import kolmogorov_distances
from ppl_ext.start.start import Mode, Start

TARGETS = make_targets()


def log_sums(name: str, z: np.ndarray) -> np.ndarray:
    target = TARGETS[name]
    return np.array([target.log_density(np, row, target.constants) for row in z])


@pytest.mark.parametrize("name", problems.SHAPED)
def test_exact_draws_have_mean_scores_of_zero(name: str) -> None:
    # Stein's identity of constants and of the coordinates, by differences of the log density.
    target = TARGETS[name]
    z = problems.shaped_draws(name, target)[:4000]
    step, number = 1e-4, len(z)
    for d in range(min(target.dim, 3)):
        unit = step * np.eye(target.dim)[d]
        scores = (log_sums(name, z + unit) - log_sums(name, z - unit)) / (2.0 * step)
        for values, expected in ((scores, 0.0), (scores * z[:, d], -1.0)):
            error = values.std() / number**0.5
            assert abs(values.mean() - expected) < 4.5 * error


@pytest.mark.parametrize("family", ["independent", "correlated", "ill-conditioned"])
def test_normals(family: str) -> None:
    problem = problems.normal(family, 5)
    assert problem.ratio == 0.05 and problem.moments is not None
    covariance = problem.moments[1]
    draws = problem.reference(None)
    np.testing.assert_allclose(
        np.cov(draws.T) / np.sqrt(np.outer(*[np.diag(covariance)] * 2)),
        covariance / np.sqrt(np.outer(*[np.diag(covariance)] * 2)),
        atol=0.05,
    )
    condition = np.linalg.cond(covariance)
    assert condition == pytest.approx(
        {"independent": 1.0, "ill-conditioned": 1000.0}.get(family, condition)
    )


def test_figures_are_those_of_scipy() -> None:
    generator = np.random.default_rng(0)
    reference = generator.normal(size=(400, 3)) * [1.0, 2.0, 0.5] + 1.0
    particles = generator.normal(size=(20, 3)) * 1.3
    particles[3, 0] = reference[5, 0]
    further = {"sum": reference.sum(axis=1)}
    truth = Truth.of(reference, further=further)
    found = truth.judge(particles, {"sum": particles.sum(axis=1)})
    distances = [ks_2samp(a, b).statistic for a, b in zip(particles.T, reference.T, strict=True)]
    assert found["Kolmogorov"] == pytest.approx(max(distances))
    assert found["Kolmogorov of"] == str(int(np.argmax(distances)))
    assert found["further Kolmogorov"] == pytest.approx(
        ks_2samp(particles.sum(axis=1), further["sum"]).statistic
    )
    assert kolmogorov_distances(particles, reference) == pytest.approx(distances)
    deviations = reference.std(axis=0)
    a, b = ((x - reference.mean(axis=0)) / deviations for x in (particles, reference))
    directions = figures._directions(3)
    slices = [wasserstein_distance(a @ d, b @ d) for d in directions]
    assert found["sliced Wasserstein"] == pytest.approx(np.mean(slices))
    assert found["mean error"] == pytest.approx(np.abs(a.mean(axis=0)).max())
    wrong, right = np.cov(a.T, bias=True), np.corrcoef(reference.T)
    error = np.linalg.norm(wrong - right) / np.linalg.norm(right)
    assert found["covariance error"] == pytest.approx(error)
    # Equal draws are at distance zero, and one that differs is not.
    assert truth.judge(reference, further)["sliced Wasserstein"] == 0.0


def test_hybrid_drives_by_one_kernel_and_repels_by_another(backend: Any) -> None:
    kernels = backend.room("kernels")
    generator = np.random.default_rng(0)
    z, scores = generator.normal(size=(2, 7, 4))
    kernel = hybrid(kernels, kernels.RBF(3.0))
    particles = backend.array(z)
    phi, _ = kernel.direction(kernel.init(particles), particles, backend.array(scores))
    apart = z[:, None] - z
    gram = np.exp(-(apart**2).sum(-1) / 3.0)
    expected = (gram @ scores + 2.0 * (gram[..., None] * apart * 2.0 / 3.0).sum(1)) / 7
    np.testing.assert_allclose(backend.numpy(phi), expected, rtol=1e-5, atol=1e-6)


def test_runs_reports_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(problems, "NORMALS", {"correlated": (5,)})
    monkeypatch.setattr(problems, "FEW", (3, 3))
    monkeypatch.setattr(problems, "POSTERIORS", ())
    monkeypatch.setattr(problems, "SHAPED", ("banana",))
    monkeypatch.setattr(problems, "EIGHT_SCHOOLS", "none")
    out = str(tmp_path)
    arguments = ["semi-exact", "--seeds", "2", "--steps", "100", "--out", out]
    chosen = ["--methods", "IMQ", EXACT, "--problems", "Normal, correlated, D = 5", "banana"]
    assert command_line.main([*arguments, *chosen, "--backend", "both"]) == 0
    runs = records.read(tmp_path / "semi-exact.jsonl")
    assert [(r.model, r.backend, r.method, r.seed) for r in runs] == [
        (model, backend, method, seed)
        for backend in ("numpyro", "pyro")
        for model in ("Normal, correlated, D = 5", "banana")
        for method in ("IMQ", EXACT)
        for seed in (0, 1)
        if backend == "numpyro" or method == EXACT
    ]
    for run in runs:
        if run.method == EXACT and run.settings["group"] == "Normal":
            assert run.figures["covariance error"] < 0.01
    assert (tmp_path / "semi-exact.png").stat().st_size > 0

    def broken(*_: object) -> None:
        raise RuntimeError("made up")

    # What is there is kept, and only another method is run.
    monkeypatch.setitem(METHODS, "RBF", broken)
    assert (
        command_line.main([*arguments, "--methods", "RBF", "--problems", "banana", "--resume"]) == 0
    )
    assert "made up" in (tmp_path / "semi-exact.md").read_text()
    again = records.read(tmp_path / "semi-exact.jsonl")
    assert again[: len(runs)] == runs and all(r.failed for r in again[len(runs) :])

    assert command_line.main([*arguments, "--methods", "nothing"]) == 2
    assert EXACT in capsys.readouterr().out


def test_rate_is_the_same_for_starts_that_are_near() -> None:
    def start(scale: float) -> Start:
        mode = Mode(np.zeros(2), scale * np.diag([1.0, 4.0]), 0.0, 0.0)
        return Start(modes=(mode,), evaluations=1)

    assert study._typical_deviation(start(1.0)) == study._typical_deviation(start(1.001)) == 2.0


def test_both_packages_are_compared_on_seeds_that_both_have() -> None:
    runs = []
    for backend, seeds, error in (("numpyro", (0, 1, 2), 0.1), ("pyro", (0, 2), 0.2)):
        for method in report.PACKAGES:
            for seed in seeds:
                settings = {"group": "shaped", "particles": 100, "dim": 2}
                run = records.Record("semi-exact", method, backend, "banana", seed, settings)
                run.figures.update({"covariance error": error + seed, "Kolmogorov": 0.05})
                runs.append(run)
    row = report.packages_table(runs).splitlines()[2]
    assert row.count("1.1 (0.050), 1.2 (0.050)") == 3 and row.endswith("2 |")
    assert row.startswith("| banana | `hierarchical_kernel()` |")
    for run in runs:
        run.settings["dim"] = 20
    row = report.packages_table(runs).splitlines()[2]
    assert row.startswith("| banana | `IMQ + Linear` ")
    assert "banana" not in report.packages_table([run for run in runs if run.seed != 0][:3])
