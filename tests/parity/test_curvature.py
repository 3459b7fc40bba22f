"""The two packages' Gauss-Newton matrices are the same in float64."""

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

import numpyro_ext.curvature as nc
import pyro_ext.curvature as pc
from numpyro_ext.density import LogDensity as NumPyroTarget
from pyro_ext.density import LogDensity as PyroTarget

jax.config.update("jax_enable_x64", True)

GENERATOR = np.random.default_rng(0)
X, COUNTS = GENERATOR.normal(size=(9, 3)), GENERATOR.poisson(3.0, size=9).astype(float)
POSITION = np.array([0.3, -0.2, 0.5, 0.4])
ROWS = np.array([0, 2, 3, 8])


def program(host: Any, dist: Any, ones: Any, exp: Any, classes: Any) -> Any:
    """Overdispersed counts, heavy-tailed values and classes from one linear predictor."""

    def model(x: Any, counts: Any, batch: int | None = None) -> None:
        w = host.sample("w", dist.Normal(ones(3), 1.0).to_event(1))
        size = host.sample("size", dist.LogNormal(0.0, 1.0))
        with host.plate("N", 9, subsample_size=batch) as i:
            mean = x[i] @ w
            host.sample("a", dist.GammaPoisson(size, exp(-mean)), obs=counts[i])
            host.sample("b", dist.StudentT(2.0 + size, mean, size), obs=counts[i])
            host.sample("c", dist.Gamma(size, exp(mean)), obs=1.0 + counts[i])
            host.sample("d", dist.Categorical(logits=x[i] * w), obs=classes(counts[i]))

    return model


@pytest.mark.parametrize("batch", [None, 4])
def test_gauss_newton_matrices(batch: int | None) -> None:
    with_numpyro = NumPyroTarget(
        program(numpyro, nd, jnp.ones, jnp.exp, lambda y: y.astype(int) % 3),
        jax.random.key(0),
        (jnp.asarray(X), jnp.asarray(COUNTS)),
        {"batch": batch},
    )
    data = with_numpyro.bind(jnp.asarray(X), jnp.asarray(COUNTS), batch=batch)
    indices = {} if batch is None else {"N": jnp.asarray(ROWS)}
    position, key = jnp.asarray(POSITION), jax.random.key(0)
    sites = nc.row_structure(with_numpyro, position, data, indices)
    rows = jax.jit(lambda z: nc.jacobian_rows(with_numpyro, z, data, indices, key, sites)[0])(
        position[None]
    )
    torch.set_default_dtype(torch.float64)
    try:
        arguments = (torch.from_numpy(X), torch.from_numpy(COUNTS))
        with_pyro = PyroTarget(
            program(pyro, pd, torch.ones, torch.exp, lambda y: y.long() % 3),
            arguments,
            {"batch": batch},
        )
        chosen = {} if batch is None else {"N": torch.from_numpy(ROWS)}
        bound, place = with_pyro.bind(*arguments, batch=batch), torch.from_numpy(POSITION)
        found = pc.row_structure(with_pyro, place, bound, chosen)
        other = pc.jacobian_rows(with_pyro, place[None], bound, chosen, found)[0].numpy()
    finally:
        torch.set_default_dtype(torch.float32)
    # Classes of their own, with the same fields.
    assert found.repeated == sites.repeated
    assert found.by_row == sites.by_row
    assert found.by_row == (set() if batch is None else {"a", "b", "c", "d"})
    matrix = np.asarray(rows.T @ rows)
    assert np.linalg.eigvalsh(matrix)[0] > 1e-3
    np.testing.assert_allclose(other.T @ other, matrix, rtol=1e-8, atol=1e-8)
