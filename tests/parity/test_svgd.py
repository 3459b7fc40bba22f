"""Deterministic steps of SVGD and DeepEnsemble agree between the packages in float64."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pyro
import pytest
import torch

import numpyro_ext.kernels as nk
import numpyro_ext.stein as ns
import pyro_ext.kernels as pk
import pyro_ext.stein as ps
from tests.models import numpyro_models, pyro_models, zoo

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

STEPS = 5


def pyro_trajectory(engine, start, data):
    engine.setup(*data)
    with torch.no_grad():
        engine._particles.copy_(torch.from_numpy(start))
    particles, losses = [], []
    for _ in range(STEPS):
        losses.append(engine.step(*data))
        particles.append(engine.particles.numpy())
    return np.stack(particles), np.array(losses)


def numpyro_trajectory(engine, start, data):
    state = engine.init(jax.random.PRNGKey(0), *data)
    algorithm = state.algorithm._replace(optimizer=engine.optim.init(jnp.asarray(start)))
    state = state._replace(algorithm=algorithm)
    particles, losses = [], []
    for _ in range(STEPS):
        state, loss = engine.update(state, *data)
        losses.append(loss)
        particles.append(engine.particles(state))
    return np.stack(particles), np.array(losses)


def gamma(t):
    return 0.5 + 0.1 * t


SVGD_OPTIONS = {"annealing": gamma, "likelihood_temperature": 2.0}
CASES = {
    "SVGD": (partial(ps.SVGD, **SVGD_OPTIONS), partial(ns.SVGD, **SVGD_OPTIONS)),
    "SVGD, sum": (
        partial(ps.SVGD, kernel=pk.RBF() + 0.5 * pk.Linear()),
        partial(ns.SVGD, kernel=nk.RBF() + 0.5 * nk.Linear()),
    ),
    "DeepEnsemble": (ps.DeepEnsemble, ns.DeepEnsemble),
}
OPTIMIZERS = {
    "SGD": (pyro.optim.SGD({"lr": 1e-3}), numpyro.optim.SGD(1e-3)),
    "Adam": (pyro.optim.Adam({"lr": 0.05}), numpyro.optim.Adam(0.05)),
}


@pytest.mark.parametrize(
    ("case", "name", "optimizer"),
    [
        ("SVGD", "logistic_regression", "Adam"),
        ("SVGD", "dependent_uniform", "SGD"),
        ("SVGD, sum", "nested_plates", "Adam"),
        ("DeepEnsemble", "logistic_regression", "Adam"),
    ],
)
def test_steps_agree(case, name, optimizer):
    ours, theirs = CASES[case]
    dim = sum(int(np.prod(shape)) for shape in zoo.ZOO[name].latents.values())
    # An even number of pairs, so that the median averages; starts that are not symmetric.
    start = np.random.default_rng(11).gamma(2.0, size=(8, dim)) - 1.0
    first = ours(pyro_models.build(name), OPTIMIZERS[optimizer][0], num_particles=len(start))
    second = theirs(numpyro_models.build(name), OPTIMIZERS[optimizer][1], num_particles=len(start))
    found, losses = pyro_trajectory(first, start, pyro_models.arguments(name))
    other, other_losses = numpyro_trajectory(second, start, numpyro_models.arguments(name))
    np.testing.assert_allclose(found, other, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(losses, other_losses, rtol=1e-10)


def test_the_rooms_have_the_same_names():
    assert ps.__all__ == ns.__all__
