"""Synthetic targets: densities, divergences, noise, and runs whose failures are kept."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from pyro.infer import Trace_ELBO as PyroTraceELBO
from scipy import integrate, stats

import numpyro_ext.density as numpyro_target
import pyro_ext.density as pyro_target
from benchmarks import __main__ as command_line
from benchmarks import records
from benchmarks.records import Record
from benchmarks.study import Study
from benchmarks.synthetic import (
    experiments,
    numpyro_fits,
    plots,
    pyro_fits,
    runs,
    selected,
    targets,
)
from benchmarks.synthetic.experiments import ELBO_GAP, FORWARD, Case, Experiment, Method
from benchmarks.synthetic.fits import Diverged, show
from benchmarks.synthetic.targets import Mixture, divergence, normal, normal_divergence
from numpyro_ext.gradients import Noisy

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

BACKENDS = [numpyro_fits, pyro_fits]
SEED = 3


def a_mixture(order: int = 3, dim: int = 2) -> Mixture:
    return targets.random_mixture(order, dim, np.random.default_rng(0))


def points_of(mixture: Mixture, number: int = 7) -> np.ndarray:
    return mixture.sample(number, np.random.default_rng(1))


def scipy_density(mixture: Mixture, points: np.ndarray) -> np.ndarray:
    """Density by SciPy's Normals, one component and one point at a time."""
    parts = zip(mixture.weights, mixture.means, mixture.covariances, strict=True)
    return sum(w * stats.multivariate_normal(m, c).pdf(points) for w, m, c in parts)


# -- targets ----------------------------------------------------------------------------------


def test_density_by_scipy_and_score_by_differences() -> None:
    mixture = a_mixture()
    points = points_of(mixture)
    expected = np.log(scipy_density(mixture, points))
    np.testing.assert_allclose(mixture.log_density(points), expected, rtol=1e-10)
    step = 1e-5
    for i in range(mixture.dim):
        shift = step * np.eye(mixture.dim)[i]
        slope = np.log(scipy_density(mixture, points + shift))
        slope -= np.log(scipy_density(mixture, points - shift))
        np.testing.assert_allclose(mixture.score(points)[:, i], slope / (2 * step), atol=1e-7)


def test_draws_have_the_moments_of_the_matched_normal() -> None:
    mixture = a_mixture()
    draws = mixture.sample(100_000, np.random.default_rng(2))
    matched = mixture.matched_normal()
    error = np.sqrt(np.diagonal(matched.covariances[0]) / len(draws))
    assert (np.abs(draws.mean(0) - matched.means[0]) < 4 * error).all()
    centred = draws - matched.means[0]
    products = centred[:, :, None] * centred[:, None, :]
    error = products.std(0) / math.sqrt(len(draws))
    assert (np.abs(products.mean(0) - matched.covariances[0]) < 4 * error).all()


def test_generator_of_the_paper() -> None:
    generator = np.random.default_rng(0)
    found = [targets.random_mixture(2, 1, generator) for _ in range(3000)]
    # The logits' difference has twice the variance 0.3.
    odds = np.array([math.log(m.weights[0] / m.weights[1]) for m in found])
    assert np.square(odds).mean() == pytest.approx(0.6, abs=4 * 0.6 * math.sqrt(2 / len(odds)))
    means = np.array([mixture.means for mixture in found])
    assert np.square(means).mean() == pytest.approx(1.0, abs=4 * math.sqrt(2 / means.size))
    # 1 + a x^2 is below 1 where a < 0, and is drawn again where a < -1 / x^2.
    scale = math.sqrt(0.3)

    def rejected(x: float) -> float:
        return stats.norm.pdf(x) * stats.norm.cdf(-1.0 / (x**2 * scale))

    share_rejected = 2 * integrate.quad(rejected, 1e-6, 20)[0]
    expected = (0.5 - share_rejected) / (1.0 - share_rejected)
    variances = np.array([mixture.covariances for mixture in found])
    assert (variances > 0).all()
    error = math.sqrt(expected * (1 - expected) / variances.size)
    assert (variances < 1).mean() == pytest.approx(expected, abs=4 * error)


