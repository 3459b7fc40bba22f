"""The closed-form regression step for Normal guides in Pyro's package."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal

from pyro_ext.guides import Moments, flat_density
from pyro_ext.score.regression.base import restored, saved
from pyro_ext.score.regression.full import (
    BlockMoments,
    FullForm,
    initial_regression,
    is_warm,
    observe,
    screened,
    updated_moments,
    whitened_step,
)
from pyro_ext.score.regression.pairs import antithetic
from tests.regression_support import example, literal_step, noisy, normal_target, reverse_kl

torch.set_default_dtype(torch.float64)


def tensors(*arrays: np.ndarray) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(array) for array in arrays)


def fit(dim: int, level: float, seed: int, pairs: int) -> float:
    """Lost nats after this many pairs on a Normal target with scores of relative noise."""
    target_mean, covariance = normal_target(dim, seed)
    precision = np.linalg.inv(covariance)
    generator = np.random.default_rng(seed + 1000)
    moments = Moments(torch.zeros(dim), 0.1 * torch.eye(dim))
    regression = initial_regression(moments.mean)
    for _ in range(pairs):
        draws = moments.mean + torch.tensor(generator.normal(size=(1, dim))) @ moments.scale.T
        theta = antithetic(draws, moments.mean)
        score = noisy((target_mean - theta.numpy()) @ precision, level, generator)
        regression = observe(regression, theta, torch.tensor(score))
        if is_warm(regression):
            moments = updated_moments(regression, moments)
    return reverse_kl(moments.mean.numpy(), moments.scale.numpy(), target_mean, covariance)


@pytest.mark.parametrize(("dim", "trend", "trust"), [(4, 1.0, 50.0), (4, 1.0, 1.25), (3, 0.2, 2.0)])
def test_full_step_agrees_with_its_definition(dim: int, trend: float, trust: float) -> None:
    theta, score, mean, scale = example(dim, trend)
    moments = Moments(*tensors(mean, scale))
    regression = initial_regression(moments.mean)
    for points, scores in zip(*tensors(theta, score), strict=True):
        regression = observe(regression, points, scores, 0.8, 20)
    new_mean, new_scale = updated_moments(regression, moments, trust)
    expected_mean, expected_covariance = literal_step(theta, score, mean, scale, 0.8, trust, 20)
    np.testing.assert_allclose(new_mean, expected_mean, rtol=1e-8)
    np.testing.assert_allclose(new_scale @ new_scale.T, expected_covariance, rtol=1e-8)
    assert torch.equal(new_scale, new_scale.tril()) and (new_scale.diagonal() > 0).all()


def test_pairs_are_mirrored_about_the_mean() -> None:
    draws, mean = torch.randn(3, 2), torch.tensor([1.0, -2.0])
    both = antithetic(draws, mean)
    assert torch.equal(both[:3], draws)
    torch.testing.assert_close(both[:3] + both[3:], (2 * mean).expand(3, 2))


def test_warm_up_takes_a_pair_for_each_regressor_and_five() -> None:
    regression = initial_regression(torch.zeros(3))
    for _ in range(4):
        assert not is_warm(regression)
        regression = observe(regression, torch.randn(4, 3), torch.randn(4, 3))
    assert regression.seen.num_pairs == 8 and is_warm(regression)


def block_with(noise: torch.Tensor) -> BlockMoments:
    """Moments of five pairs whose scores leave a residual of this covariance (3, 3)."""
    generator = np.random.default_rng(0)
    root, change = generator.normal(size=(5, 3)), generator.normal(size=(3, 3))
    covariance = torch.tensor(root.T @ root / 5)
    cross = -(torch.eye(3) + torch.tensor(0.1 * change)) @ covariance
    explained = cross @ torch.linalg.solve(covariance, cross.T)
    return BlockMoments(covariance, cross, explained + noise)


@pytest.mark.parametrize("number", [2.0, 3.0])
def test_the_pull_is_finite_with_no_more_pairs_than_regressors(number: float) -> None:
    """The residual then counts as one of these pairs, and the pull is the noise times D."""
    noise = torch.tensor([0.1, 0.2, 0.3])
    step = whitened_step(block_with(torch.diag(noise)), number, 1.25)
    torch.testing.assert_close(step.pull.sort().values, 3.0 * noise)


def test_a_residual_below_zero_is_no_noise() -> None:
    step = whitened_step(block_with(-1e-9 * torch.eye(3)), 9.0, 50.0)
    assert torch.equal(step.pull, torch.zeros(3))


def test_a_direction_without_pairs_leaves_the_covariance_finite() -> None:
    difference = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    covariance = difference.T @ difference / 2
    slope = torch.diag(torch.tensor([1.2, 0.9, 1.0]))
    block = BlockMoments(covariance, -slope @ covariance, slope @ covariance @ slope)
    assert whitened_step(block, 4.0, 1.25).covariance.isfinite().all()


def test_weights_of_draws_are_equal_and_sum_to_one() -> None:
    def model() -> None:
        pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    density = flat_density(AutoMultivariateNormal(model))
    weights = FullForm(density).weights(density.initial_parameters(), 6)
    torch.testing.assert_close(weights, torch.full((6,), 1 / 6))


@pytest.mark.parametrize("wild", [0, 3, 30])
def test_a_score_that_overflows_does_not_rule(wild: int) -> None:
    """A draw whose score is thirty orders too large, the very first one or one on the way."""

    def model() -> None:
        pyro.sample("z", dist.Normal(torch.zeros(3), 1.0).to_event(1))

    target_mean, covariance = normal_target(3, 0)
    precision = np.linalg.inv(covariance)
    density = flat_density(AutoMultivariateNormal(model))
    form, parameters = FullForm(density), density.initial_parameters()
    state = form.initial(parameters)
    generator = np.random.default_rng(0)
    for t in range(200):
        moments = density.moments(parameters)
        draws = moments.mean + torch.as_tensor(generator.normal(size=(1, 3))) @ moments.scale.T
        theta = antithetic(draws, moments.mean)
        score = (target_mean - np.asarray(theta)) @ precision
        score[0] *= 1e30 if t == wild else 1.0
        state, parameters = form.update(state, parameters, theta, torch.as_tensor(score))
    mean, scale = (np.asarray(value) for value in density.moments(parameters))
    assert abs(reverse_kl(mean, scale, target_mean, covariance)) < 1e-6


def test_scores_that_stay_large_are_let_in() -> None:
    before = initial_regression(torch.zeros(3))
    generator = np.random.default_rng(0)
    scale = torch.eye(3)

    def seen(size: float) -> Any:
        nonlocal before
        theta = torch.as_tensor(generator.normal(size=(2, 3)))
        theta = antithetic(theta[:1], torch.zeros(3))
        after = observe(before, theta, -size * theta)
        before, sound = screened(before, after, scale, -size * theta)
        return bool(sound)

    assert all(seen(1.0) for _ in range(5))
    assert not seen(1e9)
    # 1e18 times as much in mean square, of which 1e8 are allowed: log(1e10) / log(1.5) = 57 more.
    assert any(seen(1e9) for _ in range(80))


def test_flat_scores_are_no_reason_to_wait() -> None:
    before = initial_regression(torch.zeros(2))
    theta = antithetic(torch.ones((1, 2)), torch.zeros(2))
    for _ in range(3):
        after = observe(before, theta, 0.0 * theta)
        before, sound = screened(before, after, torch.eye(2), 0.0 * theta)
        assert bool(sound)
    assert int(before.seen.num_pairs) == 3


def test_the_mean_moves_at_most_one_unit() -> None:
    mean, scale = torch.zeros(3), torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    regression = initial_regression(mean)
    generator = np.random.default_rng(0)
    for _ in range(10):
        draws = torch.tensor(generator.normal(size=(1, 3))) @ scale
        theta = antithetic(draws, mean)
        regression = observe(regression, theta, 1e4 - theta)
    updated = updated_moments(regression, Moments(mean, scale))
    assert float((updated.mean / scale.diagonal()).norm()) == pytest.approx(1.0)


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


def test_saved_and_restored() -> None:
    start = initial_regression(torch.zeros(2))
    regression = observe(start, torch.randn(2, 2), torch.randn(2, 2))
    again = restored(start, saved(regression))
    assert again.seen == regression.seen and type(again.seen) is type(regression.seen)
    for one, two in zip(again.block, regression.block, strict=True):
        assert torch.equal(one, two)
    assert torch.equal(again.mean_score, regression.mean_score)
