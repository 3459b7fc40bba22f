"""Guides fitted by the hosts' SVI under its other objectives, in our diagnostics."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ppl_ext.errors import ArgumentError
from tests import arviz_support as support
from tests.backends import use_float64

use_float64()

pytestmark = [pytest.mark.filterwarnings(rule) for rule in support.IGNORED]

DRAWS = np.random.default_rng(1)
X = DRAWS.normal(size=(20, 2)) @ [[1.0, 0.6], [0.0, 0.8]]
Y = X @ [1.0, -0.5] + DRAWS.normal(size=20)
COVARIANCE = np.linalg.inv(X.T @ X + np.eye(2))
MEAN = COVARIANCE @ X.T @ Y
EVIDENCE = stats.multivariate_normal(np.zeros(20), np.eye(20) + X @ X.T).logpdf(Y)
SCALE = np.array([0.2, 0.7])


class Regression:
    """A regression in either host, with a Normal posterior of correlation -0.5 or so."""

    def __init__(self, host: Any) -> None:
        self.host, self.backend, self.public = host, host.backend, host.public
        self.infer = import_module(f"{host.backend.name}.infer")
        self.data = host.backend.array(X), host.backend.array(Y)
        self.pyro = host.backend.name == "pyro"
        sample, plate, dist = host.host.sample, host.host.plate, host.dist

        def model(x: Any, y: Any) -> None:
            zeros = host.backend.array(np.zeros(2))
            w = sample("net.w", dist.Normal(zeros, 1.0).to_event(1))
            with plate("N", len(x)):
                sample("y", dist.Normal(x @ w, 1.0), obs=y)

        def hand_written(x: Any, y: Any) -> None:
            loc = host.host.param("loc", host.backend.array(MEAN))
            positive = dist.constraints.positive
            scale = host.host.param("scale", host.backend.array(SCALE), constraint=positive)
            sample("net.w", dist.Normal(loc, scale).to_event(1))

        self.model, self.hand_written = model, hand_written

    def svi(self, guide: Any, objective: Any) -> Any:
        return self.infer.SVI(self.model, guide, self.backend.adam(0.02), objective)

    def fitted(self, guide: Any, objective: Any, steps: int) -> tuple[tuple[Any, ...], dict]:
        """First arguments of the diagnostics, and the losses where the host does not keep them."""
        svi = self.svi(guide, objective)
        if self.pyro:
            self.host.host.set_rng_seed(0)
            return (guide,), {"losses": [svi.step(*self.data) for _ in range(steps)]}
        run = svi.run(self.backend.key(), steps, *self.data, progress_bar=False)
        return (guide, run), {}

    def to_arviz(self, *fit: Any, **options: Any) -> Any:
        return self.public.to_arviz(*fit, *self.data, model=self.model, **options)


@pytest.fixture
def regression(host: Any) -> Regression:
    return Regression(host)


@pytest.mark.parametrize(
    "name",
    [
        "graph",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("IAF", "Renyi", "layers")),
    ],
)
def test_flat_guides(regression, name: str) -> None:
    autoguide, infer, public = regression.host.autoguide, regression.infer, regression.public
    flow = {"hidden_dim": [4]} if regression.pyro else {"hidden_dims": [4], "num_flows": 1}
    make_guide, options, objective = {
        "Renyi": (autoguide.AutoMultivariateNormal, {}, infer.RenyiELBO(0.5, num_particles=4)),
        "graph": (autoguide.AutoLowRankMultivariateNormal, {"rank": 1}, infer.TraceGraph_ELBO()),
        "IAF": (autoguide.AutoIAFNormal, flow, infer.Trace_ELBO(1 if regression.pyro else 4)),
        "layers": (
            public.AutoLayerLowRankNormal,
            {"rank": 1},
            infer.RenyiELBO(0.0, num_particles=4),
        ),
    }[name]
    guide = make_guide(regression.model, **options)
    fit, losses = regression.fitted(guide, objective, 500)

    converted = regression.to_arviz(*fit, num_samples=2000, **losses)
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

    given = {"model": regression.model, "args": regression.data, "num_samples": 500}
    bound = public.elbo(*fit, **given)
    error = math.hypot(bound.standard_error, ratios.std() / math.sqrt(2000))
    assert abs(bound.value - ratios.mean()) < 5 * error
    assert bound.value < EVIDENCE + 4 * bound.standard_error
    khat = public.psis_khat(*fit, **given)
    # The flow has not come to rest in so few steps.
    assert khat.reliable or (name == "IAF" and math.isfinite(khat.khat))
    if name == "graph":
        assert math.isfinite(public.ksd(*fit, **given).squared)


@pytest.mark.parametrize("name", ["AutoNormal", "hand"])
def test_guides_without_a_flat_density(regression, name: str) -> None:
    backend, autoguide = regression.backend, regression.host.autoguide
    guide = {
        "AutoNormal": autoguide.AutoNormal(regression.model),
        "hand": regression.hand_written,
    }[name]
    if regression.pyro:
        import torch

        guide(*regression.data)
        if name == "AutoNormal":
            guide.locs.net.w.data.copy_(backend.array(MEAN))
            guide.scales.net.w = backend.array(SCALE)
        state = torch.get_rng_state()
        converted = regression.to_arviz(guide, num_samples=2000)
        assert torch.equal(state, torch.get_rng_state())
    else:
        svi = regression.svi(guide, regression.infer.Trace_ELBO())
        state = svi.init(backend.key(), *regression.data)
        loc, scale = sorted(svi.get_params(state))
        params = {loc: backend.array(MEAN), scale: backend.array(SCALE)}
        converted = regression.to_arviz(guide, params, num_samples=2000)
    draws = np.asarray(converted["posterior"]["net.w"])[0]
    assert (np.abs(draws.mean(0) - MEAN) < 5 * SCALE / math.sqrt(2000)).all()
    np.testing.assert_allclose(draws.std(0), SCALE, rtol=0.1)
    assert list(converted["sample_stats"].data_vars) == ["log_p"]
    predictive = np.asarray(converted["posterior_predictive"]["y"])[0]
    assert predictive.shape == (2000, 20)
    # Its noise is not that of the draws.
    noise = predictive - draws @ X.T
    assert np.abs(np.corrcoef(draws.T, noise.T)[:2, 2:]).max() < 5 / math.sqrt(2000)


def test_what_does_not_belong_together_is_refused(regression) -> None:
    to_arviz, sample = regression.to_arviz, regression.host.host.sample
    none = () if regression.pyro else ({},)
    guide = regression.host.autoguide.AutoNormal(regression.model)
    with pytest.raises(ArgumentError, match="found AutoNormal without it"):
        regression.public.to_arviz(guide, *none, *regression.data)
    with pytest.raises(ArgumentError, match="found int with it"):
        to_arviz(3, *none)
    if not regression.pyro:
        with pytest.raises(ArgumentError, match="svi.get_params"):
            to_arviz(regression.hand_written, 3)

    def other(x: Any, y: Any) -> None:
        sample("v", regression.host.dist.Normal(0.0, 1.0))

    with pytest.raises(ArgumentError, match=r"every latent site.*\['net.w'\] among \['v'\]"):
        to_arviz(other, *none)
