"""The closed form for diagonal Normal guides in NumPyro's package."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random

from numpyro_ext.guides import Moments
from numpyro_ext.score.regression.diagonal import (
    DiagonalForm,
    DiagonalRegression,
    observe,
    schedule,
    updated_moments,
)
from numpyro_ext.score.regression.pairs import antithetic, initial_count
from tests.regression_support import (
    curve,
    diagonal_loss,
    example,
    literal_diagonal_step,
    normal_target,
)

jax.config.update("jax_enable_x64", True)


class Plain:
    """A density whose parameters are the moments."""

    def mean(self, parameters: dict[str, Any]) -> Any:
        return parameters["mean"]

    def moments(self, parameters: dict[str, Any]) -> Moments:
        return Moments(parameters["mean"], parameters["scale"])

    def set_moments(self, parameters: dict[str, Any], moments: Moments) -> dict[str, Any]:
        return {"mean": moments.mean, "scale": moments.scale}


# It has what the form asks of a guide's density, and is not one.
PLAIN: Any = Plain()


def fit(score: Callable[..., Any], mean: Any, total: int, known: bool, key: Any) -> Moments:
    """The guide after ``total`` pairs of score(theta, key), from standard deviations of 0.1."""
    form = DiagonalForm(PLAIN)

    def step(carry: Any, key: Any) -> tuple[Any, None]:
        parameters, state = carry
        draw_key, score_key = random.split(key)
        draw = parameters["mean"] + parameters["scale"] * random.normal(draw_key, (1, len(mean)))
        theta = antithetic(draw, parameters["mean"])
        state, parameters = form.update(
            state, parameters, theta, score(theta, score_key), total if known else 0
        )
        return (parameters, state), None

    parameters = {"mean": mean, "scale": jnp.full_like(mean, 0.1)}
    start = parameters, form.initial(parameters)
    found: dict[str, Any] = lax.scan(step, start, random.split(key, total))[0][0]
    return Moments(found["mean"], found["scale"])


@functools.partial(jax.jit, static_argnames=("total", "known"))
def fits(means: Any, precisions: Any, level: float, keys: Any, total: int, known: bool) -> Moments:
    """Fits of Normal targets, one for each key, with scores of relative noise."""

    def one(target_mean: Any, precision: Any, key: Any) -> Moments:
        def score(theta: Any, key: Any) -> Any:
            exact = (target_mean - theta) @ precision
            size = level * jnp.abs(exact).max(1, keepdims=True)
            return exact + size * random.normal(key, exact.shape)

        return fit(score, jnp.zeros_like(target_mean), total, known, key)

    return jax.vmap(one)(means, precisions, keys)


def losses(level: float, total: int, seeds: int, known: bool = True) -> list[float]:
    """Nats lost on correlated Normal targets of three dimensions."""
    targets = [normal_target(3, seed) for seed in range(seeds)]
    means = np.stack([mean for mean, _ in targets])
    precisions = np.stack([np.linalg.inv(covariance) for _, covariance in targets])
    keys = random.split(random.key(0), seeds)
    found = fits(means, precisions, level, keys, total, known)
    return [
        diagonal_loss(np.asarray(mean), np.asarray(scale), *target)
        for mean, scale, target in zip(*found, targets, strict=True)
    ]


@pytest.mark.parametrize(
    ("total", "trust", "shared"),
    [
        (12, 50.0, 0.0),
        (20, 50.0, 0.0),
        (20, 1.25, 0.0),
        (600, 50.0, 0.0),
        (600, 50.0, 1e5),
        (0, 50.0, 0.0),
    ],
)
def test_one_update_agrees_with_its_definition(total: int, trust: float, shared: float) -> None:
    """Also where noise that the two scores of a pair share is great beside the posterior."""
    theta, score, mean, factor = example(20, 1.0)
    noise = np.random.default_rng(7).normal(size=(len(score), 1, 20)) * np.geomspace(1e-6, 1, 20)
    score = score + shared * noise
    scale = np.diagonal(factor)
    moments = Moments(jnp.asarray(mean), jnp.asarray(scale))
    zeros = [jnp.zeros(20) for _ in range(5)]
    state = DiagonalRegression(initial_count(moments.mean.dtype), *zeros, jnp.zeros(()))
    for t, (points, scores) in enumerate(zip(theta, score, strict=True)):
        now = schedule(t, total, 20, moments.mean.dtype)
        state = observe(state, moments, jnp.asarray(points), jnp.asarray(scores), 0.8, now)
    found = updated_moments(state, moments, now, trust)
    expected = literal_diagonal_step(theta, score, mean, scale, total, 0.8, trust)
    np.testing.assert_allclose(found.mean, expected[0], rtol=1e-10)
    np.testing.assert_allclose(found.scale, expected[1], rtol=1e-10)
    assert (np.abs(expected[0] - mean) > 1e-9).all() and (expected[1] != scale).all()


def test_no_update_before_six_pairs() -> None:
    form = DiagonalForm(PLAIN)
    parameters = {"mean": jnp.zeros(2), "scale": jnp.ones(2)}
    state = form.initial(parameters)
    for t in range(6):
        assert float(jnp.abs(parameters["mean"]).max()) == 0.0
        theta = antithetic(random.normal(random.key(t), (1, 2)), jnp.zeros(2))
        state, parameters = form.update(state, parameters, theta, 1.0 - theta, 100)
    assert (parameters["mean"] > 0).all()


def test_the_mean_moves_at_most_one_standard_deviation() -> None:
    scale = np.asarray([0.5, 2.0])
    moments = Moments(jnp.zeros(2), jnp.asarray(scale))
    zeros = [jnp.zeros(2) for _ in range(5)]
    state = DiagonalRegression(initial_count(moments.mean.dtype), *zeros, jnp.zeros(()))
    for t in range(9):
        now = schedule(t, 12, 2, moments.mean.dtype)
        theta = antithetic(moments.scale * random.normal(random.key(t), (1, 2)), moments.mean)
        state = observe(state, moments, theta, jnp.asarray([1e4, -1e4]) - theta, 0.9, now)
    state = state._replace(score_noise=jnp.zeros(2))
    found = updated_moments(state, moments, now, 1.25)
    np.testing.assert_allclose(found.mean, scale * [1, -1])


def test_the_temperature_rises_to_one_at_half_of_the_run() -> None:
    for dim, cold in ((10, 1.0), (50, 0.04), (1000, 1e-3)):
        found = [float(schedule(t, 200, dim, float).temperature) for t in (0, 50, 100, 150)]
        np.testing.assert_allclose(found, [cold, cold**0.5, 1.0, 1.0], rtol=1e-6)


def test_what_is_warm_stays_warm() -> None:
    """In a longer run that follows, where the schedule would be cold again."""
    dim, draws = 50, np.random.default_rng(0)
    form = DiagonalForm(PLAIN)
    parameters = {"mean": jnp.zeros(dim), "scale": jnp.ones(dim)}
    state = form.initial(parameters)
    for t in range(21):
        moments, before = form.density.moments(parameters), state
        theta = antithetic(
            moments.mean + moments.scale * jnp.asarray(draws.normal(size=(1, dim))), moments.mean
        )
        # Noise that the scores share, great enough to count by its root in the cold.
        score = 1e4 * jnp.asarray(draws.normal(size=(1, dim))) - theta
        state, parameters = form.update(state, parameters, theta, score, 20 if t < 20 else 4000)
    now = schedule(20, 4000, dim, jnp.zeros(()).dtype)
    assert now.temperature < 0.1 and now.coldness > 0.9
    now = now._replace(temperature=jnp.ones(()), coldness=jnp.zeros(()))
    seen = observe(before, moments, theta, score, form.decay, now)
    expected = updated_moments(seen, moments, now, form.trust)
    assert state.temperature == 1.0
    np.testing.assert_allclose(parameters["mean"], expected.mean, rtol=1e-9)
    np.testing.assert_allclose(parameters["scale"], expected.scale, rtol=1e-9)


def test_an_independent_normal_is_exact() -> None:
    """Without noise twenty time constants leave e^-20 of the start and e^-10 of the cold half."""
    scale, mean = np.asarray([0.03, 0.3, 3.0, 0.1]), np.asarray([0.2, -1.0, 4.0, -0.3])
    keys = random.split(random.key(0), 1)
    found = fits(mean[None], np.diag(scale**-2)[None], 0.0, keys, 300, True)
    np.testing.assert_allclose((found.mean[0] - mean) / scale, 0.0, atol=1e-3)
    np.testing.assert_allclose(found.scale[0] / scale, 1.0, atol=1e-3)


def test_a_correlated_normal_gets_the_diagonal_of_its_precision() -> None:
    """Draws make e noisy: a relative variance of about 20 / T in each precision."""
    assert max(losses(0.0, 1500, 10)) < 3 * 20 / 1500


def test_a_run_of_unknown_length_converges() -> None:
    assert max(losses(0.0, 3000, 10, known=False)) < 0.03


def test_noise_is_averaged() -> None:
    found = losses(1.0, 3000, 10)
    assert float(np.mean(found)) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.1, 1.0, 3.0, 10.0])
def test_no_level_of_noise_makes_it_diverge(level: float) -> None:
    """Within a nat of the best diagonal fit in twenty seeds."""
    assert max(losses(level, 50_000, 20)) < 1.0


def test_a_network_does_not_collapse_to_the_prior() -> None:
    """Its mean prediction follows the curve; the prior's is constant, with an error of one."""
    x, y = map(jnp.asarray, curve(0))
    hidden = 20

    def predicted(theta: Any) -> Any:
        w1, b1, w2 = theta[:hidden], theta[hidden : 2 * hidden], theta[2 * hidden : -1]
        return jax.nn.relu(x * w1 + b1) @ w2

    def log_density(theta: Any, rows: Any) -> Any:
        residual = (y - predicted(theta))[rows] * jnp.exp(-theta[-1])
        likelihood = -0.5 * jnp.square(residual).sum() - len(rows) * theta[-1]
        weights, noise = theta[:-1], jnp.exp(theta[-1])
        return 5 * likelihood - 0.5 * jnp.square(weights).sum() - 0.5 * noise**2 + theta[-1]

    def score(theta: Any, key: Any) -> Any:
        rows = random.permutation(key, 100)[:20]
        return jax.vmap(jax.grad(log_density), in_axes=(0, None))(theta, rows)

    start = random.normal(random.key(1), (3 * hidden + 1,))
    found = jax.jit(lambda: fit(score, start, 1500, True, random.key(2)))()
    draws = found.mean + found.scale * random.normal(random.key(3), (200, len(start)))
    error = jnp.sqrt(jnp.square(jax.vmap(predicted)(draws).mean(0) - y).mean())
    assert float(error) < 0.4
