"""Draws that a run is judged by, which are made of NumPy's numbers so that less is compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import autoguide
from scipy.stats import multivariate_normal

import numpyro_ext as nx
from ppl_ext.engines.judgement import Drawn

X = np.random.default_rng(0).normal(size=(30, 3)).astype("f")
Y = (X @ [1.0, -2.0, 0.5] + 0.3 * np.random.default_rng(1).normal(size=30)).astype("f")


def model(x: jax.Array, y: jax.Array) -> None:
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(x @ weights, 0.3), obs=y)


@pytest.mark.parametrize("name", ["AutoDiagonalNormal", "AutoMultivariateNormal"])
def test_guides_are_judged_by_draws_of_their_own_density(name: str) -> None:
    engine = nx.ProximalScoreVI(model, getattr(autoguide, name)(model))
    state = engine.run(jax.random.key(0), 50, X, Y, progress_bar=False).state
    check(engine, state, engine._to_judge(engine.plan, state, 400))


def test_a_laplace_approximation_is_judged_by_draws_of_its_own_density() -> None:
    engine = nx.LaplaceGGN(model, numpyro.optim.Adam(0.1))
    state = engine.run(jax.random.key(0), 200, X, Y, progress_bar=False).state
    drawn = engine._to_judge(engine.plan, state, 400)
    np.testing.assert_array_equal(drawn.where, np.arange(3))
    check(engine, state, drawn)


def check(engine: Any, state: Any, drawn: Drawn) -> None:
    """Four errors of 4,000 draws, and of 400 in the draws themselves."""
    handed_out = np.asarray(engine.get_samples(state, jax.random.key(1), 4_000)["weights"])
    mean, covariance = handed_out.mean(0), np.cov(handed_out.T)
    deviations = np.sqrt(np.diag(covariance))
    assert np.abs((drawn.positions.mean(0) - mean) / deviations).max() < 4.0 / 20.0
    assert np.abs(drawn.positions.std(0) / deviations - 1.0).max() < 4.0 / np.sqrt(2 * 400)
    expected = multivariate_normal(mean, covariance).logpdf(drawn.positions)
    assert drawn.log_density is not None
    np.testing.assert_allclose(drawn.log_density, expected, atol=0.3, rtol=0.05)
