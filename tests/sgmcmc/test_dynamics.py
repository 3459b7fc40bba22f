"""One step of each dynamics against its formula, and step sizes by step number, in float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppl_ext.sgmcmc.kernels import Exchanges
from ppl_ext.sgmcmc.schedules import cosine_cycles, polynomial_decay
from tests.backends import use_float64

use_float64()

GENERATOR = np.random.default_rng(0)
Z, MOMENTUM, SCORE, NOISE = GENERATOR.normal(size=(4, 3, 5))
SCALE = np.exp(GENERATOR.normal(size=(3, 5)))
MASS = np.exp(GENERATOR.normal(size=5))


@pytest.fixture
def dynamics(backend: Any) -> Any:
    return backend.room("sgmcmc.dynamics")


@pytest.mark.parametrize("preconditioner", [None, SCALE])
def test_a_step_of_langevin_dynamics(backend: Any, dynamics: Any, preconditioner: Any) -> None:
    step, arrays = 0.07, map(backend.array, (Z, SCORE, NOISE))
    g = 1.0 if preconditioner is None else preconditioner
    expected = Z + step * g * SCORE + np.sqrt(2.0 * step * g) * NOISE
    options = {} if preconditioner is None else {"preconditioner": backend.array(preconditioner)}
    found = dynamics.langevin_step(*arrays, step, **options)
    np.testing.assert_allclose(backend.numpy(found), expected, rtol=1e-12)


def test_a_step_with_momentum(backend: Any, dynamics: Any) -> None:
    step, friction = 0.3, 1.7
    decay = np.exp(-friction * step)
    momentum = MOMENTUM + step * SCORE
    half = Z + 0.5 * step * momentum / MASS
    momentum = decay * momentum + np.sqrt(MASS * (1.0 - decay**2)) * NOISE
    arrays = map(backend.array, (Z, MOMENTUM, SCORE, NOISE))
    found = dynamics.hamiltonian_step(*arrays, step, friction, backend.array(MASS))
    for part, expected in zip(found, (half + 0.5 * step * momentum / MASS, momentum), strict=True):
        np.testing.assert_allclose(backend.numpy(part), expected, rtol=1e-12)


def test_exchanges_keep_the_balance_under_noise() -> None:
    """Of two places, one with an energy higher by 1.5, and noise of a known variance.

    In balance the cold replica is at the higher place exp(-δ 1.5) as often as at the lower one, so
    that this is the ratio of the frequencies of exchanges there and back.
    """
    count, gap, higher = 400_000, 0.6, 1.5
    sd = np.array([1.0, 2.0])
    generator = np.random.default_rng(0)

    def frequency(energies: Any, order: Any) -> float:
        # Noise belongs to a place, and goes with it.
        first, second = energies + sd[order] * generator.normal(size=(2, count, 2))
        zero = np.zeros((count, 1))
        known = np.tile(sd[order] ** 2 / 2.0, (count, 1))
        kept = Exchanges(known, zero + np.inf, zero + 1.0, zero, zero)
        log_uniform = np.log(generator.random((count, 1)))
        following, exchanged = kept.after(first, second, log_uniform, np.array([gap]), np)
        np.testing.assert_array_equal(following.variance, known)
        np.testing.assert_array_equal(following.accepted, exchanged)
        return float(exchanged.mean())

    down = frequency(np.array([higher, 0.0]), [0, 1])
    up = frequency(np.array([0.0, higher]), [1, 0])
    assert up / down == pytest.approx(np.exp(-gap * higher), rel=0.02)
    assert 0.1 < up < down < 1.0


def test_pairs_take_turns_and_variances_are_learnt() -> None:
    generator, count = np.random.default_rng(1), 4000
    zero = np.zeros((1, 3))
    kept = Exchanges(np.zeros((1, 4)), zero[:, :1], np.array([[1.0, 0.0, 1.0]]), zero, zero)
    for _ in range(count):
        first, second = 3.0 * generator.normal(size=(2, 1, 4))
        kept, exchanged = kept.after(first, second, zero - 50.0, np.full(3, 0.1), np)
        assert not np.any(exchanged[:, 1:] & exchanged[:, :-1])
    np.testing.assert_array_equal(kept.tried, [[count / 2] * 3])
    np.testing.assert_array_equal(kept.accepted, kept.tried)
    np.testing.assert_allclose(kept.variance, 4.5, rtol=0.2)
    # An energy that is not finite teaches nothing, and is not handed down.
    bad = np.array([[0.0, np.inf, 0.0, np.nan]])
    with np.errstate(invalid="ignore"):
        after, exchanged = kept.after(bad, bad, zero - 50.0, np.full(3, 0.1), np)
    assert np.isfinite(after.variance).all()
    assert not exchanged[0, 0]


def test_schedules() -> None:
    """Of Python's numbers of steps and of JAX's, traced too."""
    falling, cycle = polynomial_decay(0.5, 10.0, 0.6), cosine_cycles(0.2, 50)
    traced = jax.jit(lambda step: (falling(step), cycle(step)))
    for step in (0, 7, 13, 49, 50, 113, 1000):
        expected = (
            0.5 * (11.0 + step) ** -0.6,
            0.1 * (np.cos(np.pi * (step % 50) / 50) + 1.0),
        )
        number = jnp.asarray(step)
        for found in (
            (falling(step), cycle(step)),
            traced(number),
            (falling(number), cycle(number)),
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)
