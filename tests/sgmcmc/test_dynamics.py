"""One step of each dynamics against its formula, and step sizes by step number, in float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppl_ext.sgmcmc import cosine_cycles, polynomial_decay
from tests.backends import use_float64

use_float64()

GENERATOR = np.random.default_rng(0)
Z, MOMENTUM, SCORE, NOISE = GENERATOR.normal(size=(4, 3, 5))
SCALE = np.exp(GENERATOR.normal(size=(3, 5)))
MASS = np.exp(GENERATOR.normal(size=5))


@pytest.fixture
def dynamics(backend: Any) -> Any:
    return backend.room("sgmcmc.dynamics")


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("preconditioner", [None, SCALE])
def test_a_step_of_langevin_dynamics(
    backend: Any, dynamics: Any, temperature: float, preconditioner: Any
) -> None:
    step, arrays = 0.07, map(backend.array, (Z, SCORE, NOISE))
    g = 1.0 if preconditioner is None else preconditioner
    expected = Z + step * g * SCORE + np.sqrt(2.0 * step * temperature * g) * NOISE
    options = {} if preconditioner is None else {"preconditioner": backend.array(preconditioner)}
    found = dynamics.langevin_step(*arrays, step, temperature=temperature, **options)
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
