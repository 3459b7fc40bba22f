"""The study of noisy scores: rivals are right, all are given the same, the oracle is one."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import Array, lax, random
from numpyro.infer.autoguide import AutoMultivariateNormal

import numpyro_ext as nx
from benchmarks import __main__ as command_line
from benchmarks import records
from benchmarks.noisy_scores import (
    ablations,
    figures,
    numpyro_runs,
    problems,
    report,
    rivals,
    study,
)
from benchmarks.noisy_scores.figures import Best, LeastSquares
from benchmarks.noisy_scores.problems import Problem
from benchmarks.noisy_scores.rivals import Now, Rival
from numpyro_ext.density import LogDensity
from numpyro_ext.guides.flat_density import Moments, flat_density
from ppl_ext.score_matching.regression.full import BlockMoments

jax.config.update("jax_enable_x64", True)

COVARIANCE = np.array([[1.0, 0.6], [0.6, 2.0]])
CENTRE = np.array([2.0, -1.0])
ITERATIONS = 1500
#: A rate of each with which it arrives, and what its own randomness leaves of the divergence.
ARRIVES = {
    "natural gradient": (0.01, 0.02),
    "natural gradient, 1/t": (0.1, 0.02),
    "ADVI": (0.03, 0.02),
    "ADVI, cold start": (0.03, 0.02),
    "GSM": (1.0, 1e-6),
    "BaM": (3.0, 1e-6),
    "gradient form": (0.01, 1e-3),
}


@pytest.fixture(autouse=True)
def few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpyro_runs, "POINTS", 2**10)
    monkeypatch.setattr(numpyro_runs, "PAIRS", 2**9)


@pytest.fixture(scope="module")
def density() -> Any:
    program = numpyro_runs.normal_program(COVARIANCE)
    return flat_density(AutoMultivariateNormal(program), random.key(0), (), {})


def divergence_of(rival_class: type[Rival], density: Any, rate: float) -> float:
    """KL(fit, target) after a run on exact scores of a Normal off the origin."""
    rival = rival_class(density, density.initial_parameters())
    precision = jnp.linalg.inv(jnp.asarray(COVARIANCE))

    def step(iteration: Array, state: Any) -> Any:
        z = random.normal(random.fold_in(random.key(1), iteration), (rival.pairs, 2))
        theta = numpyro_runs.points_of(*rival.moments(state), z)
        score = (CENTRE - theta) @ precision
        now = Now(iteration * 1.0, jnp.asarray(ITERATIONS * 1.0), jnp.asarray(rate))
        return rival.step(state, z, theta, score, now)

    start = rival.start(Moments(jnp.zeros(2), 0.5 * jnp.eye(2)))
    end = jax.jit(lambda state: lax.fori_loop(0, ITERATIONS, step, state))(start)
    mean, scale = (np.asarray(each) for each in rival.moments(end))
    root = np.linalg.cholesky(COVARIANCE)
    return float(figures.normal_divergence(mean, scale, CENTRE, root))


@pytest.mark.parametrize("rival", rivals.RIVALS, ids=lambda each: each.name)
def test_rivals_find_a_normal(rival: type[Rival], density: Any) -> None:
    rate, most = ARRIVES[rival.name]
    assert divergence_of(rival, density, rate) < most
    assert len(set(rival.rates)) == 7


#: Faults of sign or kind, each a slip of the pen.
FAULTS = (
    ("NaturalGradient", "change = -0.5", "change = 0.5"),
    ("NaturalGradient", "0.5 * (score[0] - score[1])", "0.5 * (score[0] + score[1])"),
    ("NaturalGradient", "state.mean + rate * move", "state.mean - rate * move"),
    ("ADVI", "- temperature * entropy", "+ temperature * entropy"),
    ("ADVI", "return -(score", "return (score"),
    ("GradientForm", "blended_target(score,", "blended_target(-score,"),
    ("GSM", "gsm_update(state, theta, score)", "gsm_update(state, theta, -score)"),
    ("BaM", "bam_update(state, theta, score, weight)", "bam_update(state, theta, -score, weight)"),
)


@pytest.mark.parametrize("name, old, new", FAULTS)
def test_a_sign_error_in_a_rival_is_seen(name: str, old: str, new: str, density: Any) -> None:
    source = inspect.getsource(getattr(rivals, name))
    assert source.count(old) == 1
    namespace = dict(vars(rivals))
    exec(source.replace(old, new), namespace)
    rival = namespace[name]
    rate, most = ARRIVES[rival.name]
    assert not divergence_of(rival, density, rate) < 5.0 * most


def test_rates_of_an_iteration() -> None:
    now = Now(jnp.asarray(25.0), jnp.asarray(100.0), jnp.asarray(0.1))
    assert now.falling == pytest.approx(0.1 * 0.5 * (1.0 + 2.0**-0.5))
    assert now.harmonic == pytest.approx(2.0 / (25.0 + 20.0))
    # The cold start rises from 0.01 to one over the first half.
    assert now.temperature == pytest.approx(0.1)
    first, last = (now._replace(iteration=jnp.asarray(t)) for t in (0.0, 50.0))
    assert (first.temperature, last.temperature) == pytest.approx((0.01, 1.0))


class Recorder(Rival):
    """Stays where it is and keeps what it is given."""

    name, rates = "recorder", (1.0, 0.5)

    def start(self, moments: Moments) -> Any:
        return moments, jnp.zeros((8, 2)), jnp.zeros((8, 2, 2))

    def moments(self, state: Any) -> Moments:
        return state[0]

    def step(self, state: Any, standard: Array, theta: Array, score: Array, now: Now) -> Any:
        moments, seen, scores = state
        place = self.pairs * now.iteration.astype(int)
        both = score.reshape(2, self.pairs, 2).swapaxes(0, 1)
        return (
            moments,
            lax.dynamic_update_slice(seen, standard, (place, 0)),
            lax.dynamic_update_slice(scores, both, (place, 0, 0)),
        )


class FourRecorder(Recorder):
    pairs = 4


@pytest.mark.parametrize("source", ["noise", pytest.param("rows", marks=pytest.mark.slow)])
def test_all_are_given_the_same_scores(source: str) -> None:
    """Rivals of one pair an iteration and of four, at two rates, and the library's engine."""
    if source == "noise":
        program = numpyro_runs.normal_program(COVARIANCE)
    else:
        rows = problems.regression("logistic", 50, 2, 10)
        program = numpyro_runs.regression_program(rows, np.zeros(2), np.ones(2), 10)
    best = Best(np.zeros(2), np.eye(2), np.zeros(2), np.eye(2))
    prepared = numpyro_runs.Prepared(program, np.zeros(2), np.ones(2), best, {})
    streams = [(float(source == "noise"), seed) for seed in (0, 1)]
    engine = numpyro_runs.engine_for(prepared, "")
    state = numpyro_runs.first_states(engine, prepared, streams, 8)
    found = []
    for rival in (Recorder, FourRecorder):
        begin, advance, _ = numpyro_runs._of_rival(engine, rival, 8 // rival.pairs)
        (_, standard, score), _ = advance(begin(state), 8 // rival.pairs)
        found.append((np.asarray(standard), np.asarray(score)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)
        # By seed they differ, by rate they do not.
        assert not np.allclose(one[0], one[1])
        np.testing.assert_array_equal(one[:, 0], one[:, 1])
    # The closed form holds still until it has seen D + 5 pairs; of one it knows the products.
    advance, moments = numpyro_runs._of_engine(engine)
    scale = np.asarray(moments(state).scale[0])
    block = advance(state, 1).algorithm.regression.block
    for seed, (standard, score) in enumerate(zip(*found[0], strict=True)):
        d = scale[seed] @ standard[0, 0]
        e = 0.5 * (score[0, 0, 0] - score[0, 0, 1])
        np.testing.assert_allclose(block.covariance[seed], np.outer(d, d), rtol=1e-8)
        np.testing.assert_allclose(block.cross_covariance[seed], np.outer(e, d), rtol=1e-8)


def test_every_method_takes_as_many_scores() -> None:
    for scores in (2000, 20_000):
        looks = study.looks_of(scores)
        assert looks[-1] == scores and sorted(set(looks)) == looks
        for rival in rivals.RIVALS:
            assert not any(look % (2 * rival.pairs) for look in looks)
    assert set(study.RIVALS) == {rival.name for rival in rivals.RIVALS}
    assert set(study.ABLATIONS) == set(ablations.ABLATIONS)


def test_the_level_in_the_state_is_that_of_noisy() -> None:
    target = LogDensity(numpyro_runs.normal_program(COVARIANCE), random.key(0))
    data, theta = target.bind(), jnp.asarray([[1.0, 2.0], [0.0, -1.0]])
    ours, plain = numpyro_runs.Levelled(), nx.Noisy(level=3.0)
    state = {**ours.init(target, data, random.key(4), 2), "level": jnp.asarray(3.0)}
    found, following = ours.estimate(target, state, theta, data)
    expected, _ = plain.estimate(target, plain.init(target, data, random.key(4), 2), theta, data)
    np.testing.assert_allclose(found.score, expected.score)
    assert following["level"] == 3.0


def test_divergence_is_that_of_torch() -> None:
    generator = np.random.default_rng(0)
    means = generator.normal(size=(2, 3))
    roots = np.tril(generator.normal(size=(2, 3, 3))) + 3.0 * np.eye(3)
    one, other = (
        torch.distributions.MultivariateNormal(torch.tensor(m), scale_tril=torch.tensor(r))
        for m, r in zip(means, roots, strict=True)
    )
    expected = float(torch.distributions.kl_divergence(one, other))
    found = figures.normal_divergence(means[0], roots[0], means[1], roots[1])
    assert found == pytest.approx(expected)
    assert figures.normal_divergence(means[0] * np.nan, roots[0], means[1], roots[1]) == np.inf


def test_errors_are_in_deviations_of_the_reference() -> None:
    best = Best(np.zeros(2), np.eye(2), np.array([1.0, 0.0]), np.diag([4.0, 1.0]))
    found = best.judge(np.array([2.0, 0.1]), np.diag([1.0, 2.0]))
    assert found["mean error"] == pytest.approx(0.5)
    assert found["sd error"] == pytest.approx(np.log(2.0))
    assert found["mean variance ratio"] == pytest.approx((0.25 + 4.0) / 2.0)


def test_bound_of_least_squares_is_that_of_the_page() -> None:
    """Of equal noise r in all coordinates, D (D + 5) r / 8 over the number of pairs."""
    generator = np.random.default_rng(0)
    dim, noise = 4, 0.7
    z = generator.normal(size=(100_000, dim))
    score = np.stack([-z, z], 1) + (2.0 * noise) ** 0.5 * generator.normal(size=(100_000, 2, dim))
    found = LeastSquares.of(z, score)
    expected = dim * (dim + 5) * noise / 8.0
    assert found.symmetric == pytest.approx(expected, rel=0.03)
    assert found.plain == pytest.approx(expected, rel=0.03)
    # Least squares itself, from the same pairs, leaves that: 200 fits of 500 pairs.
    left = []
    for part, own in zip(np.split(z, 200), np.split(score, 200), strict=True):
        half = 0.5 * (own[:, 0] - own[:, 1])
        slope = -np.linalg.solve(part.T @ part, part.T @ half)
        precision = 0.5 * (slope + slope.T)
        mean = np.linalg.solve(precision, 0.5 * own.sum(1).mean(0))
        root = np.linalg.cholesky(np.linalg.inv(precision))
        left.append(figures.normal_divergence(mean, root, np.zeros(dim), np.eye(dim)))
    assert np.mean(left) == pytest.approx(expected / 500, rel=0.1)


def test_weights_by_certainty_lower_the_bound() -> None:
    generator = np.random.default_rng(1)
    z = generator.normal(size=(20_000, 3))
    noise = generator.normal(size=(20_000, 2, 3)) * [10.0, 1.0, 0.1]
    found = LeastSquares.of(z, np.stack([-z, z], 1) + noise)
    assert found.symmetric < 0.9 * found.plain


@pytest.mark.parametrize("kind", ["linear", "Poisson", "logistic"])
def test_models_of_minibatches(kind: str) -> None:
    """The mode is one, the program is that of NumPy's density, and draws are of the posterior."""
    rows = problems.regression(kind, 200, 3, 10)
    mode, deviations = problems.mode_and_deviations(rows)
    for unit in np.eye(rows.dim):
        ends = problems.log_density(rows, np.stack([mode + s * deviations * unit for s in (-1, 1)]))
        middle = problems.log_density(rows, mode[None])[0]
        # About half a nat down on both sides.
        assert (ends < middle - 0.2).all() and abs(ends[0] - ends[1]) < 0.4
    program = numpyro_runs.regression_program(rows, mode, deviations, None)
    target = LogDensity(program, random.key(0))
    z = np.random.default_rng(0).normal(size=(2, rows.dim))
    values = np.asarray(target.log_density(jnp.asarray(z), target.bind()))
    expected = problems.log_density(rows, mode + deviations * z)
    assert values[0] - values[1] == pytest.approx(expected[0] - expected[1])


def test_the_oracle_picks_the_rate_that_ends_best() -> None:
    final = np.array([[np.inf, 0.1, 0.1], [0.3, 0.2, 0.2], [np.inf, np.inf, 0.0], [0.1, 0.1, 9.0]])
    assert figures.middle(final[2]) == np.inf
    # The first and the last have equal medians, and the first a run that broke.
    assert figures.oracle(final) == 3
    assert figures.oracle(final[:3]) == 0
    assert figures.failures(final[0], np.array([1.0, 0.1, 1.0])) == 2
    mean = np.zeros((2, 2, 3, 1))
    mean[-1, 0], mean[-1, 1] = 5.0, 0.5
    best = Best(np.zeros(1), np.eye(1), np.zeros(1), np.eye(1))
    found = study.judged(best, mean, np.ones((2, 2, 3, 1, 1)))
    assert found["oracle"] == 1 and found["KL"].shape == (2, 3) and found["failures"] == 3
    np.testing.assert_allclose(found["final"], [[12.5] * 3, [0.125] * 3])
    np.testing.assert_allclose(found["mean error"], 0.5)


def test_ablations_lack_their_part() -> None:
    generator = np.random.default_rng(0)
    d, noise = generator.normal(size=(2, 200, 3))
    e = -0.3 * d + 2.0 * noise
    block = BlockMoments(*(jnp.asarray(a.T @ b / 200) for a, b in ((d, d), (e, d), (e, e))))
    whole = ablations.FullForm.whitened_step(block, 200.0, 1.25)
    without = ablations.WithoutPull.whitened_step(block, 200.0, 1.25)
    assert (whole.pull > 0.0).all() and (without.pull == 0.0).all()
    symmetric = ablations.SymmetricTrust.whitened_step(block, 200.0, 1.25)
    significant = ablations.SignificantTrust.whitened_step(block, 200.0, 1.25)
    # The target is wider than the guide: all widen, the whole form least under this noise.
    widest = [float(jnp.linalg.eigvalsh(s.covariance)[-1]) for s in (whole, significant, symmetric)]
    assert 1.0 < widest[0] < widest[1] <= widest[2] == pytest.approx(1.25)


@pytest.mark.slow
def test_best_normal_is_where_mean_scores_vanish() -> None:
    rows = problems.regression("logistic", 60, 2, 10)
    prepared = numpyro_runs.prepare(Problem("small", "minibatch", rows, (0.0,)))
    best = prepared.best
    program = numpyro_runs.regression_program(rows, prepared.mean, prepared.deviations, None)
    target = LogDensity(program, random.key(0))
    z = np.random.default_rng(0).normal(size=(50_000, 2))
    theta = jnp.asarray(best.mean + z @ best.scale_tril.T)
    score = np.asarray(target.score(theta, target.bind()).score) @ best.scale_tril
    assert np.abs(score.mean(0)).max() < 0.03
    assert np.abs(score.T @ z / len(z) + np.eye(2)).max() < 0.05
    # Its moments are near those of the draws.
    errors = best.judge(best.mean, best.scale_tril)
    assert errors["mean error"] < 0.2 and errors["sd error"] < 0.2


@pytest.mark.slow
def test_runs_reports_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = problems.regression("linear", 60, 2, 10)
    small = Problem("linear regression", "minibatch", rows, (0.0,))
    normal = Problem("Normal", "Normal", COVARIANCE, (0.0, 1.0))
    monkeypatch.setattr(study, "make_problems", lambda _: [normal, small])
    out = str(tmp_path)
    arguments = ["noisy-scores", "--seeds", "2", "--scores", "80", "--out", out]
    parts = ["--parts", "comparison", "Pyro"]
    chosen = ["--methods", "closed form", "GSM"]
    assert command_line.main([*arguments, *parts, *chosen]) == 0
    runs = records.read(tmp_path / "noisy-scores.jsonl")
    assert [(r.model, r.settings["part"], r.method, r.settings["level"]) for r in runs] == [
        ("Normal", "comparison", "closed form", 0.0),
        ("Normal", "comparison", "closed form", 1.0),
        ("Normal", "Pyro", "closed form", 0.0),
        ("Normal", "Pyro", "closed form", 1.0),
        ("Normal", "comparison", "GSM", 0.0),
        ("Normal", "comparison", "GSM", 1.0),
        ("linear regression", "comparison", "closed form", 0.0),
        ("linear regression", "Pyro", "closed form", 0.0),
        ("linear regression", "comparison", "GSM", 0.0),
    ]
    for run in runs:
        assert not run.failed
        if run.settings["level"] == 0.0 and run.model == "Normal":
            assert report.final(run) < 1e-4
    assert len(runs[4].figures["final"]) == 7 and len(runs[0].figures["final"]) == 1
    text = (tmp_path / "noisy-scores.md").read_text()
    assert "| pyro " in text and (tmp_path / "noisy-scores.png").stat().st_size > 0

    # What is there is kept, and only what is missing is run.
    rest = ["--parts", "ablations", "--methods", "without the pull", "--resume"]
    assert command_line.main([*arguments, *rest]) == 0
    again = records.read(tmp_path / "noisy-scores.jsonl")
    assert again[: len(runs)] == runs and len(again) == len(runs) + 2
    assert "without the pull" in (tmp_path / "noisy-scores.md").read_text()
    assert command_line.main([*arguments, "--methods", "nothing"]) == 2
    assert "closed form" in capsys.readouterr().out
