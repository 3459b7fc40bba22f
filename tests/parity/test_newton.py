"""Deterministic steps of SVN and WGD agree between the packages in float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pyro
import pyro.distributions as pd
import pytest
import torch

import numpyro_ext.gradients as ng
import numpyro_ext.kernels as nk
import numpyro_ext.stein as ns
import pyro_ext.gradients as pg
import pyro_ext.kernels as pk
import pyro_ext.stein as ps
from ppl_ext.curvature import GaussNewton
from ppl_ext.newton import NewtonSystem
from tests.models import numpyro_models, pyro_models, zoo

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

STEPS = 4

CASES: dict[str, dict[str, Any]] = {
    "full": {},
    "block_diagonal": {
        "system": NewtonSystem("block_diagonal", solver="dense"),
        "step_size": 0.3,
    },
    "diag": {
        "curvature": "diag",
        "likelihood_temperature": 2.0,
        "system": NewtonSystem(solver="cg"),
    },
    "kfac": {
        "curvature": GaussNewton("kfac", every=2),
        "system": NewtonSystem(repulsion="all"),
        "damping": 10.0,
        # All rows of a model that subsamples them, in chunks of two sizes.
        "data_chunk": 5,
    },
}

GENERATOR = np.random.default_rng(3)
X, Y = GENERATOR.normal(size=(12, 2)), GENERATOR.poisson(2.0, size=12).astype(float)


def network_of(package: Any, host: Any, tanh: Any, exp: Any, zeros: Any) -> Any:
    """A network of one layer with a site of each kind of block, for either host."""

    def network(x: Any, y: Any) -> None:
        w = package.sample("w", host.Normal(zeros((2, 3)), 1.0).to_event(2))
        v = package.sample("v", host.Normal(zeros(3), 2.0).to_event(1))
        with package.plate("N", 12, subsample_size=4) as i:
            package.sample("y", host.Poisson(exp(tanh(x[i] @ w) @ v)), obs=y[i])

    return network


def programs(name: str) -> tuple[Any, Any, Any, Any, int]:
    """Model and arguments for Pyro and for NumPyro, and the number of dimensions."""
    if name == "network":
        ours = network_of(pyro, pd, torch.tanh, torch.exp, torch.zeros)
        theirs = network_of(numpyro, nd, jnp.tanh, jnp.exp, jnp.zeros)
        return ours, (torch.from_numpy(X), torch.from_numpy(Y)), theirs, (X, Y), 9
    dim = sum(int(np.prod(shape)) for shape in zoo.ZOO[name].latents.values())
    ours, theirs = pyro_models.build(name), numpyro_models.build(name)
    return ours, pyro_models.arguments(name), theirs, numpyro_models.arguments(name), dim


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("full", "logistic_regression"),
        ("block_diagonal", "gamma_poisson"),
        ("diag", "nested_plates"),
        ("kfac", "network"),
    ],
)
def test_newton_steps_agree(case: str, name: str) -> None:
    model, arguments, other_model, others, dim = programs(name)
    start = np.random.default_rng(11).gamma(2.0, size=(6, dim)) - 1.0
    options: dict[str, Any] = {"num_particles": 6, **CASES[case]}
    chunked = "data_chunk" in options
    ours = ps.SVN(model, estimator=pg.Full() if chunked else None, **options)
    ours.setup(*arguments)
    ours._particles.copy_(torch.from_numpy(start))
    theirs = ns.SVN(other_model, estimator=ng.Full() if chunked else None, **options)
    state = theirs.init(jax.random.PRNGKey(0), *others)
    state = state._replace(algorithm=state.algorithm._replace(particles=jnp.asarray(start)))
    for _ in range(STEPS):
        loss = ours.step(*arguments)
        state, other_loss = theirs.update(state, *others)
        np.testing.assert_allclose(loss, other_loss, rtol=1e-8)
        np.testing.assert_allclose(ours.particles, theirs.particles(state), rtol=1e-7, atol=1e-8)
        damping = state.algorithm.damping
        np.testing.assert_allclose(ours.history["damping"][-1], damping, rtol=1e-12)


def test_repulsive_ensembles_agree() -> None:
    name = "logistic_regression"
    dim = sum(int(np.prod(shape)) for shape in zoo.ZOO[name].latents.values())
    start = np.random.default_rng(11).gamma(2.0, size=(6, dim)) - 1.0
    kernel = 0.5 * pk.RBF(3.0) + pk.IMQ("dimension", metric="variance")
    ours = ps.WGD(pyro_models.build(name), pyro.optim.SGD({"lr": 1e-3}), kernel, 6)
    arguments = pyro_models.arguments(name)
    ours.setup(*arguments)
    with torch.no_grad():
        ours._particles.copy_(torch.from_numpy(start))
    other_kernel = 0.5 * nk.RBF(3.0) + nk.IMQ("dimension", metric="variance")
    theirs = ns.WGD(numpyro_models.build(name), numpyro.optim.SGD(1e-3), other_kernel, 6)
    others = numpyro_models.arguments(name)
    state = theirs.init(jax.random.PRNGKey(0), *others)
    optimizer = theirs.optim.init(jnp.asarray(start))
    state = state._replace(algorithm=state.algorithm._replace(optimizer=optimizer))
    for _ in range(STEPS):
        ours.step(*arguments)
        state, _ = theirs.update(state, *others)
        np.testing.assert_allclose(ours.particles, theirs.particles(state), rtol=1e-9, atol=1e-10)
