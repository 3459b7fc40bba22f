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
    "RBF variance": (pk.RBF("dimension", "variance"), nk.RBF("dimension", "variance")),
    "default": (pk.default_kernel(), nk.default_kernel()),
    "mixture": (pk.mixture([pk.RBF(), pk.IMQ()], [1, 2]), nk.mixture([nk.RBF(), nk.IMQ()], [1, 2])),
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


MATRIX = np.array([[2.0, 0.7, 0.1], [0.7, 1.0, -0.3], [0.1, -0.3, 0.5]])
SITES = {"a": slice(0, 1), "b": slice(1, 3)}

#: Kernels for more particles than dimensions, of which there are three.
MANY_PARTICLES = {
    "covariance": (pk.RBF("median", "covariance"), nk.RBF("median", "covariance")),
    "matrix": (pk.IMQ(metric=torch.tensor(MATRIX)), nk.IMQ(metric=jnp.asarray(MATRIX))),
    "linear": (pk.Linear("covariance"), nk.Linear("covariance")),
    "preconditioned": (pk.Preconditioned(pk.RBF()), nk.Preconditioned(nk.RBF())),
    "graphical": (
        pk.Graphical(pk.RBF(), {}, {"b": ["a"]}).with_sites(SITES),
        nk.Graphical(nk.RBF(), {}, {"b": ["a"]}).with_sites(SITES),
    ),
    "random feature": (pk.RandomFeature(7, "median"), nk.RandomFeature(7, "median")),
}


@pytest.mark.parametrize("name", MANY_PARTICLES)
def test_direction_of_many_particles(name):
    ours, theirs = MANY_PARTICLES[name]
    generator = np.random.default_rng(8)
    particles, scores = generator.normal(size=(12, 3)) + 5.0, generator.exponential(size=(12, 3))
    z, x = torch.from_numpy(particles), jnp.asarray(particles)
    # Random features are each library's own draws; the algebra on them is the same.
    other_state = theirs.init(x)
    state = jax.tree.map(lambda leaf: torch.from_numpy(np.array(leaf)), other_state)
    phi, _ = ours.direction(state, z, torch.from_numpy(scores))
    other, _ = theirs.direction(other_state, x, jnp.asarray(scores))
    np.testing.assert_allclose(phi.numpy(), other, rtol=1e-9, atol=1e-11)


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
    assert pk.METRICS == nk.METRICS
    assert pk.__all__ == nk.__all__