def test_covariances_are_positive_definite_and_asymmetric_targets_differ_by_seed() -> None:
    case = Case("a", "a", 3, 2, 1, (), 10)
    for seed in range(20):
        target = case.target(seed)
        assert np.linalg.eigvalsh(target.covariances).min() > 0
        assert target.weights.sum() == pytest.approx(1.0)
    assert not np.allclose(case.target(0).means, case.target(1).means)
    other = dataclasses.replace(case, name="b", budget=20, guide_order=2)
    np.testing.assert_array_equal(case.target(4).means, other.target(4).means)
    np.testing.assert_array_equal(case.start(4), other.start(4))


def two_normals() -> tuple[Mixture, Mixture]:
    first = normal(np.array([0.3, -1.0]), np.array([[1.5, 0.4], [0.4, 0.7]]))
    second = normal(np.array([1.0, 0.5]), np.array([[0.8, -0.3], [-0.3, 2.0]]))
    return first, second


def test_divergence_of_normals_by_the_textbook() -> None:
    first, second = two_normals()
    (m, v), (n, w) = ((x.means[0], x.covariances[0]) for x in (first, second))
    precision = np.linalg.inv(w)
    expected = 0.5 * (
        np.trace(precision @ v)
        + (n - m) @ precision @ (n - m)
        - 2
        + math.log(np.linalg.det(w) / np.linalg.det(v))
    )
    assert normal_divergence(first, second) == pytest.approx(expected, rel=1e-12)
    assert normal_divergence(first, first) < 1e-15
    with pytest.raises(ValueError, match="mixtures of 1 and 3"):
        normal_divergence(first, a_mixture())


def test_estimated_divergence_agrees_with_the_closed_form() -> None:
    first, second = two_normals()
    # The same Normal as a mixture of two equal components, which has no closed form here.
    doubled = Mixture(
        np.array([0.25, 0.75]),
        np.repeat(second.means, 2, axis=0),
        np.repeat(second.scale_trils, 2, axis=0),
    )
    draws = first.sample(20_000, np.random.default_rng(5))
    found = divergence(first, doubled, draws)
    exact = normal_divergence(first, second)
    assert found.value == pytest.approx(exact, abs=4 * found.error)
    assert 0 < found.error < 0.05 * exact
    assert divergence(first, second, draws) == (exact, 0.0)


def test_parameter_error() -> None:
    first, second = two_normals()
    mean = [0.7, 1.5]
    covariance = [-0.7, -0.7, -0.7, 1.3]
    assert targets.parameter_error(first, second) == pytest.approx(math.hypot(*mean, *covariance))


def test_best_normal_is_stationary_and_beats_its_neighbours() -> None:
    target = a_mixture(2, 2)
    noise = np.random.default_rng(6).normal(size=(4000, 2))
    best = targets.best_normal(target, noise)
    least = targets.reverse_divergence(best, target, noise).value
    points = best.means[0] + noise @ best.scale_trils[0].T
    # Over these draws the mean score is 0 where the ELBO is stationary in the mean.
    np.testing.assert_allclose(target.score(points).mean(0), 0.0, atol=1e-3)
    for direction in np.random.default_rng(7).normal(size=(10, 2)):
        moved = dataclasses.replace(best, means=best.means + 0.05 * direction)
        assert targets.reverse_divergence(moved, target, noise).value > least
        scales = best.scale_trils @ np.diag(np.exp(0.05 * direction))
        spread = dataclasses.replace(best, scale_trils=scales)
        assert targets.reverse_divergence(spread, target, noise).value > least
    single, _ = two_normals()
    assert targets.best_normal(single, noise) is single


