"""Predictive distributions of models at given draws, of an engine and of a host's chain."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from ppl_ext.errors import ArgumentError
from tests import arviz_support as support
from tests.backends import from_zoo, use_float64

use_float64()

pytestmark = [pytest.mark.filterwarnings(rule) for rule in support.IGNORED]

RNG = np.random.default_rng(0)
X = RNG.normal(size=(11, 2))
# Draws whose noise differs, and skewed observations.
DRAWS = {"w": RNG.normal(size=(5, 2)), "noise": RNG.gamma(2.0, size=5)}
Y = RNG.gamma(1.0, size=11) * 3.0
CLASSES = RNG.integers(0, 3, size=11)
ETA = DRAWS["w"] @ X.T


@pytest.fixture
def given(host, backend) -> SimpleNamespace:
    """The host's arrays and models of them."""
    sample, plate, dist, numbers = host.host.sample, host.host.plate, host.dist, host.backend.xp

    def weights() -> Any:
        return sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))

    def line(x: Any, y: Any = None, subsample_size: int | None = None) -> None:
        w = weights()
        noise = sample("noise", dist.HalfNormal(1.0))
        with plate("rows", len(x), subsample_size=subsample_size) as rows:
            observed = None if y is None else y[rows]
            sample("y", dist.Normal(x[rows] @ w, noise), obs=observed)

    def batches(x: Any, y: Any = None) -> None:
        w = weights()
        with plate("rows", 100, subsample_size=len(x)):
            sample("y", dist.StudentT(5.0, x @ w, 2.0), obs=y)

    def binary(x: Any, y: Any = None) -> None:
        w = weights()
        with plate("rows", len(x)):
            sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    def several(x: Any, y: Any = None) -> None:
        eta = x @ weights()
        logits = numbers.stack([eta, 2.0 * eta, 1.0 - eta], -1)
        with plate("rows", len(x)):
            sample("y", dist.Categorical(logits=logits), obs=y)

    def two_outputs(x: Any, y: Any = None, counts: Any = None) -> None:
        w = weights()
        mean = numbers.stack([x @ w, 1.0 + x @ w], -1)
        scales = backend.array(np.array([1.0, 3.0]))
        with plate("rows", len(x)), host.handlers.mask(mask=counts):
            sample("y", dist.Normal(mean, scales).to_event(1), obs=y)

    def two_sites(x: Any, y: Any = None, z: Any = None) -> None:
        w = weights()
        with plate("rows", len(x)):
            first = sample("y", dist.Normal(x @ w, 1.0), obs=y)
            sample("z", dist.Poisson(numbers.exp(first)), obs=z)

    def prior_as_observation(x: Any, y: Any = None) -> None:
        w = numbers.exp(weights())
        sample("prior", dist.Normal(0.0, 2.0).expand([2]).to_event(1), obs=w)
        with plate("rows", len(x)):
            sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    def measured_and_judged(x: Any, y: Any = None, label: Any = None) -> None:
        eta = x @ weights()
        with plate("rows", len(x)):
            sample("y", dist.Normal(eta, 1.0), obs=y)
            sample("label", dist.Bernoulli(logits=eta), obs=label)

    def held(x: Any, y: Any = None) -> None:
        slope = host.host.param("slope", backend.array(np.array(1.0)))
        w = sample("w", dist.Normal(0.0, 1.0))
        with plate("rows", len(x)):
            sample("y", dist.Normal(w + slope * x, 1.0), obs=y)

    def with_values(x: Any, y: Any = None) -> None:
        w = weights()
        deterministic = host.host.deterministic
        deterministic("total", w.sum())
        with plate("rows", len(x)):
            mean = deterministic("mu", x @ w)
            deterministic("mean", 2.0 * mean)
            new = sample("y", dist.Normal(mean, 1.0), obs=y)
            deterministic("excess", new - mean)
            deterministic("half", 0.5 * mean)

    def nothing_observed() -> None:
        sample("w", dist.Normal(0.0, 1.0))

    def without_moments(y: Any = None) -> None:
        w = sample("w", dist.Normal(0.0, 1.0))
        sample("y", dist.ImproperUniform(dist.constraints.real, (), ()), obs=0.0 * w + y)

    models = dict(locals())
    return SimpleNamespace(
        predict=host.public.predictive_distribution,
        metrics=host.public.predictive_metrics,
        x=backend.array(X),
        y=backend.array(Y),
        draws={name: backend.array(value) for name, value in DRAWS.items()},
        **{name: value for name, value in models.items() if callable(value)},
    )


