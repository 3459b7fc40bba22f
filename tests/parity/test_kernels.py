"""The two packages' kernels give the same numbers in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import numpyro_ext.kernels as nk
import pyro_ext.kernels as pk

jax.config.update("jax_enable_x64", True)

KERNELS = {
    **{f"RBF {rule}": (pk.RBF(rule), nk.RBF(rule)) for rule in pk.BANDWIDTH_RULES},
    **{f"IMQ {rule}": (pk.IMQ(rule, -0.3), nk.IMQ(rule, -0.3)) for rule in pk.BANDWIDTH_RULES},
    "RBF 0.7": (pk.RBF(0.7), nk.RBF(0.7)),
    "Linear": (pk.Linear(), nk.Linear()),
    "Linear, identity": (pk.Linear(None), nk.Linear(None)),
    "sum": (pk.RBF() + 0.3 * pk.Linear(), nk.RBF() + 0.3 * nk.Linear()),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("shape", [(2, 3), (12, 5)])
def test_direction_and_gram(name, shape):
    ours, theirs = KERNELS[name]
    generator = np.random.default_rng(7)
    particles = generator.normal(size=shape) * 3.0 + 50.0
    scores = generator.exponential(size=shape) - 0.2
    z, s = torch.from_numpy(particles), torch.from_numpy(scores)
    phi, state = ours.direction(ours.init(z), z, s)
    x, t = jnp.asarray(particles), jnp.asarray(scores)
    other, other_state = theirs.direction(theirs.init(x), x, t)
    np.testing.assert_allclose(phi.numpy(), other, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(
        ours.gram(state, z).numpy(), theirs.gram(other_state, x), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("rule", pk.BANDWIDTH_RULES)
@pytest.mark.parametrize("equal", [5, 6])
def test_bandwidth_of_coincident_particles(rule, equal):
    particles = np.random.default_rng(1).normal(size=(6, 3))
    particles[:equal] = particles[0]
    np.testing.assert_allclose(
        pk.bandwidth(rule, torch.from_numpy(particles)).numpy(),
        nk.bandwidth(rule, jnp.asarray(particles)),
        rtol=1e-9,
    )


def test_the_rules_have_the_same_names():
    assert pk.BANDWIDTH_RULES == nk.BANDWIDTH_RULES
    assert pk.__all__ == nk.__all__
