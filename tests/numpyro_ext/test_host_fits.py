"""Guides fitted by NumPyro's SVI under its other objectives, in our diagnostics."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import SVI, RenyiELBO, Trace_ELBO, TraceGraph_ELBO
from numpyro.infer.autoguide import (
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from scipy import stats

from numpyro_ext.diagnostics import elbo, ksd, psis_khat, to_arviz
from numpyro_ext.guides import AutoLayerLowRankNormal
from ppl_ext.errors import ArgumentError
from tests import arviz_support as support

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(0)
DRAWS = np.random.default_rng(1)
X = DRAWS.normal(size=(20, 2)) @ [[1.0, 0.6], [0.0, 0.8]]
Y = X @ [1.0, -0.5] + DRAWS.normal(size=20)
COVARIANCE = np.linalg.inv(X.T @ X + np.eye(2))
MEAN = COVARIANCE @ X.T @ Y
EVIDENCE = stats.multivariate_normal(np.zeros(20), np.eye(20) + X @ X.T).logpdf(Y)


def model(x: Any, y: Any) -> None:
    """Regression with a Normal posterior of correlation -0.5 or so."""
    w = numpyro.sample("net.w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    with numpyro.plate("N", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def hand_written(x: Any, y: Any) -> None:
    loc = numpyro.param("loc", jnp.zeros(2))
    scale = numpyro.param("scale", 0.3 * jnp.ones(2), constraint=dist.constraints.positive)
    numpyro.sample("net.w", dist.Normal(loc, scale).to_event(1))


FITS = {
    "Renyi": (AutoMultivariateNormal, {}, RenyiELBO(alpha=0.5, num_particles=4)),
    "graph": (AutoLowRankMultivariateNormal, {"rank": 1}, TraceGraph_ELBO()),
    "IAF": (AutoIAFNormal, {"hidden_dims": [4], "num_flows": 1}, Trace_ELBO(4)),
    "layers": (AutoLayerLowRankNormal, {"rank": 1}, RenyiELBO(alpha=0.0, num_particles=4)),
}


@pytest.mark.filterwarnings(*support.IGNORED)
@pytest.mark.parametrize("name", FITS)
def test_flat_guides(name) -> None:
    make_guide, options, objective = FITS[name]
    guide = make_guide(model, **options)
    optim = numpyro.optim.Adam(0.02)
    result = SVI(model, guide, optim, objective).run(KEY, 500, X, Y, progress_bar=False)

    converted = to_arviz(guide, result, X, Y, model=model, num_samples=2000)
    posterior, stats_group = converted["posterior"], converted["sample_stats"]
    assert converted.posterior.attrs["engine"] == "SVI"
    assert converted.posterior.attrs["guide"] == make_guide.__name__
    draws = np.asarray(posterior["net.w"])[0]
    deviations = np.sqrt(np.diag(COVARIANCE))
    assert (np.abs(draws.mean(0) - MEAN) < 0.5 * deviations).all()
    assert converted["log_likelihood"]["y"].shape == (1, 2000, 20)
    assert converted["optimization"]["loss"].shape == (500,)
    # The draws' weights are those of the evidence.
    ratios = np.asarray(stats_group["log_p"] - stats_group["log_q"])[0]
    evidence = np.exp(ratios - EVIDENCE)
    assert abs(evidence.mean() - 1.0) < 5 * evidence.std() / math.sqrt(2000)

    given = {"model": model, "args": (X, Y), "num_samples": 500}
    bound = elbo(guide, result, **given)
    error = math.hypot(bound.standard_error, ratios.std() / math.sqrt(2000))
    assert abs(bound.value - ratios.mean()) < 5 * error
    assert bound.value < EVIDENCE + 4 * bound.standard_error
    khat = psis_khat(guide, result, **given)
    # The flow has not come to rest in so few steps.
    assert khat.reliable or (name == "IAF" and math.isfinite(khat.khat))
    if name == "graph":
        assert math.isfinite(ksd(guide, result, **given).squared)


@pytest.mark.filterwarnings(*support.IGNORED)
@pytest.mark.parametrize("guide", [AutoNormal(model), hand_written], ids=["AutoNormal", "hand"])
def test_guides_without_a_flat_density(guide) -> None:
    svi = SVI(model, guide, numpyro.optim.Adam(0.02), Trace_ELBO())
    state = svi.init(KEY, X, Y)
    params = svi.get_params(state)
    loc, scale = sorted(params)
    params = {loc: jnp.asarray(MEAN), scale: jnp.array([0.2, 0.7])}
    converted = to_arviz(guide, params, X, Y, model=model, num_samples=2000)
    draws = np.asarray(converted["posterior"]["net.w"])[0]
    assert (np.abs(draws.mean(0) - MEAN) < 5 * np.array([0.2, 0.7]) / math.sqrt(2000)).all()
    np.testing.assert_allclose(draws.std(0), [0.2, 0.7], rtol=0.1)
    assert list(converted["sample_stats"].data_vars) == ["log_p"]
    assert converted["posterior_predictive"]["y"].shape == (1, 2000, 20)


def test_what_does_not_belong_together_is_refused() -> None:
    guide = AutoNormal(model)
    with pytest.raises(ArgumentError, match="found AutoNormal without it"):
        to_arviz(guide, {}, X, Y)
    with pytest.raises(ArgumentError, match="found int with it"):
        to_arviz(3, {}, X, Y, model=model)
    with pytest.raises(ArgumentError, match="svi.get_params"):
        to_arviz(hand_written, 3, X, Y, model=model)

    def other(x: Any, y: Any) -> None:
        numpyro.sample("v", dist.Normal(0.0, 1.0))

    with pytest.raises(ArgumentError, match=r"every latent site.*\['net.w'\] among \['v'\]"):
        to_arviz(other, {}, X, Y, model=model)