def test_the_distribution_is_that_of_each_draw(given) -> None:
    found = given.predict(given.line, given.draws, given.x, given.y)
    noise = DRAWS["noise"][:, None] * np.ones(11)
    normal = stats.norm(ETA, noise)
    assert dict(found.sizes) == {"draw": 5, "row": 11} and found.attrs == {"site": "y"}
    np.testing.assert_allclose(found["mean"], ETA, rtol=1e-12)
    np.testing.assert_allclose(found["variance"], noise**2, rtol=1e-12)
    np.testing.assert_allclose(found["cdf"], normal.cdf(Y), rtol=1e-10)
    np.testing.assert_allclose(found["log_likelihood"], normal.logpdf(Y), rtol=1e-12)
    np.testing.assert_array_equal(found["observed"], Y)
    mixture = special.logsumexp(normal.logpdf(Y), axis=0) - np.log(5)
    score = given.metrics(found)["log_likelihood"]
    np.testing.assert_allclose(score, mixture.mean(), rtol=1e-12)


def test_a_subsampled_plate_is_evaluated_on_all_rows_in_chunks(given, backend) -> None:
    whole = given.predict(given.line, given.draws, given.x, given.y)
    # Pyro takes draws one after another.
    options = {} if backend.name == "pyro" else {"draw_chunk": 2}
    found = given.predict(
        given.line, given.draws, given.x, given.y, subsample_size=4, data_chunk=3, **options
    )
    for variable in whole:
        np.testing.assert_allclose(found[variable], whole[variable], rtol=1e-12)
    for more in ({}, {"subsample_size": 4}):
        unseen = given.predict(given.line, given.draws, given.x, **more)
        assert set(unseen) == {"mean", "variance"}
        np.testing.assert_allclose(unseen["mean"], whole["mean"], rtol=1e-12)


def test_batches_as_arguments_take_the_rows_there_are(given) -> None:
    found = given.predict(given.batches, given.draws, given.x, given.y)
    expected = stats.t(5.0, ETA, 2.0)
    np.testing.assert_allclose(found["log_likelihood"], expected.logpdf(Y), rtol=1e-10)
    np.testing.assert_allclose(found["variance"], expected.var(), rtol=1e-10)


def test_classes(given, backend) -> None:
    right = special.expit(ETA)
    logits = np.stack([ETA, 2.0 * ETA, 1.0 - ETA], -1)
    for model, truth, expected in (
        (given.binary, (CLASSES % 2).astype(float), np.stack([1 - right, right], -1)),
        (given.several, CLASSES, special.softmax(logits, -1)),
    ):
        found = given.predict(model, given.draws, given.x, backend.array(truth))
        assert found["probabilities"].dims == ("draw", "row", "class")
        np.testing.assert_allclose(found["probabilities"], expected, rtol=1e-10)
        chosen = np.take_along_axis(expected, truth.astype(int)[None, :, None], -1)[..., 0]
        np.testing.assert_allclose(found["log_likelihood"], np.log(chosen), rtol=1e-10)
        assert set(given.predict(model, given.draws, given.x)) == {"probabilities"}
        score = given.metrics(found)["log_likelihood"]
        np.testing.assert_allclose(score, np.log(chosen.mean(0)).mean(), rtol=1e-10)


def test_masked_rows_and_several_outputs(given, backend) -> None:
    kept = np.arange(11) % 3 != 0
    truth = np.stack([Y, 2.0 * Y], -1)
    found = given.predict(
        given.two_outputs, given.draws, given.x, backend.array(truth), backend.array(kept)
    )
    np.testing.assert_array_equal(found["row"], np.flatnonzero(kept))
    mean = np.stack([ETA, ETA + 1], -1)[:, kept]
    assert found["mean"].dims == ("draw", "row", "output")
    expected = stats.norm(mean, [1.0, 3.0])
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(found["cdf"], expected.cdf(truth[kept]), rtol=1e-10)
    log_density = expected.logpdf(truth[kept]).sum(-1)
    np.testing.assert_allclose(found["log_likelihood"], log_density, rtol=1e-10)


