"""Predictive distributions of NumPyro models at given draws and at those of a chain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import mask
from numpyro.infer import MCMC, BarkerMH
from scipy import special, stats

import numpyro_ext as nx
from ppl_ext.errors import ArgumentError
from tests import arviz_support as support
from tests.models import numpyro_models

jax.config.update("jax_enable_x64", True)

pytestmark = [pytest.mark.filterwarnings(rule) for rule in support.IGNORED]

RNG = np.random.default_rng(0)
X = jnp.array(RNG.normal(size=(11, 2)))
# Draws whose noise differs, and skewed observations.
DRAWS = {"w": jnp.array(RNG.normal(size=(5, 2))), "noise": jnp.array(RNG.gamma(2.0, size=5))}
Y = jnp.array(RNG.gamma(1.0, size=11) * 3.0)
CLASSES = jnp.array(RNG.integers(0, 3, size=11))


def line(x: Any, y: Any = None, subsample_size: int | None = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(x), subsample_size=subsample_size) as rows:
        observed = None if y is None else y[rows]
        numpyro.sample("y", dist.Normal(x[rows] @ w, noise), obs=observed)


def test_the_distribution_is_that_of_each_draw() -> None:
    found = nx.predictive_distribution(line, DRAWS, X, Y)
    mean, noise = DRAWS["w"] @ X.T, DRAWS["noise"][:, None] * np.ones(11)
    normal = stats.norm(mean, noise)
    assert dict(found.sizes) == {"draw": 5, "row": 11} and found.attrs == {"site": "y"}
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(found["variance"], noise**2, rtol=1e-12)
    np.testing.assert_allclose(found["cdf"], normal.cdf(Y), rtol=1e-10)
    np.testing.assert_allclose(found["log_likelihood"], normal.logpdf(Y), rtol=1e-12)
    np.testing.assert_array_equal(found["observed"], Y)
    mixture = special.logsumexp(normal.logpdf(Y), axis=0) - np.log(5)
    score = nx.predictive_metrics(found)["log_likelihood"]
    np.testing.assert_allclose(score, mixture.mean(), rtol=1e-12)


def test_a_subsampled_plate_is_evaluated_on_all_rows_in_chunks() -> None:
    whole = nx.predictive_distribution(line, DRAWS, X, Y)
    found = nx.predictive_distribution(
        line, DRAWS, X, Y, subsample_size=4, data_chunk=3, draw_chunk=2
    )
    for variable in whole:
        np.testing.assert_allclose(found[variable], whole[variable], rtol=1e-12)


def test_batches_as_arguments_take_the_rows_there_are() -> None:
    def model(x: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("rows", 100, subsample_size=len(x)):
            numpyro.sample("y", dist.StudentT(5.0, x @ w, 2.0), obs=y)

    found = nx.predictive_distribution(model, DRAWS, X, Y)
    expected = stats.t(5.0, DRAWS["w"] @ X.T, 2.0)
    np.testing.assert_allclose(found["log_likelihood"], expected.logpdf(Y), rtol=1e-10)
    np.testing.assert_allclose(found["variance"], expected.var(), rtol=1e-10)


def test_without_observations() -> None:
    whole = nx.predictive_distribution(line, DRAWS, X, Y)
    for options in ({}, {"subsample_size": 4}):
        found = nx.predictive_distribution(line, DRAWS, X, **options)
        assert set(found) == {"mean", "variance"}
        np.testing.assert_allclose(found["mean"], whole["mean"], rtol=1e-12)


def test_classes() -> None:
    def binary(x: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    def several(x: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        eta = x @ w
        logits = jnp.stack([eta, 2.0 * eta, 1.0 - eta], -1)
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    eta = np.asarray(DRAWS["w"] @ X.T)
    right = special.expit(eta)
    logits = np.stack([eta, 2.0 * eta, 1.0 - eta], -1)
    for model, truth, expected in (
        (binary, CLASSES % 2, np.stack([1 - right, right], -1)),
        (several, CLASSES, special.softmax(logits, -1)),
    ):
        found = nx.predictive_distribution(model, DRAWS, X, truth)
        assert found["probabilities"].dims == ("draw", "row", "class")
        np.testing.assert_allclose(found["probabilities"], expected, rtol=1e-10)
        chosen = np.take_along_axis(expected, np.asarray(truth)[None, :, None], -1)[..., 0]
        np.testing.assert_allclose(found["log_likelihood"], np.log(chosen), rtol=1e-10)
        assert set(nx.predictive_distribution(model, DRAWS, X)) == {"probabilities"}
        score = nx.predictive_metrics(found)["log_likelihood"]
        np.testing.assert_allclose(score, np.log(chosen.mean(0)).mean(), rtol=1e-10)


def test_masked_rows_and_several_outputs() -> None:
    def model(x: Any, y: Any = None, counts: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        mean = jnp.stack([x @ w, 1.0 + x @ w], -1)
        with numpyro.plate("rows", len(x)), mask(mask=counts):
            numpyro.sample("y", dist.Normal(mean, jnp.array([1.0, 3.0])).to_event(1), obs=y)

    kept = np.arange(11) % 3 != 0
    truth = jnp.stack([Y, 2.0 * Y], -1)
    found = nx.predictive_distribution(model, DRAWS, X, truth, jnp.array(kept))
    np.testing.assert_array_equal(found["row"], np.flatnonzero(kept))
    eta = np.asarray(DRAWS["w"] @ X.T)[:, kept]
    mean = np.stack([eta, eta + 1], -1)
    assert found["mean"].dims == ("draw", "row", "output")
    expected = stats.norm(mean, [1.0, 3.0])
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(found["cdf"], expected.cdf(truth[kept]), rtol=1e-10)
    log_density = expected.logpdf(truth[kept]).sum(-1)
    np.testing.assert_allclose(found["log_likelihood"], log_density, rtol=1e-10)


def test_a_network() -> None:
    model = numpyro_models.build("bnn_linen")
    x, y = numpyro_models.arguments("bnn_linen")
    shapes = {"fc1.kernel": (2, 4), "fc1.bias": (4,), "fc2.kernel": (4, 1)}
    weights = {name: RNG.normal(size=(3, *shape)) for name, shape in shapes.items()}
    weights["fc2.bias"] = RNG.normal(size=(3, 1))
    draws = {f"net/{name}": value for name, value in weights.items()}
    found = nx.predictive_distribution(model, {**draws, "sigma": np.array([1.0, 0.1, 3.0])}, x, y)
    hidden = np.tanh(x @ weights["fc1.kernel"] + weights["fc1.bias"][:, None])
    mean = (hidden @ weights["fc2.kernel"] + weights["fc2.bias"][:, None])[..., 0]
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-10)
    np.testing.assert_allclose(found["variance"][:, 0], [1.0, 0.01, 9.0], rtol=1e-10)


def test_parameters_without_a_prior() -> None:
    def model(x: Any, y: Any = None) -> None:
        slope = numpyro.param("slope", jnp.array(1.0))
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(w + slope * x, 1.0), obs=y)

    draws = {"w": jnp.array([0.0, 2.0])}
    found = nx.predictive_distribution(model, draws, Y, params={"slope": jnp.array(3.0)})
    np.testing.assert_allclose(found["mean"], [3.0 * Y, 2.0 + 3.0 * Y])


def test_draws_of_a_host_chain() -> None:
    chain = MCMC(BarkerMH(line), num_warmup=1, num_samples=4, progress_bar=False)
    chain.run(jax.random.key(0), X, Y)
    draws = chain.get_samples()
    found = nx.predictive_distribution(line, draws, X, Y)
    expected = stats.norm.logpdf(Y, draws["w"] @ X.T, draws["noise"][:, None])
    np.testing.assert_allclose(found["log_likelihood"], expected, rtol=1e-10)
    with pytest.raises(ArgumentError, match="Chains must be one axis"):
        nx.predictive_distribution(line, chain.get_samples(group_by_chain=True), X, Y)


def two_sites(x: Any, y: Any = None, z: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(x)):
        first = numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
        numpyro.sample("z", dist.Poisson(jnp.exp(first)), obs=z)


def test_the_site_is_chosen_by_name() -> None:
    counts = jnp.arange(11)
    found = nx.predictive_distribution(two_sites, DRAWS, X, Y, counts, site="z")
    rate = np.exp(np.asarray(Y)) * np.ones((5, 1))
    np.testing.assert_allclose(found["mean"], rate, rtol=1e-10)
    log_mass = stats.poisson.logpmf(counts, rate)
    np.testing.assert_allclose(found["log_likelihood"], log_mass, rtol=1e-8)
    assert "cdf" not in found
    # What comes after the site does not matter.
    found = nx.predictive_distribution(two_sites, DRAWS, X, site="y")
    np.testing.assert_allclose(found["mean"], DRAWS["w"] @ X.T, rtol=1e-12)


def nothing_observed() -> None:
    numpyro.sample("w", dist.Normal(0.0, 1.0))


def without_moments(y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.ImproperUniform(dist.constraints.real, (), ()), obs=w + y)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        (
            r"found none for \['w'\]",
            lambda: nx.predictive_distribution(line, {"noise": DRAWS["noise"]}, X, Y),
        ),
        (
            r"found \['w', 'y'\] without draws",
            lambda: nx.predictive_distribution(line, {"noise": DRAWS["noise"]}, X),
        ),
        (
            r"as many as of the others, .* found {'w': 3, 'noise': 5}",
            lambda: nx.predictive_distribution(line, {**DRAWS, "w": DRAWS["w"][:3]}, X, Y),
        ),
        (
            r"Expected every draw of site 'w' in shape \(2,\), found \(1,\)",
            lambda: nx.predictive_distribution(line, {**DRAWS, "w": DRAWS["w"][:, :1]}, X, Y),
        ),
        (
            r"Expected one site to predict, found \['y', 'z'\]",
            lambda: nx.predictive_distribution(two_sites, DRAWS, X, Y, jnp.arange(11)),
        ),
        (
            r"Expected draws of every site before 'z', found none for \['y'\]",
            lambda: nx.predictive_distribution(two_sites, DRAWS, X, site="z"),
        ),
        (
            r"Expected site to be one of \['y'\], which have no draws, found 'w'",
            lambda: nx.predictive_distribution(line, DRAWS, X, Y, site="w"),
        ),
        (
            "Expected a model with an observed site, found none",
            lambda: nx.predictive_distribution(nothing_observed, {"w": jnp.zeros(3)}),
        ),
        (
            "Expected the distribution of site 'y' to be Bernoulli or categorical",
            lambda: nx.predictive_distribution(without_moments, {"w": jnp.zeros(3)}, 1.0),
        ),
        (
            "Expected draws as a mapping",
            lambda: nx.predictive_distribution(line, DRAWS["w"], X, Y),
        ),
        (
            "Expected draw_chunk to be an int >= 1",
            lambda: nx.predictive_distribution(line, DRAWS, X, Y, draw_chunk=0),
        ),
    ],
)
def test_messages(message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
