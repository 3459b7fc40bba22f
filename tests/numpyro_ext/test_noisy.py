"""Scores with noise added."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_ext.density import LogDensity
from numpyro_ext.gradients import Full, Minibatch, Noisy
from ppl_ext.errors import ArgumentError

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(0)
Y = jnp.arange(11.0)


def subsampled(y: jax.Array) -> None:
    a = numpyro.sample("a", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    with numpyro.plate("N", len(y), subsample_size=3) as rows:
        numpyro.sample("y", dist.Normal(a[0] + 2.0 * a[1], 1.0), obs=y[rows])


def test_noise_is_normal_and_as_large_as_the_largest_entry() -> None:
    target = LogDensity(subsampled, KEY, (Y,))
    data = target.bind(Y)
    estimator = Noisy(Full(), level=0.5)
    z = jnp.array([[0.5, 1.0, -2.0], [30.0, 0.0, 0.0]]).repeat(20_000, 0)
    exact = target.full_score(z, data)
    state = estimator.init(target, data, KEY, 1)
    found, state = estimator.estimate(target, state, z, data)
    for part in ("log_prior", "log_likelihood"):
        np.testing.assert_array_equal(getattr(found, part), getattr(exact, part))
    size = np.abs(exact.score).max(-1, keepdims=True)
    noise = np.asarray((found.score - exact.score) / size).reshape(2, -1, 3)
    # Means and second moments of 20,000 standard normal draws, times the level, in every
    # coordinate and in every pair of coordinates.
    error = 5 / 20_000**0.5
    assert (np.abs(noise.mean(1)) < 0.5 * error).all()
    second = noise.swapaxes(1, 2) @ noise / 20_000
    assert (np.abs(second - 0.25 * np.eye(3)) < 0.25 * 2**0.5 * error).all()
    # Particles and steps have noise of their own.
    assert np.abs((noise[0] * noise[1]).mean()) < 0.25 * error
    again, _ = estimator.estimate(target, state, z, data)
    assert (again.score != found.score).all()


def test_level_zero_and_the_estimator_beneath() -> None:
    target = LogDensity(subsampled, KEY, (Y,))
    data, z = target.bind(Y), jnp.array([[0.5, 1.0, -2.0]])
    noisy = Noisy(level=0.0)
    state = noisy.init(target, data, KEY, 1)
    expected, inner = Minibatch().estimate(target, state["inner"], z, data)
    found, following = noisy.estimate(target, state, z, data)
    # The default is the engines' own, and its state goes on.
    np.testing.assert_array_equal(found.score, expected.score)
    assert int(following["inner"]["position N"]) == int(inner["position N"]) == 3
    assert not (jax.random.key_data(following["rng_key"]) == jax.random.key_data(KEY)).all()
    assert noisy.evaluations_per_step(target) == pytest.approx(3 / 11)
    assert Noisy(Full(), level=1.0).evaluations_per_step(target) == 1.0


def test_derivative_is_that_of_the_score_itself() -> None:
    target = LogDensity(subsampled, KEY, (Y,))
    data, z = target.bind(Y), jnp.array([[0.5, 1.0, -2.0]])
    noisy = Noisy(Full(), level=3.0)
    state = noisy.init(target, data, KEY, 1)
    vector = jnp.array([[1.0, 2.0, 3.0]])
    _, pulled = jax.vjp(lambda z: noisy.estimate(target, state, z, data)[0].score, z)
    _, expected = jax.vjp(lambda z: target.full_score(z, data).score, z)
    np.testing.assert_allclose(pulled(vector)[0], expected(vector)[0], rtol=1e-12)


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="level >= 0, found -1"):
        Noisy(level=-1.0)
    with pytest.raises(ArgumentError, match=r"found float.*Noisy\(level=0.5\)"):
        Noisy(0.5, level=1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="level"):
        Noisy()  # type: ignore[call-arg]
