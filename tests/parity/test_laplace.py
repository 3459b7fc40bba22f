"""Steps, marginal likelihoods and Gaussians of LaplaceGGN agree between the packages in float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import optax
import pyro
import pyro.distributions as pd
import pytest
import torch

from numpyro_ext import LaplaceGGN as Theirs
from ppl_ext.curvature import GaussNewton
from pyro_ext import LaplaceGGN as Ours

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(12, 2))
Y = (X.sum(1) > 0.0).astype(float)
START = 0.5 * GENERATOR.normal(size=(1, 10))


def pyro_network(x: Any, y: Any) -> None:
    width = pyro.sample("width", pd.Gamma(2.0, 1.0))
    w = pyro.sample("w", pd.Normal(torch.zeros(2, 3), width).to_event(2))
    v = pyro.sample("v", pd.Normal(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])).to_event(1))
    with pyro.plate("N", 12):
        pyro.sample("y", pd.Bernoulli(logits=torch.tanh(x @ w) @ v), obs=y)


def numpyro_network(x: Any, y: Any) -> None:
    width = numpyro.sample("width", nd.Gamma(2.0, 1.0))
    w = numpyro.sample("w", nd.Normal(jnp.zeros((2, 3)), width).to_event(2))
    v = numpyro.sample("v", nd.Normal(jnp.zeros(3), jnp.asarray([1.0, 2.0, 3.0])).to_event(1))
    with numpyro.plate("N", 12):
        numpyro.sample("y", nd.Bernoulli(logits=jnp.tanh(x @ w) @ v), obs=y)


@pytest.mark.parametrize(
    "options",
    [
        {"curvature": "kfac", "hyperparameters": ["width"], "hyperparameters_every": 2},
        {
            "curvature": GaussNewton("low_rank", sites=["v"], rank=3),
            "hyperparameters": ["width"],
        },
    ],
    ids=["kfac", "low_rank"],
)
def test_steps_and_gaussians_agree(options: dict[str, Any]) -> None:
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    ours = Ours(pyro_network, pyro.optim.SGD({"lr": 0.02}), **options)
    ours.setup(x, y)
    assert ours._particles is not None
    with torch.no_grad():
        ours._particles.copy_(torch.from_numpy(START))
    theirs = Theirs(numpyro_network, optax.sgd(0.02), **options)
    state = theirs.init(jax.random.key(0), X, Y)
    optimizer = theirs.optim.init(jnp.asarray(START))
    state = state._replace(algorithm=state.algorithm._replace(optimizer=optimizer))
    for _ in range(3):
        loss = ours.step(x, y)
        state, other_loss = theirs.update(state, X, Y)
        np.testing.assert_allclose(loss, other_loss, rtol=1e-10)
        np.testing.assert_allclose(ours.particles, theirs.particles(state), rtol=1e-9)
    np.testing.assert_allclose(
        ours.log_marginal_likelihood(), theirs.log_marginal_likelihood(state), rtol=1e-9
    )
    dim = 9 if options["curvature"] == "kfac" else 3
    found = ours.fit_curvature().draws(torch.eye(dim))
    other = np.asarray(theirs.fit_curvature(state).draws(jnp.eye(dim)))
    # Eigenvectors may differ in sign; what the draws' covariance is may not.
    np.testing.assert_allclose(found.T @ found, other.T @ other, rtol=1e-8, atol=1e-10)