def test_reverse_divergence_is_that_of_the_fit() -> None:
    first, second = two_normals()
    noise = np.random.default_rng(8).normal(size=(20_000, 2))
    assert targets.reverse_divergence(first, second, noise).value == pytest.approx(
        normal_divergence(first, second)
    )
    # Of a mixture target by quadrature on a grid.
    target = a_mixture(2, 2)
    grid = np.linspace(-8, 8, 400)
    points = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2)
    density = np.exp(first.log_density(points))
    differences = first.log_density(points) - target.log_density(points)
    expected = (density * differences).sum() * (grid[1] - grid[0]) ** 2
    found = targets.reverse_divergence(first, target, noise)
    assert found.value == pytest.approx(expected, abs=4 * found.error + 1e-6)


# -- the program ------------------------------------------------------------------------------


def score_of(
    backend: ModuleType, target: Mixture, points: np.ndarray, level: float | None, seed: int = SEED
) -> tuple[np.ndarray, np.ndarray]:
    """Score (N, D) and log density (N,) of the program as the engines see it."""
    args = backend.arguments(target, level, seed)
    if backend is numpyro_fits:
        program = numpyro_target.LogDensity(backend.program, jax.random.key(0), args)
        found = program.score(jnp.asarray(points), program.bind(*args))
    else:
        program = pyro_target.LogDensity(backend.program, args)
        assert program.evaluation == "graph"
        found = program.score(torch.tensor(points), program.bind(*args))
    value = found.log_prior + found.log_likelihood
    return np.asarray(found.score), np.asarray(value)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.BACKEND)
