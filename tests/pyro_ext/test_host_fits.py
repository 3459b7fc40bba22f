"""Guides fitted by Pyro's SVI under its other objectives, in our diagnostics."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, RenyiELBO, Trace_ELBO, TraceGraph_ELBO
from pyro.infer.autoguide import (
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from scipy import stats
from torch.distributions import constraints

from ppl_ext.errors import ArgumentError
from pyro_ext.diagnostics import elbo, ksd, psis_khat, to_arviz
from pyro_ext.guides import AutoLayerLowRankNormal
from tests import arviz_support as support

torch.set_default_dtype(torch.float64)

DRAWS = np.random.default_rng(1)
_X = DRAWS.normal(size=(20, 2)) @ [[1.0, 0.6], [0.0, 0.8]]
_Y = _X @ [1.0, -0.5] + DRAWS.normal(size=20)
COVARIANCE = np.linalg.inv(_X.T @ _X + np.eye(2))
MEAN = COVARIANCE @ _X.T @ _Y
EVIDENCE = stats.multivariate_normal(np.zeros(20), np.eye(20) + _X @ _X.T).logpdf(_Y)
X, Y = torch.tensor(_X), torch.tensor(_Y)


@pytest.fixture(autouse=True)
def clean_store():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    yield
    pyro.clear_param_store()


def model(x: Any, y: Any) -> None:
    """Regression with a Normal posterior of correlation -0.5 or so."""
    w = pyro.sample("net.w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("N", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def hand_written(x: Any, y: Any) -> None:
    loc = pyro.param("loc", torch.tensor(MEAN))
    scale = pyro.param("scale", torch.tensor([0.2, 0.7]), constraint=constraints.positive)
    pyro.sample("net.w", dist.Normal(loc, scale).to_event(1))


FITS = {
    "Renyi": (AutoMultivariateNormal, {}, RenyiELBO(alpha=0.5, num_particles=4)),
    "graph": (AutoLowRankMultivariateNormal, {"rank": 1}, TraceGraph_ELBO()),
    "IAF": (functools.partial(AutoIAFNormal, hidden_dim=[4]), {}, Trace_ELBO()),
    "layers": (AutoLayerLowRankNormal, {"rank": 1}, RenyiELBO(alpha=0.0, num_particles=4)),
}


@pytest.mark.filterwarnings(*support.IGNORED)
@pytest.mark.parametrize("name", FITS)
def test_flat_guides(name) -> None:
    make_guide, options, objective = FITS[name]
    guide = make_guide(model, **options)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), objective)
    losses = [svi.step(X, Y) for _ in range(500)]

    converted = to_arviz(guide, X, Y, model=model, num_samples=2000, losses=losses)
    posterior, stats_group = converted["posterior"], converted["sample_stats"]
    assert converted.posterior.attrs["engine"] == "SVI"
    assert converted.posterior.attrs["guide"] == type(guide).__name__
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
    bound = elbo(guide, **given)
    error = math.hypot(bound.standard_error, ratios.std() / math.sqrt(2000))
    assert abs(bound.value - ratios.mean()) < 5 * error
    assert bound.value < EVIDENCE + 4 * bound.standard_error
    khat = psis_khat(guide, **given)
    # The flow has not come to rest in so few steps.
    assert khat.reliable or (name == "IAF" and math.isfinite(khat.khat))
    if name == "graph":
        assert math.isfinite(ksd(guide, **given).squared)


@pytest.mark.filterwarnings(*support.IGNORED)
@pytest.mark.parametrize("guide", [AutoNormal(model), hand_written], ids=["AutoNormal", "hand"])
def test_guides_without_a_flat_density(guide) -> None:
    guide(X, Y)
    if isinstance(guide, AutoNormal):
        guide.locs.net.w.data.copy_(torch.tensor(MEAN))
        guide.scales.net.w = torch.tensor([0.2, 0.7])
    state = torch.get_rng_state()
    converted = to_arviz(guide, X, Y, model=model, num_samples=1000)
    assert torch.equal(state, torch.get_rng_state())
    draws = np.asarray(converted["posterior"]["net.w"])[0]
    assert (np.abs(draws.mean(0) - MEAN) < 5 * np.array([0.2, 0.7]) / math.sqrt(1000)).all()
    np.testing.assert_allclose(draws.std(0), [0.2, 0.7], rtol=0.12)
    assert list(converted["sample_stats"].data_vars) == ["log_p"]
    predictive = np.asarray(converted["posterior_predictive"]["y"])[0]
    assert predictive.shape == (1000, 20)
    # Its noise is not that of the draws.
    noise = predictive - draws @ X.numpy().T
    assert np.abs(np.corrcoef(draws.T, noise.T)[:2, 2:]).max() < 5 / math.sqrt(1000)


def test_what_does_not_belong_together_is_refused() -> None:
    guide = AutoNormal(model)
    with pytest.raises(ArgumentError, match="found AutoNormal without it"):
        to_arviz(guide, X, Y)
    with pytest.raises(ArgumentError, match="found int with it"):
        to_arviz(3, X, Y, model=model)

    def other(x: Any, y: Any) -> None:
        pyro.sample("v", dist.Normal(0.0, 1.0))

    with pytest.raises(ArgumentError, match=r"every latent site.*\['net.w'\] among \['v'\]"):
        to_arviz(other, X, Y, model=model)
