"""The closed-form regression step for low-rank Normal guides in NumPyro's package."""

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
from numpyro.infer.autoguide import AutoLowRankMultivariateNormal

from numpyro_ext.guides import flat_density
from numpyro_ext.score import ProximalScoreVI
from numpyro_ext.score.regression.low_rank import (
    LowRankForm,
    LowRankMoments,
    LowRankRegression,
    frame_of,
    observed,
    updated_guide,
)
from numpyro_ext.score.regression.pairs import antithetic, initial_count
from ppl_ext.errors import ArgumentError
from tests.low_rank_support import (
    covariance_of,
    divergence,
    example,
    factor_target,
    least_divergence,
    literal_step,
    other_target,
)

jax.config.update("jax_enable_x64", True)

DIM, RANK = 8, 2
observe, update = jax.jit(observed), jax.jit(updated_guide)


def nothing_seen(dim: int, rank: int) -> LowRankRegression:
    shapes = [(dim,)] * 5 + [(dim, rank)] * 2 + [(rank, rank)] * 2
    return LowRankRegression(initial_count(jnp.zeros(()).dtype), *map(jnp.zeros, shapes))


def moments_of(mean: Any, scale: Any, factor: Any) -> LowRankMoments:
    return LowRankMoments(*(jnp.asarray(value) for value in (mean, scale, factor)))


def covariance(moments: LowRankMoments) -> np.ndarray:
    return covariance_of(np.asarray(moments.scale), np.asarray(moments.factor))


def draw(moments: LowRankMoments, key: Any, num: int) -> jax.Array:
    keys = random.split(key)
    dim, rank = moments.factor.shape
    noise = random.normal(keys[0], (num, dim))
    noise += random.normal(keys[1], (num, rank)) @ moments.factor.T
    return antithetic(moments.mean + moments.scale * noise, moments.mean)


@jax.jit
def run(
    moments: LowRankMoments, target_mean: Any, precision: Any, level: Any, decay: Any, keys: Any
) -> LowRankMoments:
    """The guide after a pair for each key on a Normal target with scores of relative noise."""

    def step(carry: Any, key: Any) -> tuple[Any, None]:
        state, moments = carry
        draw_key, noise_key = random.split(key)
        theta = draw(moments, draw_key, 1)
        score = (target_mean - theta) @ precision
        size = level * jnp.abs(score).max(1, keepdims=True)
        score = score + size * random.normal(noise_key, score.shape)
        state = observed(state, moments, theta, score, decay)
        state, moments = lax.cond(
            state.seen.num_pairs > RANK + 5,
            lambda state, moments: updated_guide(state, moments, 1.25),
            lambda *both: both,
            state,
            moments,
        )
        return (state, moments), None

    return lax.scan(step, (nothing_seen(DIM, RANK), moments), keys)[0][1]


@functools.cache
def fit(kind: Any, seed: int, level: float, pairs: int, decay: float = 0.9) -> float:
    """KL(q || target) after this many pairs with scores of relative noise."""
    target = kind(seed)
    keys = random.split(random.key(seed), pairs + 1)
    start = moments_of(np.zeros(DIM), np.full(DIM, 0.1), random.normal(keys[0], (DIM, RANK)))
    moments = run(start, target[0], np.linalg.inv(target[1]), level, decay, keys[1:])
    return divergence(np.asarray(moments.mean), covariance(moments), target)


def of_the_family(seed: int) -> tuple[np.ndarray, np.ndarray]:
    return factor_target(DIM, RANK, seed)


def of_another_family(seed: int) -> tuple[np.ndarray, np.ndarray]:
    return other_target(DIM, seed)