def test_program_has_the_target_s_density_and_score(backend: ModuleType) -> None:
    target = a_mixture()
    points = points_of(target)
    for level in (None, 0.0):
        score, value = score_of(backend, target, points, level)
        np.testing.assert_allclose(score, target.score(points), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(value, target.log_density(points), rtol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.BACKEND)
def test_noise_has_the_stated_variance_and_is_new_everywhere(backend: ModuleType) -> None:
    target, level = a_mixture(2, 3), 0.7
    points = points_of(target, 20_000)
    # Every second point lies so near the one before it that both differ in their last bits only.
    points[1::2] = points[::2] * (1 + 1e-15)
    score, value = score_of(backend, target, points, level)
    exact = target.score(points)
    np.testing.assert_allclose(value, target.log_density(points), rtol=1e-10)
    noise = (score - exact) / (level * np.abs(exact).max(1, keepdims=True))
    error = 1 / math.sqrt(len(points))
    assert (np.abs(noise.mean(0)) < 4 * error).all()
    moments = noise.T @ noise / len(points)
    assert (np.abs(moments - np.eye(3)) < 4 * error * math.sqrt(2)).all()
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-3
    between = noise[::2].T @ noise[1::2] / (len(points) / 2)
    assert (np.abs(between) < 4 * error * math.sqrt(2)).all()
    # Other seeds have other noise; a seed has the same noise at a point whenever it is asked.
    again, _ = score_of(backend, target, points, level)
    np.testing.assert_array_equal(score, again)
    other, _ = score_of(backend, target, points, level, SEED + 1)
    others = (other - exact) / (level * np.abs(exact).max(1, keepdims=True))
    assert (np.abs((noise * others).mean(0)) < 4 * error).all()


def test_noise_is_that_of_the_estimator() -> None:
    """The program's noise and that of ``Noisy`` have one size at a fixed point."""
    target, level = a_mixture(2, 3), 0.7
    point = points_of(target, 1)
    args = numpyro_fits.arguments(target, None, SEED)
    program = numpyro_target.LogDensity(numpyro_fits.program, jax.random.key(0), args)
    data = program.bind(*args)
    estimator = Noisy(level=level)
    state = estimator.init(program, data, jax.random.key(1), 1)
    found, _ = estimator.estimate(program, state, jnp.repeat(jnp.asarray(point), 20_000, 0), data)
    theirs = (np.asarray(found.score) - target.score(point)).std(0)
    near = point * (1 + 1e-12 * np.random.default_rng(0).normal(size=(20_000, 3)))
    ours = (score_of(numpyro_fits, target, near, level)[0] - target.score(near)).std(0)
    np.testing.assert_allclose(ours, theirs, rtol=4 * 2 / math.sqrt(2 * 20_000))


def test_noise_reaches_the_host_s_svi_and_leaves_second_derivatives() -> None:
    target = a_mixture(1, 2)
    point = points_of(target, 1)[0]
    noisy, exact = (numpyro_fits.arguments(target, level, SEED) for level in (0.5, None))

    def log_density(theta: jax.Array, args: tuple[jax.Array, ...]) -> jax.Array:
        from numpyro.infer.util import log_density

        return log_density(numpyro_fits.program, args, {}, {"theta": theta})[0]

    slope = jax.grad(log_density)
    difference = slope(point, noisy) - slope(point, exact)
    size = 0.5 * np.abs(target.score(point[None])).max()
    expected = size * numpyro_fits.white_noise(jnp.asarray(point), jnp.uint32(SEED))
    np.testing.assert_allclose(difference, expected, rtol=1e-10)
    curvature = jax.hessian(log_density)
    np.testing.assert_allclose(curvature(point, noisy), curvature(point, exact), rtol=1e-10)
    # Pyro: gradient of its ELBO in the guide's location, which holds the score unchanged.
    args = pyro_fits.arguments(target, 0.5, SEED)
    guide = pyro_fits.make_guide(
        Case("a", "a", 2, 1, 1, (), 10), Method("ADVI", "advi"), args, SEED
    )
    torch.manual_seed(5)
    PyroTraceELBO().differentiable_loss(pyro_fits.program, guide, *args).backward()
    torch.manual_seed(5)
    theta = guide.get_posterior().rsample().detach()
    score = pyro_fits.score(theta, *args[:3])
    held = score + 0.5 * score.abs().max() * pyro_fits.white_noise(theta, torch.tensor(SEED))
    torch.testing.assert_close(guide.loc.grad, -held)


# -- runs -------------------------------------------------------------------------------------


def test_iterations_to_look_at() -> None:
    found = experiments.iterations_to_look_at(1000, 2, 20)
    assert found[0] == 1 and found[-1] == 500 and found == sorted(set(found))
    assert experiments.iterations_to_look_at(1, 2, 20) == [1]
    assert experiments.iterations_to_look_at(5, 1, 1000) == [1, 2, 3, 4, 5]


def small_case(methods: Sequence[Method], **options: object) -> Case:
    settings: dict[str, object] = {"guide_order": 1, "budget": 60, "points": 5}
    settings |= {"target_order": 2, **options}
    return Case("small", "small target", 2, methods=tuple(methods), **settings)  # type: ignore


@pytest.mark.parametrize(
    "backend",
    [pytest.param(numpyro_fits, marks=pytest.mark.slow), pyro_fits],
    ids=lambda b: b.BACKEND,
)
def test_every_method_runs_from_one_start_on_one_budget(
    backend: ModuleType, tmp_path: Path
) -> None:
    untuned = [*experiments.fisher((1e-2,)), Method("ADVI", "advi", rates=(1e-2,))]
    methods = [experiments.OURS, experiments.REGRESSION, experiments.GSM, experiments.BAM]
    case = small_case([*methods, *untuned], target_order=1, noise=0.1)
    experiment = Experiment("tiny", "tiny", (case,))
    found = runs.run_case(Study("synthetic", tmp_path), experiment, case, backend, [0])
    assert [record.error for record in found] == [None] * len(case.methods)
    starts = {record.figures[FORWARD][0] for record in found}
    np.testing.assert_allclose(list(starts), starts.pop(), rtol=1e-12)
    expected = normal(case.start(0), np.eye(2))
    assert found[0].figures[FORWARD][0] == pytest.approx(
        normal_divergence(case.target(0), expected), rel=1e-9
    )
    for record in found:
        evaluations = record.figures["evaluations"]
        # As many whole iterations as the budget pays for.
        size = runs.evaluations_per_iteration(record)
        assert size and size < case.budget // 4
        assert evaluations[0] == 0 and evaluations[-1] == case.budget // size * size
        assert record.figures[FORWARD][-1] != record.figures[FORWARD][0]
    # Two draws an iteration for the two Gaussian methods, one for Fisher, Score and ADVI.
    sizes = [runs.evaluations_per_iteration(record) for record in found]
    assert sizes[2:] == [2, 2, 1, 1, 1]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.BACKEND)
