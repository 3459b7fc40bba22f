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
from numpyro.infer import Predictive

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


def test_a_forecast_by_a_scan_beyond_its_data_is_the_hosts() -> None:
    y = jnp.array([0.3, 0.9, 0.4, 1.2, 0.8, 1.1])

    def model(y: Array, future: int = 0) -> None:
        phi = numpyro.sample("phi", dist.Uniform(-1.0, 1.0))

        def step(before: Array, _: Array) -> tuple[Array, Array]:
            now = numpyro.sample("y", dist.Normal(phi * before, 0.5))
            return now, now

        with numpyro.handlers.condition(data={"y": y}):
            _, path = scan(step, jnp.zeros(()), jnp.arange(len(y) + future))
        if future:
            numpyro.deterministic("forecast", path[-future:])

    fit = nx.fit(jax.random.key(0), model, y, exact=False, progress_bar=False)
    found = fit.predict(y, future=3)
    assert found["forecast"].shape[1:] == (3,)
    # The first value is an autoregression's from the last that was seen.
    expected = 1.1 * np.asarray(fit.draws["phi"]).mean()
    assert found["forecast"][:, 0].mean() == pytest.approx(expected, abs=0.1)
    host = Predictive(model, posterior_samples=fit.draws)(jax.random.key(7), y, future=3)
    assert found["forecast"].std(0) == pytest.approx(np.asarray(host["forecast"]).std(0), rel=0.15)
    assert list(fit.predict(y, future=3, return_sites=["forecast"])) == ["forecast"]
    # Over all of its data alone a scan has a density, and nothing is left to the host.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("numpyro_ext.diagnostics.predictive.Predictive", None)
        assert fit.predict(y)["y"].shape[1:] == (6,)


def test_an_assertion_of_the_model_is_no_forecast() -> None:
    def model(x: Array, y: Array | None = None) -> None:
        assert len(x) > 1, "two rows are the least"
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    x = jnp.array([1.0, 2.0])
    fit = nx.fit(jax.random.key(0), model, x, x, exact=False, progress_bar=False)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(AssertionError, match="two rows are the least"),
    ):
        patch.setattr("numpyro_ext.diagnostics.predictive.Predictive", None)
        fit.predict(jnp.array([1.0]))


def test_a_key_before_the_arguments_of_a_prediction_is_told() -> None:
    def model(x: Array, y: Array | None = None) -> None:
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    x = jnp.array([1.0, 2.0])
    fit = nx.fit(jax.random.key(0), model, x, x, exact=False, progress_bar=False)
    with pytest.raises(nx.ArgumentError, match=r"found a key .* fit\.predict\(\*args, seed=0\)"):
        fit.predict(jax.random.key(1), x)
