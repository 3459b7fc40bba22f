"""The posteriordb benchmark: figures, starts, runs with both backends, and what goes wrong."""

from __future__ import annotations

import argparse
import math
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import pyro_ext as px
from benchmarks import records
from benchmarks.__main__ import build_parser, main
from benchmarks.posteriordb import figures, numpyro_fits, pyro_fits, report, runner
from benchmarks.posteriordb.database import EMBEDDED, Database, DatabaseError
from benchmarks.posteriordb.methods import (
    COMPONENTS,
    METHODS,
    Draws,
    Floats,
    Method,
    WholeFitter,
    after_warm_up,
    check_noise,
    cost_of,
    looks,
    sweeps_of,
)
from benchmarks.records import Record
from benchmarks.trust.report import costs
from ppl_ext.start.start import Mode, Start

# As the benchmark's own backends do.
jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

MEAN = np.array([1.0, -2.0, 0.5])
COVARIANCE = np.array([[0.04, 0.03, 0.0], [0.03, 0.09, -0.1], [0.0, -0.1, 1.0]])


class Normal:
    """A Normal density as a program; its parameters are the position and its exponential."""

    dim = 3

    def log_density(self, z: Floats) -> Floats:
        apart = z - MEAN
        found: Floats = -0.5 * np.einsum("ni,ij,nj->n", apart, np.linalg.inv(COVARIANCE), apart)
        return found

    def value_and_score(self, z: Floats) -> tuple[Floats, Floats]:
        return self.log_density(z), (MEAN - z) @ np.linalg.inv(COVARIANCE)

    def parameters(self, z: Floats) -> dict[str, Floats]:
        return {"x": z, "scale": np.exp(z[:, 0])}

    def positions(self, parameters: Mapping[str, Floats]) -> Floats:
        return parameters["x"]

    def coordinates(self, parameters: Collection[str]) -> list[int]:
        return [0, 1, 2] if "x" in parameters else []


def draws(number: int, seed: int) -> Floats:
    return np.random.default_rng(seed).multivariate_normal(MEAN, COVARIANCE, number)


def log_normal(z: Floats) -> Floats:
    """The normalised density of the target."""
    constant = 0.5 * np.linalg.slogdet(2.0 * np.pi * COVARIANCE)[1]
    return Normal().log_density(z) - constant


# -- figures --------------------------------------------------------------------------------------


def reference() -> figures.Reference:
    chains = draws(4000, 0).reshape(4, 1000, 3)
    return figures.Reference.of({"x": chains})


def test_draws_of_the_reference_itself_are_right() -> None:
    found = figures.against_reference({"x": draws(4000, 1)}, reference())
    assert found["right"]
    # Both sides have 4,000 draws: 4 standard errors of a difference of means.
    assert found["worst mean error"] < 4.0 * np.sqrt(2.0 / 4000)
    assert found["sliced Wasserstein"] < 0.1


def test_errors_are_in_standard_deviations_of_the_reference() -> None:
    z = draws(4000, 1)
    # The second coordinate alone is moved by half of its standard deviation and widened.
    z[:, 1] = MEAN[1] + 0.5 * 0.3 + 1.5 * (z[:, 1] - MEAN[1])
    found = figures.against_reference({"x": z}, reference())
    assert found["worst parameter"] == "x[2]"
    assert found["worst mean error"] == pytest.approx(0.5, abs=4.0 * 1.8 / np.sqrt(4000))
    assert found["greatest sd ratio"] == pytest.approx(1.5, rel=0.07)
    assert found["least sd ratio"] == pytest.approx(1.0, rel=0.07)
    assert not found["right"]


class Logarithm(Normal):
    """The same with the exponential as its parameter, so that coordinates are no parameters."""

    def parameters(self, z: Floats) -> dict[str, Floats]:
        return {"x": np.exp(z)}

    def positions(self, parameters: Mapping[str, Floats]) -> Floats:
        return np.log(parameters["x"])


def test_marginals_in_unconstrained_space_count() -> None:
    """A left tail that is cut shows in the logarithm, and hardly in the parameter."""
    program = Logarithm()
    chains = np.exp(3.0 * draws(8000, 0).reshape(4, 2000, 3))
    found = figures.Reference.of({"x": chains})
    z = 3.0 * draws(4000, 1)
    cut = np.maximum(z, np.quantile(z, 0.1, axis=0))
    own, true = figures.coordinates(program, z, found)
    assert list(own) == list(true) == [f"unconstrained {i}" for i in (1, 2, 3)]
    np.testing.assert_allclose(true["unconstrained 2"], 3.0 * draws(8000, 0)[:, 1])
    assert figures.along(program, Draws(z), found)["right"]
    assert not figures.along(program, Draws(cut), found)["right"]
    # Of sites that are parameters nothing is told twice.
    assert figures.coordinates(Normal(), z, reference()) == ({}, {})