def test_mixture_guides_start_alike_in_ours_and_in_the_host_s_svi(
    backend: ModuleType, tmp_path: Path
) -> None:
    advi = Method("ADVI", "advi", rates=(1e-2,))
    case = small_case([experiments.OURS, advi], guide_order=2, budget=4)
    experiment = Experiment("tiny", "tiny", (case,))
    found = runs.run_case(Study("synthetic", tmp_path), experiment, case, backend, [1])
    assert [record.error for record in found] == [None, None]
    first, second = (record.figures[FORWARD][0] for record in found)
    assert first == pytest.approx(second, rel=1e-12)
    assert all(error > 0 for error in found[0].figures[runs.STANDARD_ERROR])


def test_a_fit_that_is_not_finite_is_a_failure() -> None:
    seen: list[int] = []
    fit = a_mixture()
    show(lambda evaluations, _: seen.append(evaluations), 4, fit)
    broken = dataclasses.replace(fit, means=fit.means * np.nan)
    with pytest.raises(Diverged, match="after 8 score evaluations"):
        show(lambda evaluations, _: seen.append(evaluations), 8, broken)
    singular = dataclasses.replace(fit, scale_trils=fit.scale_trils * 0.0)
    with pytest.raises(Diverged):
        show(lambda evaluations, _: seen.append(evaluations), 9, singular)
    assert seen == [4]


def test_command_records_failures_goes_on_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        def __init__(self, *args: object, **options: object) -> None:
            raise ArithmeticError("no luck")

    monkeypatch.setitem(numpyro_fits.ENGINES, "gsm", Broken)
    case = small_case([experiments.GSM, experiments.REGRESSION], target_order=1)
    noisy = dataclasses.replace(
        case, name="noisy", title="small, level 0.1", noise=0.1, measure=ELBO_GAP
    )
    tiny = {
        "fig1": Experiment("fig1", "Tiny", (case,)),
        "noise": Experiment("noise", "Tiny noise", (noisy,)),
    }
    monkeypatch.setattr(experiments, "all_experiments", lambda quick=False: tiny)
    numpyro_fits._fitter.cache_clear()
    arguments = ["synthetic", "--seeds", "2", "--out", str(tmp_path)]
    assert command_line.main(arguments) == 0
    numpyro_fits._fitter.cache_clear()
    found = records.read(tmp_path / "synthetic.jsonl")
    assert len(found) == 8
    assert {r.error for r in found if r.method == "GSM"} == {"ArithmeticError: no luck"}
    kept = [r for r in found if r.method == "Ours, regression"]
    assert all(r.error is None and r.settings["float64"] for r in kept)
    assert [r.seed for r in kept] == [0, 1, 0, 1]
    assert {r.settings["noise"] for r in kept} == {None, 0.1}
    text = (tmp_path / "synthetic.md").read_text()
    assert "ArithmeticError: no luck" in text and "| small " in text
    for name in ("fig1", "noise"):
        assert (tmp_path / f"synthetic_{name}_numpyro.png").stat().st_size > 5000
    # From the records alone the same tables come again.
    assert command_line.main([*arguments, "--redraw"]) == 0
    assert text.startswith((tmp_path / "synthetic.md").read_text().rstrip())
    assert len(records.read(tmp_path / "synthetic.jsonl")) == 8
    assert "noisy" in capsys.readouterr().out


# -- tables and plots -------------------------------------------------------------------------