def diagonal(seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    variances = np.exp(generator.uniform(-2, 2, DIM))
    return 2 + generator.normal(size=DIM), np.diag(variances)


@pytest.mark.parametrize(
    ("dim", "rank", "trend", "trust"),
    [(6, 2, 1.3, 50.0), (6, 2, 1.3, 1.25), (5, 3, 0.3, 2.0), (4, 1, 3.0, 1.25)],
)
def test_step_agrees_with_its_definition(dim: int, rank: int, trend: float, trust: float) -> None:
    theta, score, mean, scale, factor = example(dim, rank, trend)
    moments, state = moments_of(mean, scale, factor), nothing_seen(dim, rank)
    for points, scores in zip(jnp.asarray(theta), jnp.asarray(score), strict=True):
        state = observe(state, moments, points, scores, 0.8)
    updated = update(state, moments, trust)[1]
    expected = literal_step(theta, score, mean, scale, factor, 0.8, trust)
    np.testing.assert_allclose(updated.mean, expected[0], rtol=1e-8)
    np.testing.assert_allclose(covariance(updated), expected[1], rtol=1e-7, atol=1e-9)


def test_coordinates_of_the_factor_are_standard() -> None:
    _, _, mean, scale, factor = example(5, 2, 1.0)
    moments = moments_of(mean, scale, factor)
    frame = frame_of(moments)
    sigma = covariance(moments)
    precision = np.linalg.inv(sigma)
    for found, expected in (
        (frame.to_factor.T @ sigma @ frame.to_factor, np.eye(2)),
        (frame.from_factor.T @ precision @ frame.from_factor, np.eye(2)),
        (sigma @ frame.to_factor, frame.from_factor),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_what_was_seen_is_carried_to_the_next_factor() -> None:
    """What is known of a linear score stays exact, however often the basis turned."""
    target = of_another_family(0)
    precision = np.linalg.inv(target[1])
    moments = moments_of(np.zeros(DIM), np.ones(DIM), np.eye(DIM)[:, :RANK])
    state = nothing_seen(DIM, RANK)
    for t, key in enumerate(random.split(random.key(0), 30)):
        theta = draw(moments, key, 2)
        before = observe(state, moments, theta, (target[0] - theta) @ precision, 0.9)
        state, after = (before, moments) if t < 5 else update(before, moments, 1.25)
        turn = frame_of(moments).from_factor.T @ frame_of(after).to_factor
        np.testing.assert_allclose(state.theta_factor, before.theta_factor @ turn, atol=1e-10)
        np.testing.assert_allclose(state.factor, turn.T @ before.factor @ turn, atol=1e-10)
        turn = frame_of(moments).to_factor.T @ frame_of(after).from_factor
        expected = turn.T @ before.factor_score @ turn
        np.testing.assert_allclose(state.factor_score, expected, atol=1e-10)
        moments = after
    np.testing.assert_allclose(state.score_factor, -precision @ state.theta_factor, atol=1e-9)
    # y is standard for the present guide, of which the averages are made by and by.
    assert np.abs(np.linalg.eigvalsh(state.factor) - 1.0).max() < 0.7


def test_warm_up_takes_a_pair_for_each_regressor_and_five() -> None:
    """The factor's coordinates and the coordinate itself are regressors."""

    def model() -> None:
        numpyro.sample("z", dist.Normal(jnp.zeros(DIM), 1.0).to_event(1))

    guide = AutoLowRankMultivariateNormal(model, rank=RANK)
    form = LowRankForm(flat_density(guide, random.key(0)))
    start = form.density.initial_parameters()
    state, parameters = form.initial(start), start
    step = jax.jit(form.update)
    for pairs, key in enumerate(random.split(random.key(0), RANK + 6), 1):
        theta = form.draw(parameters, key, 2)
        state, parameters = step(state, parameters, theta, 1.0 - theta)
        same = [np.array_equal(parameters[name], value) for name, value in start.items()]
        assert state.seen.num_pairs == pairs
        assert all(same) if pairs < RANK + 6 else not any(same)


def test_a_target_of_the_family_is_recovered() -> None:
    """Within a thousandth of a nat; what is left is what the averages have not yet forgotten."""
    for seed in range(3):
        assert -1e-9 < fit(of_the_family, seed, 0.0, 400, 0.6) < 1e-3


def test_any_other_target_is_fitted_as_well_as_the_family_can() -> None:
    """Within three thousandths of a nat of the smallest KL(q || target), which is not zero."""
    for seed in range(2):
        best = least_divergence(of_another_family(seed)[1], RANK)
        assert best > 8e-3
        assert -1e-9 < fit(of_another_family, seed, 0.0, 800, 0.6) - best < 3e-3


def test_a_target_without_factors() -> None:
    """A column of the least length costs 1e-6 / 4 nats."""
    assert fit(diagonal, 0, 0.0, 400) < 1e-5


def test_noise_is_averaged() -> None:
    early = sum(fit(of_the_family, seed, 1.0, 200) for seed in range(2))
    late = sum(fit(of_the_family, seed, 1.0, 1500) for seed in range(2))
    assert late < 0.4 * early


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.1, 1.0, 3.0, 10.0])
def test_no_level_of_noise_makes_it_diverge(level: float) -> None:
    """Better than the start, which is tens of nats away."""
    for seed in range(4):
        assert fit(of_the_family, seed, level, 5000) < fit(of_the_family, seed, 0.0, 0)


def test_a_program() -> None:
    """The engine on a host's program with a positive latent among its latents."""
    target = factor_target(4, 1, 3)

    def model() -> None:
        scale = np.linalg.cholesky(target[1])
        z = numpyro.sample("z", dist.MultivariateNormal(target[0], scale_tril=scale))
        numpyro.sample("x", dist.LogNormal(0.5 * z[0], 0.5))

    # The unconstrained x is Normal given z, so that all five latents together are.
    joint = np.zeros((5, 5))
    joint[:4, :4] = target[1]
    joint[4, :4] = joint[:4, 4] = 0.5 * target[1][0]
    joint[4, 4] = 0.25 * target[1][0, 0] + 0.25
    mean = np.append(target[0], 0.5 * target[0][0])
    guide = AutoLowRankMultivariateNormal(model, rank=2)
    engine = ProximalScoreVI(model, guide, solver="regression")
    state = engine.run(random.key(0), 400, progress_bar=False).state
    found, root = map(np.asarray, engine.density.moments(state.algorithm.parameters))
    best = least_divergence(joint, 2)
    assert divergence(found, root @ root.T, (mean, joint)) < best + 1e-2


@pytest.mark.parametrize("rank", [3, 4])
def test_a_rank_that_spans_all_latents_is_refused(rank: int) -> None:
    def model() -> None:
        numpyro.sample("z", dist.Normal(jnp.zeros(3), 1.0).to_event(1))

    guide = AutoLowRankMultivariateNormal(model, rank=rank)
    with pytest.raises(ArgumentError, match="below the number of latents, 3"):
        ProximalScoreVI(model, guide, solver="regression").init(random.key(0))


def test_memory_is_linear_in_the_number_of_latents() -> None:
    dim = 47
    moments = moments_of(np.zeros(dim), np.ones(dim), np.ones((dim, RANK)))

    def step(state: Any, moments: Any, theta: Any) -> Any:
        return updated_guide(observed(state, moments, theta, -theta, 0.9), moments, 1.25)

    program = str(jax.make_jaxpr(step)(nothing_seen(dim, RANK), moments, jnp.zeros((4, dim))))
    assert f"f64[{dim},{RANK}]" in program
    assert f"[{dim},{dim}]" not in program