def test_wasserstein_distance_of_a_shift() -> None:
    moved = reference().parameters["x"] + np.sqrt(np.diag(COVARIANCE))
    found = figures.against_reference({"x": moved}, reference())
    # One standard deviation in each of three coordinates: |u . 1| on average over directions u.
    directions = np.random.default_rng(1).normal(size=(100_000, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    expected = np.abs(directions.sum(1))
    error = 4.0 * expected.std() / np.sqrt(figures.SLICES)
    assert found["sliced Wasserstein"] == pytest.approx(expected.mean(), abs=error)


def test_a_fit_without_the_reference_parameters_is_told() -> None:
    with pytest.raises(KeyError, match=r"expected the reference's parameters, found no x\[1\]"):
        figures.against_reference({"y": draws(10, 0)}, reference())


def test_fits_that_are_not_finite_have_figures() -> None:
    found = figures.along(Normal(), Draws(np.full((20, 3), np.nan), np.zeros(20)), reference())
    assert not found["worst mean error"] < 1e6 and found["negative ELBO"] == np.inf


def test_bound_of_the_target_itself_and_of_a_wide_guide() -> None:
    z = draws(4000, 1)
    exact = figures.bound(Normal(), Draws(z, log_normal(z)))
    constant = 0.5 * np.linalg.slogdet(2.0 * np.pi * COVARIANCE)[1]
    assert exact["negative ELBO"] == pytest.approx(-constant, abs=1e-9)
    assert exact["k-hat"] == -np.inf
    # Of a guide with half the standard deviations the ratios have a heavy tail.
    narrow = MEAN + 0.5 * (z - MEAN)
    log_q = log_normal(z) + 3.0 * np.log(2.0)
    found = figures.bound(Normal(), Draws(narrow, log_q))
    # KL of a Normal with covariance C / 4 from one with C, in three dimensions.
    divergence = 0.5 * (3.0 / 4.0 - 3.0 + 3.0 * np.log(4.0))
    assert found["negative ELBO"] + constant == pytest.approx(
        divergence, abs=4.0 * found["its error"]
    )
    assert found["k-hat"] > 0.5
    # No draw of a guide is a million nats less likely than another: that is rounding.
    burst = figures.bound(Normal(), Draws(z, np.where(np.arange(4000) == 7, -1e6, log_q)))
    assert burst["negative ELBO"] == burst["its error"] == burst["k-hat"] == np.inf


@pytest.mark.parametrize("log_q", [None, np.zeros(1500)], ids=["particles", "guide"])
def test_stein_discrepancy_is_of_units_of_the_reference(log_q: Floats | None) -> None:
    """The U-statistic is that of guides, whose draws are independent; some rows stand for all."""
    z = draws(1500, 1)
    found = figures.at_the_end(Normal(), Draws(z, log_q), reference())
    rows = np.unique(np.linspace(0, 1499, figures.STEIN_DRAWS).astype(int))
    factor = np.linalg.cholesky(np.cov(reference().parameters["x"].T))
    score = Normal().value_and_score(z[rows])[1]
    assert found["KSD"] == figures.in_units(z[rows], score, factor, log_q is not None)
    # The diagonal, which is positive, makes the V-statistic the larger one.
    u, v = (figures.in_units(z[rows], score, factor, guide) for guide in (True, False))
    assert v > 0.0 and u < 0.9 * v
    # Neither depends on the coordinates that the program is written in.
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3))).Q * [1.0, 30.0, 0.1]
    other = figures.in_units(
        z[rows] @ turned.T, score @ np.linalg.inv(turned), turned @ factor, True
    )
    assert other == pytest.approx(u, rel=1e-9)
    assert figures.in_units(z, np.full_like(z, np.nan), factor, True) == math.inf


def test_units_of_stein_discrepancies_are_the_same_for_all_fits() -> None:
    """Of the start where there is no reference: a fit's own would hide that it is too narrow."""
    begin = Start((Mode(np.zeros(3), np.diag([1.0, 2.0, 3.0]), 0.0, 0.0),), 0)
    z = draws(100, 1)
    found = figures.stein_units(Normal(), z, reference(), begin)
    np.testing.assert_allclose(found, np.linalg.cholesky(np.cov(reference().parameters["x"].T)))
    assert figures.stein_units(Normal(), z, None, begin) is begin.factor
    own = figures.stein_units(Normal(), z, None, None)
    np.testing.assert_allclose(own, np.diag(z.std(0)))
    assert figures.stein_units(Normal(), np.zeros((5, 3)), None, None) is None
    # Of many dimensions a start has deviations alone.
    long = Start((Mode(np.zeros(3), np.array([1.0, 2.0, 3.0]), 0.0, 0.0),), 0)
    np.testing.assert_allclose(figures.stein_units(Normal(), z, None, long), begin.factor)


def test_stein_discrepancy_prefers_the_fit_that_is_nearer() -> None:
    """A shift along the narrow direction hid a larger one along the wide direction."""
    covariance = np.array([[1.0, 0.99], [0.99, 1.0]])
    factor, precision = np.linalg.cholesky(covariance), np.linalg.inv(covariance)
    z = np.random.default_rng(0).normal(size=(500, 2)) @ factor.T
    wide, narrow = (np.array(way) / math.sqrt(2.0) for way in ([1.0, 1.0], [1.0, -1.0]))
    far = z + 0.8 * math.sqrt(1.99) * wide
    near = z + 0.5 * math.sqrt(0.01) * narrow

    def discrepancy(at: Floats, units: Floats) -> float:
        return figures.in_units(at, -at @ precision, units, False)

    assert discrepancy(near, factor) < discrepancy(far, factor)
    # In units of the coordinates it is the other way round.
    assert discrepancy(near, np.eye(2)) > discrepancy(far, np.eye(2))


