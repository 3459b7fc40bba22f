"""The closed-form regression step for Normal guides in NumPyro's package."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax, random
from numpyro.infer.autoguide import AutoMultivariateNormal

from numpyro_ext.guides import Moments, flat_density
from numpyro_ext.score.regression.full import (
    BlockMoments,
    FullForm,
    initial_regression,
    is_warm,
    observe,
    screened,
    updated_moments,
    whitened_step,
)
from numpyro_ext.score.regression.pairs import antithetic
from tests.regression_support import example, literal_step, normal_target, reverse_kl

jax.config.update("jax_enable_x64", True)


@functools.partial(jax.jit, static_argnames="pairs")
def run(target_mean: Any, precision: Any, level: float, key: Any, pairs: int) -> Moments:
    """The guide after this many pairs on a Normal target with scores of relative noise."""
    dim = len(target_mean)

    def step(carry: Any, key: Any) -> tuple[Any, None]:
        moments, regression = carry
        draw_key, noise_key = random.split(key)
        draws = moments.mean + random.normal(draw_key, (1, dim)) @ moments.scale.T
        theta = antithetic(draws, moments.mean)
        score = (target_mean - theta) @ precision
        size = level * jnp.abs(score).max(1, keepdims=True)
        regression = observe(regression, theta, score + size * random.normal(noise_key, (2, dim)))
        moments = lax.cond(
            is_warm(regression),
            lambda moments: updated_moments(regression, moments),
            lambda moments: moments,
            moments,
        )
        return (moments, regression), None

    moments = Moments(jnp.zeros(dim), 0.1 * jnp.eye(dim))
    start = (moments, initial_regression(moments.mean))
    return lax.scan(step, start, random.split(key, pairs))[0][0]


def fit(dim: int, level: float, seed: int, pairs: int) -> float:
    """Nats that the evidence bound loses."""
    mean, covariance = normal_target(dim, seed)
    found = run(mean, np.linalg.inv(covariance), level, random.key(seed), pairs)
    return reverse_kl(np.asarray(found.mean), np.asarray(found.scale), mean, covariance)


@pytest.mark.parametrize(("dim", "trend", "trust"), [(4, 1.0, 50.0), (4, 1.0, 1.25), (3, 0.2, 2.0)])
def test_full_step_agrees_with_its_definition(dim: int, trend: float, trust: float) -> None:
    theta, score, mean, scale = example(dim, trend)
    moments = Moments(jnp.asarray(mean), jnp.asarray(scale))
    regression = initial_regression(moments.mean)
    for points, scores in zip(theta, score, strict=True):
        regression = observe(regression, jnp.asarray(points), jnp.asarray(scores), 0.8, 20)
    new_mean, new_scale = updated_moments(regression, moments, trust)
    expected_mean, expected_covariance = literal_step(theta, score, mean, scale, 0.8, trust, 20)
    np.testing.assert_allclose(new_mean, expected_mean, rtol=1e-8)
    np.testing.assert_allclose(new_scale @ new_scale.T, expected_covariance, rtol=1e-8)
    assert (new_scale == jnp.tril(new_scale)).all() and (jnp.diagonal(new_scale) > 0).all()


def test_pairs_are_mirrored_about_the_mean() -> None:
    draws, mean = random.normal(random.key(0), (3, 2)), jnp.asarray([1.0, -2.0])
    both = antithetic(draws, mean)
    np.testing.assert_array_equal(both[:3], draws)
    np.testing.assert_allclose(both[:3] + both[3:], np.tile(2 * mean, (3, 1)))


def test_warm_up_takes_a_pair_for_each_regressor_and_five() -> None:
    regression = initial_regression(jnp.zeros(3))
    for t in range(4):
        assert not is_warm(regression)
        points, scores = random.normal(random.key(t), (2, 4, 3))
        regression = observe(regression, points, scores)
    assert regression.seen.num_pairs == 8 and is_warm(regression)


def block_with(noise: Any) -> BlockMoments:
    """Moments of five pairs whose scores leave a residual of this covariance (3, 3)."""
    generator = np.random.default_rng(0)
    root, change = generator.normal(size=(5, 3)), generator.normal(size=(3, 3))
    covariance = root.T @ root / 5
    cross = -(np.eye(3) + 0.1 * change) @ covariance
    explained = cross @ np.linalg.solve(covariance, cross.T)
    return BlockMoments(*map(jnp.asarray, (covariance, cross, explained + noise)))


@pytest.mark.parametrize("number", [2.0, 3.0])
def test_the_pull_is_finite_with_no_more_pairs_than_regressors(number: float) -> None:
    """The residual then counts as one of these pairs, and the pull is the noise times D."""
    noise = np.array([0.1, 0.2, 0.3])
    step = whitened_step(block_with(np.diag(noise)), jnp.asarray(number), 1.25)
    np.testing.assert_allclose(jnp.sort(step.pull), 3.0 * noise, rtol=1e-6)


def test_a_residual_below_zero_is_no_noise() -> None:
    step = whitened_step(block_with(-1e-9 * np.eye(3)), jnp.asarray(9.0), 50.0)
    np.testing.assert_array_equal(step.pull, np.zeros(3))


def test_a_direction_without_pairs_leaves_the_covariance_finite() -> None:
    difference = jnp.asarray([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    covariance = difference.T @ difference / 2
    slope = jnp.diag(jnp.asarray([1.2, 0.9, 1.0]))
    block = BlockMoments(covariance, -slope @ covariance, slope @ covariance @ slope)
    assert jnp.isfinite(whitened_step(block, jnp.asarray(4.0), 1.25).covariance).all()


def test_weights_of_draws_are_equal_and_sum_to_one() -> None:
    def model() -> None:
        numpyro.sample("z", dist.Normal(jnp.zeros(2), 1.0).to_event(1))

    density = flat_density(AutoMultivariateNormal(model), random.key(0))
    weights = FullForm(density).weights(density.initial_parameters(), 6)
    np.testing.assert_allclose(weights, np.full(6, 1 / 6))


@pytest.mark.parametrize("wild", [0, 3, 30])
def test_a_score_that_overflows_does_not_rule(wild: int) -> None:
    """A draw whose score is thirty orders too large, the very first one or one on the way."""

    def model() -> None:
        numpyro.sample("z", dist.Normal(jnp.zeros(3), 1.0).to_event(1))

    target_mean, covariance = normal_target(3, 0)
    precision = np.linalg.inv(covariance)
    density = flat_density(AutoMultivariateNormal(model), random.key(0))
    form, parameters = FullForm(density), density.initial_parameters()
    state = form.initial(parameters)
    generator = np.random.default_rng(0)
    update = jax.jit(form.update)
    for t in range(200):
        moments = density.moments(parameters)
        draws = moments.mean + jnp.asarray(generator.normal(size=(1, 3))) @ moments.scale.T
        theta = antithetic(draws, moments.mean)
        score = (target_mean - np.asarray(theta)) @ precision
        score[0] *= 1e30 if t == wild else 1.0
        state, parameters = update(state, parameters, theta, jnp.asarray(score))
    mean, scale = (np.asarray(value) for value in density.moments(parameters))
    assert abs(reverse_kl(mean, scale, target_mean, covariance)) < 1e-6


def test_scores_that_stay_large_are_let_in() -> None:
    before = initial_regression(jnp.zeros(3))
    generator = np.random.default_rng(0)
    scale = jnp.eye(3)

    def seen(size: float) -> Any:
        nonlocal before
        theta = jnp.asarray(generator.normal(size=(2, 3)))
        theta = antithetic(theta[:1], jnp.zeros(3))
        after = observe(before, theta, -size * theta)
        before, sound = screened(before, after, scale, -size * theta)
        return bool(sound)

    assert all(seen(1.0) for _ in range(5))
    assert not seen(1e9)
    # 1e18 times as much in mean square, of which 1e8 are allowed: log(1e10) / log(1.5) = 57 more.
    assert any(seen(1e9) for _ in range(80))


def test_flat_scores_are_no_reason_to_wait() -> None:
    before = initial_regression(jnp.zeros(2))
    theta = antithetic(jnp.ones((1, 2)), jnp.zeros(2))
    for _ in range(3):
        after = observe(before, theta, 0.0 * theta)
        before, sound = screened(before, after, jnp.eye(2), 0.0 * theta)
        assert bool(sound)
    assert int(before.seen.num_pairs) == 3


def test_the_mean_moves_at_most_one_unit() -> None:
    mean, scale = jnp.zeros(3), jnp.diag(jnp.asarray([1.0, 2.0, 3.0]))
    regression = initial_regression(mean)
    generator = np.random.default_rng(0)
    for _ in range(10):
        draws = jnp.asarray(generator.normal(size=(1, 3))) @ scale
        theta = antithetic(draws, mean)
        regression = observe(regression, theta, 1e4 - theta)
    updated = updated_moments(regression, Moments(mean, scale))
    assert float(jnp.linalg.norm(updated.mean / jnp.diagonal(scale))) == pytest.approx(1.0)


def test_a_normal_target_is_exact_within_a_hundred_scores() -> None:
    for seed in range(3):
        assert abs(fit(10, 0.0, seed, 50)) < 1e-8


def test_noise_is_averaged() -> None:
    assert fit(3, 1.0, 0, 1500) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.1, 1.0, 3.0, 10.0])
def test_no_level_of_noise_makes_it_diverge(level: float) -> None:
    """Within a nat of the noise-free bound, which is what the target allows, in twenty seeds."""
    lost = [fit(3, level, seed, 20_000) for seed in range(20)]
    assert max(lost) < 1.0