def test_a_network(given, backend) -> None:
    if backend.name == "pyro":
        model, (x, y), _ = from_zoo(backend, "bnn")
        names = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    else:
        model, (x, y), _ = from_zoo(backend, "bnn_linen")
        names = ["net/fc1.kernel", "net/fc1.bias", "net/fc2.kernel", "net/fc2.bias"]
    shapes = (2, 4), (4,), (4, 1), (1,)
    weights = [RNG.normal(size=(3, *shape)) for shape in shapes]
    # Pyro's layers have their weights transposed.
    draws = {
        name: backend.array(value.swapaxes(-1, -2) if name.endswith("weight") else value)
        for name, value in zip(names, weights, strict=True)
    }
    sigma = backend.array(np.array([1.0, 0.1, 3.0]))
    found = given.predict(model, {**draws, "sigma": sigma}, x, y)
    mean = support.network_mean(backend.numpy(x), weights[::2], weights[1::2])
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-10)
    np.testing.assert_allclose(found["variance"][:, 0], [1.0, 0.01, 9.0], rtol=1e-10)


def test_parameters_without_a_prior(given, host, backend) -> None:
    """Those of Pyro's store, which is left as it is, and NumPyro's where they are told to be."""
    draws, slope = {"w": backend.array(np.array([0.0, 2.0]))}, backend.array(np.array(3.0))
    if backend.name == "pyro":
        import torch

        host.host.param("slope", slope)
        state = torch.random.get_rng_state()
        found = given.predict(given.held, draws, given.y)
        assert torch.equal(torch.random.get_rng_state(), state)
    else:
        found = given.predict(given.held, draws, given.y, params={"slope": slope})
    np.testing.assert_allclose(found["mean"], [3.0 * Y, 2.0 + 3.0 * Y])


def test_draws_of_an_engine_and_of_a_host_chain(given, host, backend) -> None:
    infer = import_module(f"{backend.name}.infer")
    fit = host.particles(3, given.x, given.y, steps=1, model=given.line)
    if backend.name == "pyro":
        kernel = infer.NUTS(given.line, max_tree_depth=3)
        chain = infer.MCMC(kernel, num_samples=4, warmup_steps=1, disable_progbar=True)
        chain.run(given.x, given.y)
    else:
        kernel = infer.BarkerMH(given.line)
        chain = infer.MCMC(kernel, num_warmup=1, num_samples=4, progress_bar=False)
        chain.run(backend.key(), given.x, given.y)
    for draws in (host.draws(fit), chain.get_samples()):
        found = given.predict(given.line, draws, given.x, given.y)
        w, noise = (np.asarray(draws[name]) for name in ("w", "noise"))
        expected = stats.norm.logpdf(Y, w @ X.T, noise[:, None])
        np.testing.assert_allclose(found["log_likelihood"], expected, rtol=1e-10)
    with pytest.raises(ArgumentError, match="Chains must be one axis"):
        given.predict(given.line, chain.get_samples(group_by_chain=True), given.x, given.y)


def test_the_site_is_chosen_by_name(given, backend) -> None:
    counts = np.arange(11)
    arguments = (given.x, given.y, backend.array(counts))
    found = given.predict(given.two_sites, given.draws, *arguments, site="z")
    rate = np.exp(Y) * np.ones((5, 1))
    np.testing.assert_allclose(found["mean"], rate, rtol=1e-10)
    log_mass = stats.poisson.logpmf(counts, rate)
    np.testing.assert_allclose(found["log_likelihood"], log_mass, rtol=1e-8)
    assert "cdf" not in found
    # What comes after the site does not matter.
    found = given.predict(given.two_sites, given.draws, given.x, site="y")
    np.testing.assert_allclose(found["mean"], ETA, rtol=1e-12)