# -- starts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [numpyro_fits, pyro_fits], ids=["numpyro", "pyro"])
def test_starts_are_the_librarys_and_the_same_for_a_seed(backend: Any) -> None:
    backend.configure()
    program = backend.native("blr", Database.open("embedded")["blr_simulated-blr"].data())
    one, two, three = (program.start(seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.mean, two.mean)
    assert one.evaluations == two.evaluations > 0
    # Another seed has other paths, which end at the same mode.
    assert not np.array_equal(one.mean, three.mean)
    np.testing.assert_allclose(one.mean, three.mean, atol=0.3 * one.modes[0].deviations.max())


def test_nutpie_keeps_to_the_budget_and_is_right() -> None:
    """The chain of a Poisson regression: draws after the budget are none."""
    pytest.importorskip("nutpie")
    numpyro_fits.configure()
    posterior = Database.open("embedded")["glm_poisson_simulated-GLM_Poisson_model"]
    program = numpyro_fits.native(posterior.model_name, posterior.data())
    fitter = numpyro_fits.fitter(program, METHODS["nutpie"], 8_000, 0.0)
    found: list[tuple[int, float, Any]] = []

    def look(spent: int, seconds: float, draws: Any) -> bool:
        found.append((spent, seconds, draws(0)))
        return False

    fitter.fit(0, None, None, [10, 4_000, 8_000], look)
    (half, sooner, few), (whole, later, many) = found
    assert (half, whole) == (4_000, 8_000) and 0.0 < sooner < later
    np.testing.assert_array_equal(few.z, many.z[: len(few.z)])
    assert len(few.z) < len(many.z) < 8_000
    reference = figures.Reference.of(posterior.reference_draws())
    at_end = figures.at_the_end(program, many, reference, None)
    assert at_end["right"]


@pytest.mark.parametrize("method", ["pathfinder", "nutpie-low-rank"])
def test_peers_tell_what_they_take_to_effective_draws(method: str) -> None:
    """On a regression, by resampled draws and by chains: what is recorded gives a cost."""
    pytest.importorskip("nutpie" if method == "nutpie-low-rank" else "blackjax")
    numpyro_fits.configure()
    posterior = Database.open("embedded")["arK_simulated-arK"]
    program = numpyro_fits.native(posterior.model_name, posterior.data())
    assert isinstance(numpyro_fits.fitter(program, METHODS[method], 1, 0.0), WholeFitter)
    spent, drawn = numpyro_fits.peer(program, method, 0, 0.02)
    chains = 0 if method == "pathfinder" else 4
    assert drawn.chains == chains and drawn.before is not None and 0 < drawn.before < spent
    reference = figures.Reference.of(posterior.reference_draws())
    found = figures.at_the_end(program, drawn, reference)
    assert found["warm-up"] == drawn.before and 4.0 < found["bulk ESS"] <= 3.0 * len(drawn.z)
    settings = {"route": "native"}
    found |= {"right": True, "evaluations": spent}
    record = Record("posteriordb", method, "numpyro", posterior.name, 0, settings, found)
    expected = drawn.before + (spent - drawn.before) * 400.0 / found["bulk ESS"]
    (row,) = costs([record])
    assert row["evaluations to 400"] == pytest.approx(expected)
    assert row["method"] == method and row["precision"] == "double"


def test_draws_of_chains_and_resampled_ones_are_counted_apart() -> None:
    generator = np.random.default_rng(0)
    draws = generator.normal(size=400)
    # Each twice: as chains two that are alike, resampled as good as 400.
    assert figures.effective(np.repeat(draws, 2), 0) == 400.0
    assert figures.effective(np.repeat(draws, 2), 1) < 500.0
    apart = np.concatenate([draws, draws + 10.0])
    assert figures.effective(apart, 2) < 10.0
    assert figures.effective(np.ones(10), 2) == np.inf


# -- the plan -------------------------------------------------------------------------------------


def test_looks_double_and_end_with_the_budget() -> None:
    assert looks(1000) == [50, 100, 200, 400, 800, 1000]
    assert looks(40) == [40]


def options(*words: str) -> argparse.Namespace:
    return build_parser("posteriordb").parse_args(["posteriordb", *words])


def test_patterns_choose_posteriors_and_appendix_b_its_own() -> None:
    database = Database.open("embedded")
    plan = runner.Plan.of(options("--posteriors", "eight*", "--methods", "all"), database)
    assert plan.posteriors == (
        "eight_schools-eight_schools_centered",
        "eight_schools-eight_schools_noncentered",
    )
    assert tuple(plan.methods) == tuple(METHODS)
    rates = sum(len(method.rates) for method in METHODS.values())
    assert runner.number_of_runs(plan) == 2 * rates
    plan = runner.Plan.of(options("--appendix-b", "--posteriors", "arK*"), database)
    assert plan.noise == runner.APPENDIX_NOISE and plan.seeds == runner.APPENDIX_SEEDS
    assert "GSM" in plan.methods and "SVN" not in plan.methods


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--posteriors", "eight_school"], "near names: eight_schools"),
        (["--database", "/nowhere"], "no such folder"),
    ],
)
def test_what_cannot_be_begun_is_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["posteriordb", "--out", str(tmp_path / "out")]
    if "--database" not in words:
        base += ["--database", "embedded"]
    assert main([*base, *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and said in lines[0]
    assert not (tmp_path / "out").exists()


def test_what_a_gradient_is_charged() -> None:
    assert cost_of(METHODS["ProximalScoreVI, full"], 7, None) == (0.0, 1.0)
    assert cost_of(METHODS["FisherVI"], 7, None) == (0.0, 2.0)
    every_step = Method("SVN", "particles")
    assert cost_of(every_step, 7, 3) == (0.0, 4.0)
    # Seven products with a Hessian, each of two scores, and the score itself.
    assert cost_of(every_step, 7, None) == (0.0, 15.0)
    # One to five steps with one curvature, and the sixth with the next.
    start, step = cost_of(METHODS["SVN"], 7, 10)
    taken = [start + steps * step for steps in (1, 5, 6)]
    assert METHODS["SVN"].options["curvature"].every == 5
    assert taken == pytest.approx([1 + 10, 23.0, 6 + 2 * 10])
    # Row by row one sweep for each output of a row; without rows one for each output of all.
    assert sweeps_of(1, 0, 7) == 1 and sweeps_of(0, 100, 7) == 7 and sweeps_of(16, 2, 7) == 9


@pytest.mark.parametrize("kind", ["diagonal", "full", "mixture"])
@pytest.mark.parametrize("backend", [numpyro_fits, pyro_fits], ids=["numpyro", "pyro"])
def test_guides_begin_at_the_start(backend: Any, kind: str) -> None:
    backend.configure()
    program = backend.native("blr", Database.open("embedded")["blr_simulated-blr"].data())
    generator = np.random.default_rng(0)
    factor = np.tril(generator.normal(size=(6, 6)), -1) + np.diag(np.geomspace(0.01, 3.0, 6))
    begin = Start((Mode(generator.normal(size=6), factor, 0.0, 0.0),), 0)
    if backend is numpyro_fits:
        method = METHODS[f"ProximalScoreVI, {kind}"]
        fitter = numpyro_fits.EngineFitter(program, method, 100, 0.0)
        state = fitter.engine.init(jax.random.key(0), start=begin)
        z = fitter._draws(state, 40_000).z
    else:
        # Guides of the host's own are put to the start by the benchmark.
        hosts = kind != "mixture"
        guide = pyro_fits.make_guide(kind, program.model, begin if hosts else None)
        engine = px.ProximalScoreVI(program.model, guide, seed=0)
        engine.setup(start=None if hosts else begin)
        found = engine.density.live_parameters()
        drawn = engine.density.sample(found, torch.Generator().manual_seed(0), 40_000)
        z = drawn.detach().numpy()
    mean, covariance = begin.mean, factor @ factor.T
    if kind == "diagonal":
        covariance = np.diag(begin.modes[0].conditional_deviations ** 2)
    if kind == "mixture":
        # One component at the mode, the others at draws.
        centres = np.concatenate([[begin.mean], begin.draw(COMPONENTS)[1:]])
        mean = centres.mean(0)
        covariance = covariance + np.cov(centres.T, bias=True)
    # White but for Monte Carlo error, in all directions alike.
    white = np.linalg.solve(np.linalg.cholesky(covariance), (z - mean).T)
    np.testing.assert_allclose(white.mean(1), 0.0, atol=0.05)
    np.testing.assert_allclose(np.cov(white), np.eye(6), atol=0.06)


@pytest.mark.parametrize("backend", [numpyro_fits, pyro_fits], ids=["numpyro", "pyro"])
def test_sweeps_of_a_newton_step(backend: Any) -> None:
    """As many as dimensions, but one by one for rows that the program can take by themselves."""
    backend.configure()
    posterior = Database.open("embedded")["blr_simulated-blr"]
    whole = backend.native("blr", posterior.data())
    assert backend.newton_sweeps(whole) == whole.dim == 6
    make = backend.numpyro_program if backend is numpyro_fits else backend.pyro_program
    model = partial(make("blr"), posterior.data(), subsample_size=10)
    by_row = backend.NativeProgram(model, backend.site_map("blr"))
    assert backend.newton_sweeps(by_row) == 1


@pytest.mark.parametrize("backend", [numpyro_fits, pyro_fits], ids=["numpyro", "pyro"])
def test_advi_runs_on_scores_with_noise(backend: Any) -> None:
    """Sites of the program inside are not sites of the one that has the noise."""
    backend.configure()
    program = backend.native("blr", Database.open("embedded")["blr_simulated-blr"].data())
    fitter = backend.fitter(program, METHODS["ADVI, full"], 10, 0.1)
    found: list[Floats] = []

    def look(spent: int, seconds: float, draws: Any) -> bool:
        found.append(draws(5).z)
        return False

    fitter.fit(0, 0.01, None, [5, 10], look)
    assert [z.shape for z in found] == [(5, 6)] * 2 and not np.allclose(*found)


def test_noise_is_refused_where_it_has_no_meaning() -> None:
    with pytest.raises(ValueError, match="NUTS needs exact scores"):
        check_noise(METHODS["NUTS"], 0.1)
    check_noise(METHODS["SVN"], 0.1)
    with pytest.raises(SystemExit):
        options("--noise", "-1")


def test_posteriors_of_one_name_in_two_databases_are_told_apart(tmp_path: Path) -> None:
    folder = tmp_path / "posterior_database"
    shutil.copytree(EMBEDDED, folder)
    data = folder / "data" / "data"
    shutil.copy(data / "garch_simulated.json.zip", data / "arK_simulated.json.zip")
    name = "arK_simulated-arK"
    ours, again, other = (
        runner.digest(database[name].data(), database[name].reference_draws())
        for database in map(Database.open, ("embedded", "embedded", folder))
    )
    assert ours == again
    assert ours != other


# -- evaluations and seconds ----------------------------------------------------------------------


def test_evaluations_are_steps_times_their_cost() -> None:
    """In whole steps that fit, after those that were spent; a look that says so ends the run."""
    seen: list[tuple[int, int]] = []

    def look(evaluations: int, seconds: float, drawn: Any) -> bool:
        seen.append((evaluations, int(drawn(1).z[0, 0])))
        return evaluations > 300

    def drawn(state: Any, number: int) -> Draws:
        return Draws(np.full((number, 1), float(state)))

    advance = numpyro_fits.repeated(lambda state: state + 1)
    points = [50, 100, 200, 400, 800]
    numpyro_fits.follow(advance, jnp.asarray(0), 15.0, 70, points, look, drawn)
    # 30, 130 and 330 evaluations are left for steps of 15 each.
    assert seen == [(100, 2), (190, 8), (400, 22)]
    assert pyro_fits.steps_of(points, 70, 15.0) == [2, 8, 22, 48]


@pytest.mark.parametrize("backend", ["numpyro", "pyro"])
def test_seconds_end_a_run_at_its_next_look(backend: str, tmp_path: Path) -> None:
    words = ["posteriordb", "--database", "embedded", "--posteriors", "blr*", "--budget", "800"]
    words += ["--methods", "GSM", "--start", "host", "--backend", backend]
    assert main([*words, "--seconds", "0", "--out", str(tmp_path)]) == 0
    (record,) = records.read(tmp_path / "posteriordb.jsonl")
    # The first look, at 50 evaluations of two draws a step.
    assert record.figures["curves"]["evaluations"] == [50]


# -- whole runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["numpyro", "pyro"])
def test_chains_find_a_posterior_and_are_charged_each_step(backend: str, tmp_path: Path) -> None:
    words = ["posteriordb", "--database", "embedded", "--posteriors", "blr*", "--budget", "8000"]
    words += ["--backend", backend, "--out", str(tmp_path), "--methods", "SGHMC"]
    assert main(words) == 0
    runs = records.read(tmp_path / "posteriordb.jsonl")
    assert [run.settings["rate"] for run in runs] == [0.5, 0.25]
    # Correlated draws: about two hundred independent ones.
    assert runs[0].figures["worst mean error"] < 0.3
    assert 0.8 < runs[0].figures["least sd ratio"] < runs[0].figures["greatest sd ratio"] < 1.2
    spent = runs[0].figures["start evaluations"]
    assert runs[0].figures["evaluations"] == spent + (8000 - spent) // 10 * 10


def test_the_first_quarter_of_chains_is_their_warm_up() -> None:
    positions = np.arange(80.0)[:, None, None] + np.zeros((80, 3, 1))
    kept = after_warm_up(positions)
    assert kept.shape == (180, 1) and kept.min() == 20.0 and kept.max() == 79.0
    assert len(after_warm_up(np.zeros((8000, 3, 2)))) == 2048


@pytest.mark.parametrize("backend", ["numpyro", "pyro"])
def test_a_run_finds_a_posterior_and_is_resumed(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    words = ["posteriordb", "--database", "embedded", "--posteriors", "blr*", "--budget", "600"]
    words += ["--backend", backend, "--out", str(out)]
    assert main([*words, "--methods", "ProximalScoreVI, full"]) == 0
    (first,) = records.read(out / "posteriordb.jsonl")
    assert first.error is None and first.figures["right"], first.figures
    # Pairs of draws after the start, as many as fit.
    spent = first.figures["start evaluations"]
    assert spent > 0 and first.figures["evaluations"] == spent + (600 - spent) // 2 * 2
    text = (out / "posteriordb.md").read_text()
    assert "1 of 1" in text
    page = (out / "pages" / "blr_simulated-blr.md").read_text()
    assert "forest" in page and (out / "pages" / "blr_simulated-blr-forest.png").stat().st_size
    with np.load(report.draws_path(out, first)) as kept:
        assert kept["beta"].shape[1:] == (5,)

    # What is there is kept, and what is missing is run.
    assert main([*words, "--resume", "--methods", "ProximalScoreVI, full", "GSM"]) == 0
    again = records.read(out / "posteriordb.jsonl")
    assert [record.method for record in again] == ["ProximalScoreVI, full", "GSM"]
    assert again[0].time == first.time and not again[1].failed

    # Another budget is another run; this one is spent before a hundred particles take a step.
    words[words.index("600")] = "150"
    assert main([*words, "--resume", "--methods", "SVN"]) == 1
    short = records.read(out / "posteriordb.jsonl")[-1]
    assert short.settings["budget"] == 150 and "raise --budget" in str(short.error)


def test_data_that_cannot_be_read_fail_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "posterior_database"
    shutil.copytree(EMBEDDED, folder)
    for name in ("arK_simulated", "garch_simulated"):
        path = folder / "data" / "data" / f"{name}.json.zip"
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    words = ["posteriordb", "--database", str(folder), "--out", str(tmp_path / "out")]
    words += ["--posteriors", "arK*", "blr*", "--budget", "300", "--jobs", "1"]
    assert main([*words, "--methods", "GSM"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "arK_simulated" in line]
    assert any("DatabaseError" in line for line in lines)
    failed, done = records.read(tmp_path / "out" / "posteriordb.jsonl")
    assert failed.failed and not done.failed
    assert "failed" in (tmp_path / "out" / "posteriordb.md").read_text()


def test_dense_guides_are_left_out_above_a_limit(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["posteriordb", "--database", "embedded", "--posteriors", "blr*", "--budget", "300"]
    words += ["--out", str(out), "--methods", "GSM"]
    # Six dimensions; a limit of six lets them through.
    assert main([*words, "--dense-limit", "5"]) == 0
    (left_out,) = records.read(out / "posteriordb.jsonl")
    assert left_out.figures["not run"].startswith("not run: D=6 is above 5")
    assert not left_out.failed and not list((out / "draws").glob("*"))
    text = (out / "posteriordb.md").read_text()
    assert "not run: D=6" in text and "0 of 0" in text
    assert main([*words, "--dense-limit", "5", "--resume"]) == 0
    assert len(records.read(out / "posteriordb.jsonl")) == 1
    assert main([*words, "--dense-limit", "6", "--resume"]) == 0
    assert "dimension" in records.read(out / "posteriordb.jsonl")[-1].figures
    (run,) = [r for r in records.read(out / "posteriordb.jsonl") if report.was_run(r)]
    board = report.leaderboard([run])
    assert f"| {int(run.figures['right'])} of 1 |" in " ".join(board.split())
    assert all(line in (out / "posteriordb.md").read_text() for line in board.splitlines())
    assert [name for name in METHODS if METHODS[name].dense] == [
        "ADVI, full",
        "ProximalScoreVI, full",
        "ProximalScoreVI, mixture",
        "ProximalScoreVI, gradient",
        "GSM",
        "BaM",
        "FisherVI",
    ]


def test_data_that_do_not_fit_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "posterior_database"
    shutil.copytree(EMBEDDED, folder)
    data = folder / "data" / "data"
    shutil.copy(data / "blr_simulated.json.zip", data / "arK_simulated.json.zip")
    words = ["posteriordb", "--database", str(folder), "--out", str(tmp_path / "out")]
    assert main([*words, "--posteriors", "arK*", "--methods", "GSM"]) == 1
    (record,) = records.read(tmp_path / "out" / "posteriordb.jsonl")
    assert "the data of arK_simulated-arK do not fit its program" in str(record.error)


# -- reports --------------------------------------------------------------------------------------


def made(method: str, rate: float | None, bound: float, noise: float = 0.0) -> Record:
    curves: dict[str, list[float]] = {
        "evaluations": [100, 200, 400],
        "worst mean error": [0.5, 0.05, 0.02],
        "least sd ratio": [0.5, 0.95, 0.96],
        "greatest sd ratio": [1.0, 1.0, 1.0],
        "right": [False, True, True],
        "negative ELBO": [bound + 9.0, bound + 0.4, bound],
    }
    settings = {"route": "native", "rate": rate, "budget": 400, "start": "path", "noise": noise}
    found: dict[str, Any] = {"curves": curves, "negative ELBO": bound, "right": True}
    found |= {name: curves[name][-1] for name in curves if name not in ("evaluations",)}
    return Record("posteriordb", method, "numpyro", "some", 0, settings, found)


def test_the_best_step_size_is_taken() -> None:
    runs = [made("ADVI, full", 0.1, 12.0), made("ADVI, full", 0.01, 10.0), made("GSM", None, 11.0)]
    assert [record.settings["rate"] for record in report.best_rates(runs)] == [0.01, None]
    runs[1].error = "ArithmeticError: none"
    assert report.best_rates(runs)[0].settings["rate"] == 0.1


def test_when_a_run_was_right_and_near_the_lowest_bound() -> None:
    record = made("GSM", None, 10.0)
    assert report.right_after(record) == 200.0
    assert report.arrival(record, 10.0) == 200.0
    # 0.6 nats above another's: not arrived.
    assert np.isnan(report.arrival(record, 9.4))
    record.figures["curves"]["right"] = [True, False, True]
    assert report.right_after(record) == 400.0
    record.figures["right"] = False
    assert np.isnan(report.right_after(record))


def test_a_run_that_failed_is_infinitely_far_off() -> None:
    runs = [made("GSM", None, 10.0), made("GSM", None, 10.0), made("ADVI, full", 0.1, 9.0)]
    for seed, record in enumerate(runs[:2]):
        record.seed = seed
    runs[1].error, runs[1].figures = "ArithmeticError: none", {}
    table = report.bound_table(runs)
    (line,) = [row for row in table.splitlines() if "GSM" in row]
    # Two runs, median and worst infinite, none of them within half a nat of the lowest.
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[5:9] == ["2", "inf", "inf", "0"]
    board = report.leaderboard(runs)
    (line,) = [row for row in board.splitlines() if "GSM" in row]
    assert "1 of 2" in line


def failed(method: str, model: str, error: str = "ArithmeticError: no") -> Record:
    settings = made(method, None, 0.0).settings
    found = {report.JUDGED: True}
    return Record("posteriordb", method, "numpyro", model, 0, settings, found, error=error)


def cells_of(table: str, method: str) -> dict[str, str]:
    """The cells of a method's line by their headings."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    (line,) = [line for line in lines if line and line[0] == method]
    return dict(zip(lines[0], line, strict=True))


def test_a_posterior_on_which_every_run_fails_is_counted() -> None:
    runs = [made("GSM", None, 10.0), failed("GSM", "second"), failed("GSM", "third")]
    assert cells_of(report.leaderboard(runs), "GSM")["right"] == "1 of 3"
    assert "right on **1 of 3** posteriors" in report.overview(runs)
    assert "right, of 3" in report.overview(runs)


def test_medians_count_failed_runs_as_infinitely_far_off() -> None:
    runs = [made("GSM", None, 10.0), failed("GSM", "second"), failed("GSM", "third")]
    runs += [made("SVGD", 0.1, 10.0), failed("BaM", "second")]
    for record in runs[:1]:
        record.figures |= {"k-hat": 0.1, "sliced Wasserstein": 0.2, "step seconds": 3.0}
    cells = cells_of(report.leaderboard(runs), "GSM")
    names = ("worst mean error", "sliced Wasserstein", "k-hat")
    assert [cells[name] for name in names] == ["inf"] * 3
    # Of these two the page says whose medians they are.
    assert cells["right after"] == "200" and cells["seconds"] == "3"
    assert "Medians of *right after* are of the runs that are right" in report.ABOUT
    assert cells_of(report.leaderboard(runs), "SVGD")["k-hat"] == "–"
    assert cells_of(report.leaderboard(runs), "BaM")["worst mean error"] == "inf"
    runs[2] = made("GSM", None, 11.0)
    runs[2].model = "third"
    assert cells_of(report.leaderboard(runs), "GSM")["worst mean error"] == "0.02"


def test_errors_are_told_whole_below_the_table() -> None:
    error = "ValueError: " + "a long story | of many words, " * 20 + "\nand its end."
    runs = [made("GSM", None, 10.0), failed("BaM", "some", error), failed("SVN", "some", error)]
    runs.append(made("NUTS", None, 1.0))
    runs[-1].figures = {"not run": "not run: D=900"}
    text = report.posterior_table(runs)
    table, notes = text.split("\n\n")
    assert "worst parameter" not in table or "ValueError" not in table
    assert cells_of(table, "BaM")["right"] == "failed" and "900" not in table
    first, second = notes.splitlines()
    assert " ".join(error.split()) in first
    assert first.startswith("- BaM, numpyro, native, seed 0; SVN, numpyro, native, seed 0: ")
    assert second.startswith("- NUTS") and "D=900" in second


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (6037.2137, 0.0312, "6,037.214 ± 0.031"),
        (-12.3456, 2.5, "-12.3 ± 2.5"),
        (123456.7, 345.0, "123,457 ± 345"),
        (1.5, 0.0, "1.5000 ± 0.0000"),
        (math.inf, math.inf, "inf"),
        (None, None, None),
    ],
)
def test_bounds_have_the_digits_that_their_errors_leave(
    value: float | None, error: float | None, shown: str | None
) -> None:
    assert report.with_error(value, error) == shown


def test_a_step_size_that_was_chosen_and_wrong_is_counted() -> None:
    runs = [made("SVGD", rate, 0.0) for rate in (0.1, 0.01)]
    for record, ksd in zip(runs, (0.2, 0.1), strict=True):
        del record.figures["negative ELBO"]
        record.figures["KSD"] = ksd
    assert cells_of(report.leaderboard(runs), "SVGD")["misjudged"] == "0"
    runs[1].figures["right"] = False
    cells = cells_of(report.leaderboard(runs), "SVGD")
    assert cells["misjudged"] == "1" and cells["right"] == "0 of 1"
    assert cells_of(report.leaderboard([made("GSM", None, 1.0)]), "GSM")["misjudged"] == "–"


def test_methods_have_colours_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    plt = report.pyplot()
    found = report.colours(plt)
    assert list(found) == list(METHODS) and len({tuple(c) for c in found.values()}) == len(METHODS)
    many = {f"method {i}": METHODS["GSM"] for i in range(30)}
    monkeypatch.setattr(report, "METHODS", many)
    assert len({tuple(c) for c in report.colours(plt).values()}) == 30


def test_pages_have_an_axis_for_each_parameter_and_a_mark_for_each_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plt = report.pyplot()
    kept: list[Any] = []
    monkeypatch.setattr(plt, "close", kept.append)
    generator = np.random.default_rng(0)
    columns = {"small": 1e-3 * generator.normal(size=500), "large": generator.normal(1e5, 9, 500)}
    reference = figures.Reference(columns, columns)
    fits = [
        report.Fit("GSM", "GSM (numpyro, native)", columns, "", "-"),
        report.Fit("BaM", "BaM (numpyro, native)", None, "failed", "-"),
        report.Fit("SVN", "SVN (numpyro, native)", columns | {"small": columns["large"]}, "", "-"),
    ]
    report.plot_forest(reference, fits, tmp_path / "forest.png")
    report.plot_density(reference, fits, tmp_path / "density.png")
    forest, density = kept
    spans = [np.diff(axis.get_xlim())[0] for axis in forest.axes]
    assert 1e-3 < spans[0] < 0.1 and 10.0 < spans[1] < 1000.0
    for axis in forest.axes:
        assert [text.get_text() for text in axis.texts] == ["failed"]
    markers = [line.get_marker() for line in forest.axes[0].lines]
    assert markers.count("x") == 1 and markers.count(">") == 1
    assert [label.get_text() for label in forest.axes[0].get_yticklabels()] == [
        "reference",
        *(fit.label for fit in fits),
    ]
    (legend,) = density.legends
    assert "BaM (numpyro, native): failed" in [text.get_text() for text in legend.get_texts()]


def test_a_native_program_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stan's is taken in its place, and a run that asks for native ones says so."""
    database = Database.open("embedded")
    posterior = database["blr_simulated-blr"]
    monkeypatch.setattr(runner.programs, "programs", lambda backend: {})
    plan = runner.Plan.of(options(), database)
    assert plan.routes == ("auto",) and runner.number_of_runs(plan) > 0
    fallen = runner._Case(None, posterior, "numpyro", "auto", plan)  # type: ignore[arg-type]
    assert fallen._route == "stan"
    asked = runner._Case(None, posterior, "numpyro", "native", plan)  # type: ignore[arg-type]
    with pytest.raises(DatabaseError, match="no.*--route stan takes a Stan program"):
        asked._make()
    monkeypatch.setattr(type(posterior), "stan_program", lambda self: None)
    neither = runner._Case(None, posterior, "numpyro", "auto", plan)  # type: ignore[arg-type]
    with pytest.raises(DatabaseError, match="none; nor is there a Stan program"):
        neither._make()
    monkeypatch.undo()
    own = runner._Case(None, posterior, "numpyro", "auto", plan)  # type: ignore[arg-type]
    assert own._route == "native"


def test_overview_of_posteriors_and_methods() -> None:
    methods = ["GSM", "GSM", "BaM", "SVN", "NUTS", "ADVI, full"]
    runs = [made(method, None, 10.0) for method in methods]
    runs[1].seed, runs[1].figures["right"] = 1, False
    runs[1].figures["worst mean error"] = 0.32
    runs[2].figures["greatest sd ratio"] = math.inf
    runs[2].figures["right"] = runs[4].figures["right"] = False
    runs[3].error, runs[3].figures = "ArithmeticError: none", {}
    runs[4].figures["not run"] = "too large"
    without_reference = made("GSM", None, 1.0)
    without_reference.model, without_reference.figures = "other", {"negative ELBO": 1.0}
    assert report.overview([without_reference]) == ""
    lines = report.overview([*runs, without_reference]).splitlines()
    # The host's alone is right with every seed.
    assert "right on **0 of 1**" in lines[0]
    names, found, right = ([cell.strip() for cell in lines[i].split("|")[1:-1]] for i in (2, 4, 5))
    assert len(lines) == 6
    error = (made("GSM", None, 10.0).figures["worst mean error"] + 0.32) / 2
    cells = dict(zip(names, zip(found, right, strict=True), strict=True))
    assert cells["posterior"] == ("some", "right, of 1")
    assert cells["ADVI, full"][0].startswith("**") and cells["ADVI, full"][1] == "1"
    assert cells["GSM"] == (f"{error:.2g}, 0.96-1.00", "0")
    assert cells["BaM"][0] == "far off" and cells["SVN"][0] == "failed"
    assert cells["NUTS"][0] == "not run"


def test_bounds_compare_within_a_route_only() -> None:
    stan = made("GSM", None, -50.0)
    stan.settings["route"] = "stan"
    table = report.bound_table([made("GSM", None, 10.0), stan])
    lines = [row for row in table.splitlines() if "GSM" in row]
    assert len(lines) == 2
    for line in lines:
        assert [cell.strip() for cell in line.strip("|").split("|")][6] == "0"


def test_plots_are_drawn_with_failed_runs_among_them(tmp_path: Path) -> None:
    runs = [made("GSM", None, 10.0, level) for level in (0.0, 1.0)]
    runs += [made("ADVI, full", 0.1, 9.0, level) for level in (0.0, 1.0)]
    runs[1].error, runs[1].figures = "ArithmeticError: none", {}
    report.plot_noise(runs, tmp_path / "noise.png")
    report.plot_curves(runs, tmp_path / "curves.png", "worst mean error")
    assert all((tmp_path / name).stat().st_size for name in ("noise.png", "curves.png"))


def test_failed_runs_leave_a_mark_on_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plt = report.pyplot()
    kept: list[Any] = []
    monkeypatch.setattr(plt, "close", kept.append)
    runs = [made("GSM", None, 10.0), failed("SVN", "some"), failed("SVN", "second")]
    report.plot_curves(runs, tmp_path / "curves.png", "worst mean error")
    report.plot_noise([*runs[:2], made("GSM", None, 9.0, 1.0)], tmp_path / "noise.png")
    colour = report.colours(plt)["SVN"]
    first, second = kept[0].axes
    for axis in (first, second):
        (cross,) = [line for line in axis.lines if line.get_marker() == "x"]
        assert cross.get_color() == colour
    (legend,) = kept[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["GSM", "SVN", "failed"]


# -- an engine of a user ---------------------------------------------------------------------------


@pytest.fixture
def my_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write the code of the pages for one package to a module; the name of what it makes."""
    pages = Path(__file__).parents[3] / "docs"
    block = re.compile(r"^```py(?:thon)?\n(.*?)^```", re.S | re.M)
    own = block.findall((pages / "own-engine.md").read_text(encoding="utf-8"))
    short = block.findall((pages / "posteriordb.md").read_text(encoding="utf-8"))[0]
    monkeypatch.syspath_prepend(tmp_path)

    def write(package: str) -> str:
        name = f"my_{package}_engines"
        text = own[0 if package == "numpyro" else 2] + "\n\n" + short
        (tmp_path / f"{name}.py").write_text(text)
        return f"{name}:short_steps"

    return write


@pytest.mark.parametrize("backend", ["numpyro", "pyro"])
def test_an_engine_of_a_user_is_run_beside_the_others(
    backend: str, my_engines: Callable[[str], str], tmp_path: Path
) -> None:
    name = my_engines(backend)
    words = ["posteriordb", "--database", "embedded", "--posteriors", "blr*"]
    words += ["--backend", backend]
    words += ["--budget", "6000", "--jobs", "1", "--out", str(tmp_path)]
    assert main([*words, "--method", name]) == 0
    (run,) = records.read(tmp_path / "posteriordb.jsonl")
    assert run.method == name and run.error is None
    # A hundred particles take a hundred scores a step.
    start = run.figures["start evaluations"]
    assert (run.figures["evaluations"] - start) % 100 == 0
    assert run.figures["evaluations"] <= 6_000
    assert f"| {name} " in (tmp_path / "posteriordb.md").read_text()
    assert name in (tmp_path / "leaderboard.html").read_text()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nothing", "expected module:name, found 'nothing'"),
        ("no_such_module:Engine", "expected a module that can be imported"),
        ("math:pi", "expected a class or function 'pi' in math, found 3.14"),
        ("math:no_such_name", "expected a class or function 'no_such_name' in math, found None"),
    ],
)
def test_an_engine_of_a_user_that_is_not_there_is_told(
    name: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["posteriordb", "--method", name])
    assert stopped.value.code == 2 and told in capsys.readouterr().err
