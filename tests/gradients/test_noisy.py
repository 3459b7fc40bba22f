"""Scores with noise added."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from tests.backends import use_float64
from tests.gradients_support import Estimation

use_float64()

Z = np.array([[0.5, 1.0, -2.0]])


def of(backend: Any, *estimators: Any) -> tuple[Estimation, ...]:
    """Estimators at work on one target, from the same seed."""
    host, dist = backend.host, backend.dist

    def subsampled(y: Any) -> None:
        a = host.sample("a", dist.Normal(backend.xp.zeros(3), 1.0).to_event(1))
        with host.plate("N", len(y), subsample_size=3) as rows:
            host.sample("y", dist.Normal(a[0] + 2.0 * a[1], 1.0), obs=y[rows])

    target, data = backend.target(subsampled, (backend.array(np.arange(11.0)),))
    return tuple(Estimation(backend, each, target, data, 1) for each in estimators)


def test_noise_is_normal_and_as_large_as_the_largest_entry(backend: Any) -> None:
    (noisy,) = of(backend, backend.public.Noisy(backend.public.Full(), level=0.5))
    z = np.array([*Z, [30.0, 0.0, 0.0]]).repeat(20_000, 0)
    exact, found = noisy.full(z), noisy.estimate(z)
    for part in ("log_prior", "log_likelihood"):
        np.testing.assert_array_equal(getattr(found, part), getattr(exact, part))
    size = np.abs(exact.score).max(-1, keepdims=True)
    noise = ((found.score - exact.score) / size).reshape(2, -1, 3)
    # Means and second moments of 20,000 standard normal draws, times the level, in every
    # coordinate and in every pair of coordinates.
    error = 5 / 20_000**0.5
    assert (np.abs(noise.mean(1)) < 0.5 * error).all()
    second = noise.swapaxes(1, 2) @ noise / 20_000
    assert (np.abs(second - 0.25 * np.eye(3)) < 0.25 * 2**0.5 * error).all()
    # Particles and steps have noise of their own.
    assert np.abs((noise[0] * noise[1]).mean()) < 0.25 * error
    assert (noisy.estimate(z).score != found.score).all()


def test_level_zero_and_the_estimator_beneath(backend: Any) -> None:
    public = backend.public
    noisy, plain = of(backend, public.Noisy(level=0.0), public.Minibatch())
    if not backend.is_pyro:  # which splits its key for the estimator beneath
        plain.state = noisy.state["inner"]
    np.testing.assert_array_equal(noisy.estimate(Z).score, plain.estimate(Z).score)
    # The default is the engines' own, and its state goes on.
    position = (
        noisy.state["N"]["position"] if backend.is_pyro else noisy.state["inner"]["position N"]
    )
    assert int(position) == 3
    target = noisy.target
    assert public.Noisy(level=0.0).evaluations_per_step(target) == pytest.approx(3 / 11)
    assert public.Noisy(public.Full(), level=1.0).evaluations_per_step(target) == 1.0


def test_derivative_is_that_of_the_score_itself(backend: Any) -> None:
    noisy, exact = of(
        backend, backend.public.Noisy(backend.public.Full(), level=3.0), backend.public.Full()
    )
    vector, found = np.array([[1.0, 2.0, 3.0]]), []
    for each in (noisy, exact):
        if backend.is_pyro:  # whose scores are differentiated by a target of its own
            from pyro_ext.score.fisher import DifferentiableTarget

            z, target = backend.array(Z).requires_grad_(), DifferentiableTarget(each.target)
            score = each.estimator.estimate(target, {}, z, each.data, backend.key())[0].score
            score.backward(backend.array(vector))
            found.append(backend.numpy(z.grad))
        else:
            _, pulled = backend.transforms.vjp(
                lambda z, each=each: each._estimate(each.state, z, each.data)[0].score,
                backend.array(Z),
            )
            found.append(pulled(backend.array(vector))[0])
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_bad_arguments(backend: Any) -> None:
    Noisy = backend.public.Noisy
    with pytest.raises(ArgumentError, match="level >= 0, found -1"):
        Noisy(level=-1.0)
    with pytest.raises(ArgumentError, match=r"found float.*Noisy\(level=0.5\)"):
        Noisy(0.5, level=1.0)
    with pytest.raises(TypeError, match="level"):
        Noisy()