def made_up(
    method: str, seed: int, values: Sequence[float], rate: float | None = None, **more: object
) -> Record:
    """A run whose forward KL took these values, after 0, 2, 4, ... evaluations."""
    figures: dict[str, object] = {
        "evaluations": list(range(0, 2 * len(values), 2)),
        FORWARD: list(values),
        runs.STANDARD_ERROR: [1e-3] * len(values),
        ELBO_GAP: list(values),
    }
    settings = {"rate": rate, "experiment": "fig2", "budget": 8}
    return Record("synthetic", method, "NumPyro", "small", seed, settings, figures, 1.0, **more)


def test_cases_and_methods_can_be_chosen() -> None:
    fig2 = experiments.all_experiments()["fig2"]
    assert tuple(selected(fig2, None, None)) == fig2.cases
    (chosen,) = selected(fig2, ["order-5"], ["ADVI", "GSM"])
    assert chosen.name == "order-5" and [each.name for each in chosen.methods] == ["ADVI", "GSM"]
    assert not list(selected(fig2, None, ["Fisher"]))


def test_failed_runs_count_as_infinite_and_the_best_rate_is_taken() -> None:
    advi = Method("ADVI", "advi", rates=(1e-1, 1e-2))
    case = small_case([advi])
    broken = {"error": "Diverged: no"}
    found = [
        made_up("ADVI", 0, [5.0, 1.0, 1e-3], 1e-1),
        made_up("ADVI", 1, [5.0], 1e-1, **broken),
        made_up("ADVI", 2, [5.0], 1e-1, **broken),
        made_up("ADVI", 0, [5.0, 1.0, 0.5], 1e-2),
        made_up("ADVI", 1, [5.0, 1.0, 0.3], 1e-2),
        made_up("ADVI", 2, [5.0, 1.0, math.nan], 1e-2),
        made_up("GSM", 0, [0.0, 0.0, 0.0]),
    ]
    assert runs.final(found[1], FORWARD) == math.inf
    assert runs.final(found[5], FORWARD) == math.inf
    assert runs.median_final(found[:3], FORWARD) == math.inf
    assert runs.median_final(found[3:5], FORWARD) == pytest.approx(0.4)
    assert runs.median_final(found[2:4], FORWARD) == math.inf
    chosen = runs.chosen_runs(found, case, advi)
    assert [record.settings["rate"] for record in chosen] == [1e-2] * 3
    assert runs.evaluations_below(found[0], 2.0) == 2.0
    assert runs.evaluations_below(found[0], 1e-4) == math.inf
    assert runs.evaluations_per_iteration(found[0]) == 2
    assert runs.evaluations_per_iteration(found[1]) is None


def test_plots_of_runs_that_failed(tmp_path: Path) -> None:
    case = small_case([experiments.OURS, experiments.GSM], measure=ELBO_GAP)
    found = [
        made_up("Ours", 0, [5.0, 1.0, 1e-3]),
        made_up("Ours", 1, [4.0, 1.0, -1e-4]),
        made_up("GSM", 0, [5.0, math.inf], error="Diverged: no"),
        made_up("GSM", 1, [], error="Diverged: no"),
    ]
    figure = Experiment("fig2", "Made up", (case, dataclasses.replace(case, paper=(("GSM", "2"),))))
    plots.trajectories(figure, found, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 5000


def test_experiments_are_those_of_the_paper() -> None:
    found = experiments.all_experiments()
    assert list(found) == ["fig1", "fig2", "table7", "table8", "alpha", "samples", "noise"]
    quick = experiments.all_experiments(quick=True)
    for name, experiment in found.items():
        names = [case.name for case in experiment.cases]
        assert len(set(names)) == len(names)
        for case, less in zip(experiment.cases, quick[name].cases, strict=False):
            assert less.budget == case.budget // 5
    levels = {case.noise for case in found["noise"].cases}
    assert levels == {0.0, 0.1, 0.3, 1.0, 3.0, 10.0}
    # A noise level, a name or a number of looks compiles nothing anew; a budget does.
    first, second, *_ = found["noise"].cases
    assert first.shape() == second.shape()
    assert first.shape() != dataclasses.replace(first, budget=7).shape()
    assert first.shape() != found["fig1"].cases[0].shape()
