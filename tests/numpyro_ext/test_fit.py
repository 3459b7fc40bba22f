"""``fit`` where NumPyro differs: latent sites inside scan, and keys."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import Array
from numpyro.contrib.control_flow import scan

import numpyro_ext as nx


def test_a_random_walk_is_fitted_as_it_is_written() -> None:
    y = jnp.array([0.3, 1.1, 0.4, 1.9, 2.2])

    def model(y: Array) -> None:
        def step(before: Array, observed: Array) -> tuple[Array, None]:
            x = numpyro.sample("x", dist.Normal(before, 1.0))
            numpyro.sample("y", dist.Normal(x, 0.5), obs=observed)
            return x, None

        scan(step, jnp.zeros(()), y)

    fit = nx.fit(jax.random.key(0), model, y, progress_bar=False)
    assert fit.verdict.level == "exact"
    lower = np.tril(np.ones((5, 5)))
    precision = np.linalg.inv(lower @ lower.T) + 4.0 * np.eye(5)
    mean = np.linalg.solve(precision, 4.0 * np.asarray(y))
    deviation = np.sqrt(np.diag(np.linalg.inv(precision)))
    draws = np.asarray(fit.draws["x"])
    assert np.abs((draws.mean(0) - mean) / deviation).max() < 0.25
    assert draws.std(0) == pytest.approx(deviation, rel=0.15)


def test_a_forgotten_key_is_told() -> None:
    def model() -> None:
        numpyro.sample("x", dist.Normal(0.0, 1.0))

    with pytest.raises(nx.ArgumentError, match="Expected rng_key to be a JAX key"):
        nx.fit(model, model)  # type: ignore[arg-type]