def test_deterministic_sites_stand_beside_the_distribution(given) -> None:
    model, draws = given.with_values, given.draws
    found = given.predict(model, draws, given.x)
    # One bears a name of the dataset, and one is computed from values that are not there.
    assert set(found) == {"mean", "variance", "total", "mu", "half"}
    np.testing.assert_allclose(found["mean"], ETA, rtol=1e-10)
    np.testing.assert_allclose(found["mu"], ETA, rtol=1e-10)
    np.testing.assert_allclose(found["half"], 0.5 * ETA, rtol=1e-10)
    np.testing.assert_allclose(found["total"], DRAWS["w"].sum(1), rtol=1e-10)
    assert found["mu"].dims == ("draw", "row") and found["total"].dims == ("draw",)
    seen = given.predict(model, draws, given.x, given.y)
    np.testing.assert_allclose(seen["excess"], Y - ETA, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(given.metrics(seen)["log_likelihood"], seen_score(), rtol=1e-10)
    assert set(given.predict(model, draws, given.x, return_sites=["half"])) == {
        *("mean", "variance", "half")
    }
    assert set(given.predict(model, draws, given.x, return_sites=())) == {"mean", "variance"}
    for names, told in (
        (["excess"], r"do not depend on values to be predicted, found \['excess'\]"),
        (["mean"], "found 'mean', which the dataset has for something else"),
        (["w"], r"Expected return_sites of \['excess', 'half', 'mean', 'mu', 'total'\], found"),
        ("mu", r"Write return_sites=\['mu'\]"),
    ):
        with pytest.raises(ArgumentError, match=told):
            given.predict(model, draws, given.x, return_sites=names)


def seen_score() -> float:
    """The mean log density of the observations under the mixture of unit Normals."""
    density = special.logsumexp(stats.norm(ETA, 1.0).logpdf(Y), axis=0) - np.log(len(ETA))
    return float(density.mean())


def test_a_prior_that_is_written_as_an_observation_is_not_predicted(given, backend) -> None:
    right = special.expit(np.exp(DRAWS["w"]) @ X.T)
    classes = backend.array((CLASSES % 2).astype(float))
    for args in ((given.x,), (given.x, classes)):
        found = given.predict(given.prior_as_observation, given.draws, *args)
        assert found.attrs["site"] == "y"
        np.testing.assert_allclose(found["probabilities"][..., 1], right, rtol=1e-10)
    with pytest.raises(ArgumentError, match="'prior', whose observed values are computed from"):
        given.predict(given.prior_as_observation, given.draws, *args, site="prior")


def test_the_hidden_one_of_several_sites_is_predicted(given, backend) -> None:
    found = given.predict(given.two_sites, given.draws, given.x, given.y)
    assert found.attrs["site"] == "z"
    np.testing.assert_allclose(found["mean"], np.exp(Y) * np.ones((5, 1)), rtol=1e-10)
    # A site with finitely many values is hidden where nothing depends on it, and not latent.
    found = given.predict(given.measured_and_judged, given.draws, given.x, given.y)
    assert found.attrs["site"] == "label"
    np.testing.assert_allclose(found["probabilities"][..., 1], special.expit(ETA), rtol=1e-10)
    with pytest.raises(ArgumentError, match=r"one site to predict, found \['y', 'label'\]"):
        given.predict(given.measured_and_judged, given.draws, given.x)
    label = backend.array((CLASSES % 2).astype(float))
    found = given.predict(given.measured_and_judged, given.draws, given.x, label=label)
    assert found.attrs["site"] == "y"


def test_messages(given, backend) -> None:
    draws, x, y = given.draws, given.x, given.y
    noise = {"noise": draws["noise"]}
    zeros = {"w": backend.array(np.zeros(3))}
    line, two_sites = given.line, given.two_sites
    cases: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        (r"found neither for \['w'\]", (line, noise, x, y), {}),
        (r"found \['w', 'y'\] without draws", (line, noise, x), {}),
        (
            r"as many as of the others, .* found {'w': 3, 'noise': 5}",
            (line, {**draws, "w": draws["w"][:3]}, x, y),
            {},
        ),
        (
            r"Expected every draw of site 'w' in shape \(2,\), found \(1,\)",
            (line, {**draws, "w": draws["w"][:, :1]}, x, y),
            {},
        ),
        (
            r"Expected one site to predict, found \['y', 'z'\]",
            (two_sites, draws, x, y, backend.array(np.arange(11))),
            {},
        ),
        (
            r"Expected draws of every site that 'z' depends on, found none for \['y'\]",
            (two_sites, draws, x),
            {"site": "z"},
        ),
        (
            r"Expected site to be one of \['y'\], which have no draws, found 'w'",
            (line, draws, x, y),
            {"site": "w"},
        ),
        ("Expected a model with an observed site, found none", (given.nothing_observed, zeros), {}),
        (
            "Expected the distribution of site 'y' to be Bernoulli or categorical",
            (given.without_moments, zeros, 1.0),
            {},
        ),
        ("Expected draws as a mapping", (line, draws["w"], x, y), {}),
        ("Expected data_chunk to be an int >= 1", (line, draws, x, y), {"data_chunk": 0}),
    ]
    if backend.name == "numpyro":
        wrong = {"draw_chunk": 0}
        cases.append(("Expected draw_chunk to be an int >= 1", (line, draws, x, y), wrong))
    for message, arguments, options in cases:
        with pytest.raises(ArgumentError, match=message):
            given.predict(*arguments, **options)
