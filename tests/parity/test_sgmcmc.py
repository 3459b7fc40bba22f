"""The two packages' dynamics and schedules give the same numbers, and those of the formulas."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from numpyro_ext.sgmcmc import dynamics as numpyro_dynamics
from numpyro_ext.sgmcmc import schedules as numpyro_schedules
from pyro_ext.sgmcmc import dynamics as pyro_dynamics
from pyro_ext.sgmcmc import schedules as pyro_schedules

jax.config.update("jax_enable_x64", True)

GENERATOR = np.random.default_rng(0)
Z, MOMENTUM, SCORE, NOISE = GENERATOR.normal(size=(4, 3, 5))
SCALE = np.exp(GENERATOR.normal(size=(3, 5)))
MASS = np.exp(GENERATOR.normal(size=5))


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_a_step_of_langevin_dynamics(temperature: float) -> None:
    step = 0.07
    for preconditioner in (None, SCALE):
        g = 1.0 if preconditioner is None else preconditioner
        expected = Z + step * g * SCORE + np.sqrt(2.0 * step * temperature * g) * NOISE
        found = numpyro_dynamics.langevin_step(
            *map(jnp.asarray, (Z, SCORE, NOISE)), step, g, temperature
        )
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        given = None if preconditioner is None else torch.as_tensor(preconditioner)
        tensors = map(torch.as_tensor, (Z, SCORE, NOISE))
        result = pyro_dynamics.langevin_step(*tensors, step, given, temperature)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-12)


def test_a_step_with_momentum() -> None:
    step, friction = 0.3, 1.7
    decay = np.exp(-friction * step)
    momentum = MOMENTUM + step * SCORE
    half = Z + 0.5 * step * momentum / MASS
    momentum = decay * momentum + np.sqrt(MASS * (1.0 - decay**2)) * NOISE
    expected = half + 0.5 * step * momentum / MASS
    arrays = (Z, MOMENTUM, SCORE, NOISE)
    found = numpyro_dynamics.hamiltonian_step(*map(jnp.asarray, arrays), step, friction, MASS)
    mass = torch.as_tensor(MASS)
    result = pyro_dynamics.hamiltonian_step(*map(torch.as_tensor, arrays), step, friction, mass)
    for ours, theirs, wanted in zip(found, result, (expected, momentum), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-12)
        np.testing.assert_allclose(theirs.numpy(), wanted, rtol=1e-12)


def test_schedules() -> None:
    for step in (0, 1, 24, 25, 1000):
        for name, values in (("polynomial_decay", (0.3, 2.0, 0.7)), ("cosine_cycles", (0.2, 25))):
            ours = getattr(numpyro_schedules, name)(*values)(step)
            theirs = getattr(pyro_schedules, name)(*values)(step)
            assert float(ours) == pytest.approx(float(theirs), rel=1e-12)
