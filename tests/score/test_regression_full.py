"""The closed-form regression step for Normal guides, in both packages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.score_matching.regression.full import BlockMoments
from tests.backends import use_float64
from tests.closed_form_support import fitter, lost_nats, mirrored, set_to
from tests.guides_support import divergence, normal
from tests.regression_support import example, literal_step, normal_target
from tests.score_support import room

use_float64()
pytestmark = pytest.mark.formula


def form_of(face: Any, dim: int) -> Any:
    return fitter(face, "full", dim)


def fit(face: Any, dim: int, level: float, seed: int, pairs: int) -> float:
    """Lost nats after this many pairs on a Normal target with scores of relative noise."""
    form = form_of(face, dim)
    start = set_to(face, form.density, np.zeros(dim), 0.1 * np.eye(dim))
    return lost_nats(form, start, normal_target(dim, seed), level, seed, pairs, total=0)


@pytest.mark.in_both_packages
@pytest.mark.parametrize(("dim", "trend", "trust"), [(4, 1.0, 50.0), (4, 1.0, 1.25), (3, 0.2, 2.0)])
def test_full_step_agrees_with_its_definition(
    face: Any, dim: int, trend: float, trust: float
) -> None:
    theta, score, mean, scale = example(dim, trend)
    form = form_of(face, dim)
    start = set_to(face, form.density, mean, scale)
    state = form.form.initial(start)
    for points, scores in zip(theta, score, strict=True):
        # Always from the first guide, which drew the points.
        given = state, start, points, scores, 20, None, 0.8, trust
        state, moved = form.update(*given)
    new_mean, new_scale = face.numpy(tuple(form.density.moments(moved)))
    expected_mean, expected_covariance = literal_step(theta, score, mean, scale, 0.8, trust, 20)
    np.testing.assert_allclose(new_mean, expected_mean, rtol=1e-8)
    np.testing.assert_allclose(new_scale @ new_scale.T, expected_covariance, rtol=1e-8)
    assert np.array_equal(new_scale, np.tril(new_scale)) and (np.diag(new_scale) > 0).all()


def test_pairs_are_mirrored_about_the_mean(face: Any) -> None:
    draws, mean = normal(0, 3, 2), np.array([1.0, -2.0])
    antithetic = room(face, "score.regression").CLOSED_FORMS["full"].arrays.antithetic
    both = face.numpy(antithetic(face.array(draws), face.array(mean)))
    np.testing.assert_array_equal(both[:3], draws)
    np.testing.assert_allclose(both[:3] + both[3:], np.tile(2 * mean, (3, 1)))


def test_warm_up_takes_a_pair_for_each_regressor_and_five(face: Any) -> None:
    form = form_of(face, 3)
    start = set_to(face, form.density, np.zeros(3), np.eye(3))
    state = form.form.initial(start)
    for t in range(4):
        state, moved = form.update(state, start, normal(t, 4, 3), normal(t + 9, 4, 3))
        same = [np.array_equal(face.numpy(moved[name]), face.numpy(start[name])) for name in start]
        assert int(state.seen.num_pairs) == 2 * (t + 1)
        assert all(same) if t < 3 else not any(same)


def step_of(face: Any, block: tuple[Any, ...], number: float, trust: float) -> Any:
    """The step on whitened moments, as NumPy arrays."""
    form = room(face, "score.regression").CLOSED_FORMS["full"]
    step = face.backend.compiled(form.whitened_step)
    number = number if face.name == "pyro" else face.array(number)
    return face.numpy(step(BlockMoments(*map(face.array, block)), number, trust))


def block_with(noise: Any) -> tuple[np.ndarray, ...]:
    """Moments of five pairs whose scores leave a residual of this covariance (3, 3)."""
    generator = np.random.default_rng(0)
    root, change = generator.normal(size=(5, 3)), generator.normal(size=(3, 3))
    covariance = root.T @ root / 5
    cross = -(np.eye(3) + 0.1 * change) @ covariance
    explained = cross @ np.linalg.solve(covariance, cross.T)
    return covariance, cross, explained + noise


@pytest.mark.parametrize("number", [2.0, 3.0])
def test_the_pull_is_finite_with_no_more_pairs_than_regressors(face: Any, number: float) -> None:
    """The residual then counts as one of these pairs, and the pull is the noise times D."""
    noise = np.array([0.1, 0.2, 0.3])
    step = step_of(face, block_with(np.diag(noise)), number, 1.25)
    np.testing.assert_allclose(np.sort(step.pull), 3.0 * noise, rtol=1e-6)


def test_a_residual_below_zero_is_no_noise(face: Any) -> None:
    step = step_of(face, block_with(-1e-9 * np.eye(3)), 9.0, 50.0)
    np.testing.assert_array_equal(step.pull, np.zeros(3))


def test_a_direction_without_pairs_leaves_the_covariance_finite(face: Any) -> None:
    difference = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    covariance, slope = difference.T @ difference / 2, np.diag([1.2, 0.9, 1.0])
    block = covariance, -slope @ covariance, slope @ covariance @ slope
    assert np.isfinite(step_of(face, block, 4.0, 1.25).covariance).all()


def test_weights_of_draws_are_equal_and_sum_to_one(face: Any) -> None:
    form = form_of(face, 3)
    weights = face.numpy(form.form.weights(form.density.initial_parameters(), 6))
    np.testing.assert_allclose(weights, np.full(6, 1 / 6))


@pytest.mark.in_both_packages
@pytest.mark.parametrize("wild", [0, 3, 30])
def test_a_score_that_overflows_does_not_rule(face: Any, wild: int) -> None:
    """A draw whose score is thirty orders too large, the very first one or one on the way."""
    target_mean, covariance = normal_target(3, 0)
    precision, form = np.linalg.inv(covariance), form_of(face, 3)
    parameters = form.density.initial_parameters()
    state, moments = form.form.initial(parameters), face.backend.compiled(form.density.moments)
    generator = np.random.default_rng(0)
    for t in range(200):
        mean, scale = face.numpy(tuple(moments(parameters)))
        theta = mirrored(mean + generator.normal(size=(1, 3)) @ scale.T, mean)
        score = (target_mean - theta) @ precision
        score[0] *= 1e30 if t == wild else 1.0
        state, parameters = form.update(state, parameters, theta, score)
    mean, scale = face.numpy(tuple(form.density.moments(parameters)))
    assert abs(divergence(mean, scale @ scale.T, target_mean, covariance)) < 1e-6


def test_scores_that_stay_large_are_let_in(face: Any) -> None:
    form = form_of(face, 3)
    start = set_to(face, form.density, np.zeros(3), np.eye(3))
    state, generator = form.form.initial(start), np.random.default_rng(0)

    def seen(size: float) -> bool:
        nonlocal state
        before, theta = int(state.seen.num_pairs), mirrored(generator.normal(size=(1, 3)), 0.0)
        state, _ = form.update(state, start, theta, -size * theta)
        return int(state.seen.num_pairs) > before

    assert all(seen(1.0) for _ in range(5))
    assert not seen(1e9)
    # 1e18 times as much in mean square, of which 1e8 are allowed: log(1e10) / log(1.5) = 57 more.
    assert any(seen(1e9) for _ in range(80))


def test_flat_scores_are_no_reason_to_wait(face: Any) -> None:
    form = form_of(face, 3)
    start = set_to(face, form.density, np.zeros(3), np.eye(3))
    state, theta = form.form.initial(start), mirrored(np.ones((1, 3)), 0.0)
    for _ in range(3):
        state, _ = form.update(state, start, theta, 0.0 * theta)
    assert int(state.seen.num_pairs) == 3


def test_the_mean_moves_at_most_one_unit(face: Any) -> None:
    scale, form = np.diag([1.0, 2.0, 3.0]), form_of(face, 3)
    start = set_to(face, form.density, np.zeros(3), scale)
    state, generator = form.form.initial(start), np.random.default_rng(0)
    for _ in range(10):
        theta = mirrored(generator.normal(size=(1, 3)) @ scale, 0.0)
        state, moved = form.update(state, start, theta, 1e4 - theta)
    mean = face.numpy(form.density.moments(moved).mean)
    assert np.linalg.norm(mean / np.diag(scale)) == pytest.approx(1.0)


def test_a_normal_target_is_exact_within_a_hundred_scores(face: Any) -> None:
    for seed in range(3):
        assert abs(fit(face, 10, 0.0, seed, 50)) < 1e-8


def test_noise_is_averaged(face: Any) -> None:
    assert fit(face, 3, 1.0, 0, 1500) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.1, 1.0, 3.0, 10.0])
def test_no_level_of_noise_makes_it_diverge(face: Any, level: float) -> None:
    """Within a nat of the noise-free bound, which is what the target allows.

    In twenty seeds where steps are compiled; 20,000 of them take torch a quarter of a minute.
    """
    seeds = range(20 if face.name == "numpyro" else 4)
    assert max(fit(face, 3, level, seed, 20_000) for seed in seeds) < 1.0
