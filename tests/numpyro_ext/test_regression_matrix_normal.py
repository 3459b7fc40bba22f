"""The closed-form regression step for matrix-normal guides in NumPyro's package."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax, random

from numpyro_ext.guides.matrix_normal import (
    AutoMatrixNormal,
    Factors,
    MatrixNormalDensity,
)
from numpyro_ext.score import ProximalScoreVI
from numpyro_ext.score.regression.matrix_normal import (
    MatrixNormalRegression,
    initial_regression,
    is_warm,
    observe,
    updated_factors,
)
from numpyro_ext.score.regression.pairs import antithetic
from ppl_ext.guides.layouts import find_blocks
from tests.matrix_normal_support import (
    SHAPES,
    VECTOR,
    Guide,
    covariance,
    example,
    literal_step,
    posterior,
)

jax.config.update("jax_enable_x64", True)

BLOCKS = find_blocks(SHAPES)
EXACT = posterior()
ROWS, COLUMNS = EXACT.mean.shape


@jax.jit
def observed(
    regression: Any, factors: Any, theta: Any, score: Any, decay: float, total: int
) -> MatrixNormalRegression:
    """:func:`observe`, compiled once for all tests."""
    return observe(regression, factors, BLOCKS, theta, score, decay, total)


@jax.jit
def moved(regression: Any, factors: Any, trust: float) -> Factors:
    """:func:`updated_factors`, compiled once for all tests."""
    return updated_factors(regression, factors, BLOCKS, trust)


def factors_of(guide: Guide) -> Factors:
    return Factors(*jax.tree.map(jnp.asarray, (guide.mean, guide.scale, guide.matrices)))


def model(x: jax.Array, y: jax.Array, batch: int | None = None) -> None:
    numpyro.sample("b", dist.Normal(*VECTOR).to_event(1))
    rows = EXACT.prior_rows[:, None, None] * EXACT.noise
    w = numpyro.sample("w", dist.MultivariateNormal(jnp.zeros((ROWS, COLUMNS)), rows).to_event(1))
    with numpyro.plate("N", len(x), subsample_size=batch) as chosen:
        mean = x[chosen] @ w
        numpyro.sample("y", dist.MultivariateNormal(mean, EXACT.noise), obs=y[chosen])


@functools.partial(jax.jit, static_argnames="pairs")
def run(level: float, key: Any, pairs: int) -> Factors:
    """Guides after each of the pairs on the exact posterior with scores of relative noise."""
    blocks = find_blocks({"w": (ROWS, COLUMNS)})
    rows, columns = (jnp.linalg.inv(side) for side in (EXACT.rows, EXACT.noise))

    def step(carry: Any, key: Any) -> tuple[Any, Factors]:
        factors, regression = carry
        draw_key, noise_key = random.split(key)
        row, column = factors.matrices["w"]
        noise = random.normal(draw_key, (ROWS, COLUMNS))
        draw = factors.mean + (row @ noise @ column.T).reshape(-1)
        theta = antithetic(draw[None], factors.mean)
        offset = EXACT.mean - theta.reshape(2, ROWS, COLUMNS)
        score = (rows @ offset @ columns).reshape(2, -1)
        size = level * jnp.abs(score).max(1, keepdims=True)
        score = score + size * random.normal(noise_key, score.shape)
        regression = observe(regression, factors, blocks, theta, score, total=pairs)
        factors = lax.cond(
            is_warm(regression, blocks),
            lambda factors: updated_factors(regression, factors, blocks),
            lambda factors: factors,
            factors,
        )
        return (factors, regression), factors

    start = {"w": (0.3 * jnp.eye(ROWS), 0.3 * jnp.eye(COLUMNS))}
    factors = Factors(jnp.zeros(ROWS * COLUMNS), jnp.zeros(0), start)
    carry = factors, initial_regression(factors.mean, blocks)
    guides: Factors = lax.scan(step, carry, random.split(key, pairs))[1]
    return guides


def lost(level: float, seed: int, pairs: int, after: Sequence[int] = (-1,)) -> list[float]:
    """Nats that the evidence bound loses after some of the pairs."""
    guides = run(level, random.key(seed), pairs)
    found = []
    for index in after:
        row, column = (np.asarray(factor[index]) for factor in guides.matrices["w"])
        mean = np.asarray(guides.mean[index]).reshape(ROWS, COLUMNS)
        found.append(EXACT.kl(mean, np.kron(row @ row.T, column @ column.T)))
    return found


@pytest.mark.parametrize(
    ("trend", "trust", "total"), [(0.4, 50.0, 0), (0.4, 1.25, 12), (0.02, 1.5, 6)]
)
def test_step_agrees_with_its_definition(trend: float, trust: float, total: int) -> None:
    guides, theta, score = example(trend)
    regression = initial_regression(jnp.asarray(guides[0].mean), BLOCKS)
    for guide, points, scores in zip(guides, theta, score, strict=True):
        arrays = jnp.asarray(points), jnp.asarray(scores)
        regression = observed(regression, factors_of(guide), *arrays, 0.8, total)
    found = moved(regression, factors_of(guides[-1]), trust)
    expected_mean, expected_covariance = literal_step(guides, theta, score, 0.8, trust, total)
    np.testing.assert_allclose(found.mean, expected_mean, rtol=1e-8)
    np_found = Guide(*jax.tree.map(np.asarray, tuple(found)))
    np.testing.assert_allclose(covariance(np_found), expected_covariance, rtol=1e-7, atol=1e-12)
    for factor in jax.tree.leaves(found.matrices):
        assert (factor == jnp.tril(factor)).all() and (jnp.diagonal(factor) > 0).all()


def test_warm_up_waits_for_each_factor() -> None:
    """A factor of 12 rows sees two columns of each pair: nine pairs; one of 2 sees 12: one pair."""
    for shape, enough in [((12, 2), 9), ((2, 12), 9), ((4, 3), 6)]:
        blocks = find_blocks({"w": shape})
        regression = initial_regression(jnp.zeros(shape[0] * shape[1]), blocks)
        for pairs in (enough - 1, enough):
            count = regression.seen._replace(num_pairs=jnp.asarray(pairs))
            assert is_warm(regression._replace(seen=count), blocks) == (pairs == enough)


def test_a_common_factor_is_counted_once() -> None:
    """A target that is nine times as precise as the guide, which is otherwise right."""
    guide = example(1.0)[0][0]
    factors, generator = factors_of(guide), np.random.default_rng(0)
    precision = np.linalg.inv(covariance(guide))
    regression = initial_regression(factors.mean, BLOCKS)
    for _ in range(8):
        draws = generator.multivariate_normal(guide.mean, covariance(guide), size=2)
        theta = np.concatenate([draws, 2 * guide.mean - draws])
        score = 9.0 * (guide.mean - theta) @ precision
        regression = observed(regression, factors, jnp.asarray(theta), jnp.asarray(score), 0.9, 0)
    found = moved(regression, factors, 100.0)
    np_found = Guide(*jax.tree.map(np.asarray, tuple(found)))
    np.testing.assert_allclose(covariance(np_found), covariance(guide) / 9.0, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(found.mean, guide.mean, rtol=1e-10)


def test_the_mean_of_a_matrix_moves_at_most_one_unit() -> None:
    guides, theta, score = example(0.4)
    factors = factors_of(guides[0])
    regression = initial_regression(factors.mean, BLOCKS)
    for points, scores in zip(theta, score, strict=True):
        arrays = jnp.asarray(points), jnp.asarray(scores + 1e5)
        regression = observed(regression, factors, *arrays, 0.9, 0)
    found = moved(regression, factors, 1.25)
    for name, where, shape in BLOCKS.matrices:
        row, column = factors.matrices[name]
        move = (found.mean - factors.mean)[where].reshape(shape)
        whitened = jnp.linalg.solve(row, jnp.linalg.solve(column, move.T).T)
        assert float(jnp.linalg.norm(whitened)) == pytest.approx(1.0)


def test_a_regression_posterior_is_exact_within_six_hundred_scores() -> None:
    engine = ProximalScoreVI(model, AutoMatrixNormal, solver="regression")
    data = jnp.asarray(EXACT.x), jnp.asarray(EXACT.y)
    result = engine.run(random.key(0), 300, *data, progress_bar=False)
    mean, root = map(np.asarray, engine.density.moments(result.state.algorithm.parameters))
    assert isinstance(engine.density, MatrixNormalDensity)
    (block,), (rest,) = engine.density.blocks().matrices, engine.density.blocks().rest
    found = root @ root.T
    fitted = mean[block.where].reshape(block.shape)
    assert abs(EXACT.kl(fitted, found[block.where, block.where])) < 1e-8
    np.testing.assert_allclose(mean[rest], VECTOR[0], atol=1e-6)
    np.testing.assert_allclose(found[rest, rest], np.diag(VECTOR[1] ** 2), rtol=1e-6)
    np.testing.assert_allclose(result.losses[-1], 0.0, atol=1e-6)


@pytest.mark.slow
def test_minibatches_are_averaged() -> None:
    """Half of the data at a time: a tenth of a nat in twelve entries."""
    engine = ProximalScoreVI(model, AutoMatrixNormal, solver="regression")
    data = jnp.asarray(EXACT.x), jnp.asarray(EXACT.y)
    result = engine.run(random.key(1), 300, *data, batch=6, progress_bar=False)
    mean, root = map(np.asarray, engine.density.moments(result.state.algorithm.parameters))
    assert isinstance(engine.density, MatrixNormalDensity)
    (block,) = engine.density.blocks().matrices
    found = (root @ root.T)[block.where, block.where]
    assert EXACT.kl(mean[block.where].reshape(block.shape), found) < 0.1


def test_noise_is_averaged() -> None:
    few, many = zip(*(lost(0.3, seed, 500, (60, -1)) for seed in range(3)), strict=True)
    assert max(many) < 0.3 and max(many) < min(few)


@pytest.mark.slow
@pytest.mark.parametrize(("level", "nats"), [(0.1, 0.05), (1.0, 1.0), (3.0, 4.0), (10.0, 20.0)])
def test_no_level_of_noise_makes_it_diverge(level: float, nats: float) -> None:
    """Twelve entries, in six seeds; at the largest level the fit is still on its way."""
    assert max(lost(level, seed, 4000) for seed in range(6)) < [nats]
