"""The guide with a low-rank covariance for each layer of NumPyro, against dense covariances."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen
from numpyro.contrib.module import random_flax_module
from numpyro.infer import SVI, Predictive, Trace_ELBO
from scipy import linalg, stats

from numpyro_ext.guides import (
    AutoLayerLowRankNormal,
    FlatDensity,
    LayerLowRankNormalDensity,
    flat_density,
)
from numpyro_ext.guides.layer_low_rank import Layer, find_layers
from numpyro_ext.score import ProximalScoreVI
from ppl_ext.errors import ArgumentError
from ppl_ext.score import GradientSteps

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(0)
DIM, RANK = 11, 2
#: Of which coordinate each layer is made; the first layer is in two pieces.
LAYERS = ((0, 1, 2, 3, 4, 5, 7, 8), (6,), (9, 10))


def model() -> None:
    """Two layers of several sites with another site between them."""
    numpyro.sample("b.weight", dist.Normal(jnp.zeros((3, 2)), 1.0).to_event(2))
    numpyro.sample("a", dist.LogNormal(0.0, 1.0))
    numpyro.sample("b.bias", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    numpyro.sample("c.0", dist.Normal(0.0, 1.0))
    numpyro.sample("c.1", dist.Normal(0.0, 1.0))


def dense_covariance(scale: np.ndarray, factor: np.ndarray) -> np.ndarray:
    covariance = np.zeros((DIM, DIM))
    for layer in LAYERS:
        where = np.ix_(layer, layer)
        covariance[where] = (factor @ factor.T)[where]
    return np.diag(scale) @ (covariance + np.eye(DIM)) @ np.diag(scale)


@functools.cache
def fitted() -> tuple[LayerLowRankNormalDensity, dict[str, jax.Array], np.ndarray, np.ndarray]:
    """A guide, its parameters, and its mean and covariance."""
    density = flat_density(AutoLayerLowRankNormal(model, rank=RANK), KEY)
    assert isinstance(density, LayerLowRankNormalDensity)
    draws = np.random.default_rng(0)
    mean, scale = draws.normal(size=DIM), draws.uniform(0.5, 2.0, DIM)
    factor = draws.normal(size=(DIM, RANK))
    params = {"auto_loc": mean, "auto_scale": scale, "auto_cov_factor": factor}
    parameters = density.from_host(jax.tree.map(jnp.asarray, params))
    return density, parameters, mean, dense_covariance(scale, factor)


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


# -- layers ----------------------------------------------------------------------------------------


def test_which_sites_are_a_layer() -> None:
    density, *_ = fitted()
    expected = (Layer("b", ((0, 6), (7, 9))), Layer("a", ((6, 7),)), Layer("c", ((9, 11),)))
    assert density.guide.layers == expected
    assert density.dim == DIM and density.covariance_structure == "layer_low_rank"
    shapes = {"w": (2, 2), "empty": (0,), "net/A_0.kernel": (3,), "net/B_0.kernel": ()}
    assert find_layers(shapes) == (
        Layer("w", ((0, 4),)),
        Layer("net/A_0", ((4, 7),)),
        Layer("net/B_0", ((7, 8),)),
    )
    together = find_layers(shapes, {"net/B_0.kernel": "w"})
    assert together == (Layer("w", ((0, 4), (7, 8))), Layer("net/A_0", ((4, 7),)))
    with pytest.raises(ArgumentError, match=r"found \['x'\] among its sites"):
        find_layers(shapes, {"x": "w"})


def test_layers_of_a_flax_network() -> None:
    class Network(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.tanh(linen.Dense(2)(x))
            return linen.Dense(1)(x)

    def network(x) -> None:
        net = random_flax_module("net", Network(), dist.Normal(0.0, 1.0), input_shape=(1, 3))
        mean = net(x)[:, 0]
        with numpyro.plate("N", len(x)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=jnp.ones(len(x)))

    guide = AutoLayerLowRankNormal(network)
    assert flat_density(guide, KEY, (jnp.ones((5, 3)),)).dim == 11
    assert [layer.name for layer in guide.layers] == ["net/Dense_0", "net/Dense_1"]
    assert [layer.places for layer in guide.layers] == [((0, 8),), ((8, 11),)]


@pytest.mark.parametrize("options", [{"rank": 0}, {"rank": 1.5}, {"init_scale": -1.0}])
def test_bad_options_are_refused(options) -> None:
    with pytest.raises(ArgumentError, match="Expected"):
        AutoLayerLowRankNormal(model, **options)


# -- the density -----------------------------------------------------------------------------------


def test_log_prob_and_score_are_those_of_the_dense_normal() -> None:
    density, parameters, mean, covariance = fitted()
    theta = normal(1, 6, DIM)
    expected = stats.multivariate_normal(mean, covariance).logpdf(theta)
    np.testing.assert_allclose(density.log_prob(parameters, theta), expected, rtol=1e-11)
    score = -np.linalg.solve(covariance, np.asarray(theta - mean).T).T
    np.testing.assert_allclose(density.score(parameters, theta), score, rtol=1e-9)
    # A single point, and more than one leading dimension.
    np.testing.assert_allclose(density.score(parameters, theta[0]), score[0], rtol=1e-9)
    points = theta.reshape(2, 3, DIM)
    found = density.score(parameters, points)
    np.testing.assert_allclose(found, score.reshape(2, 3, DIM), rtol=1e-9)
    posterior = density.guide.get_posterior(density.write_back(parameters))
    np.testing.assert_allclose(posterior.log_prob(points).reshape(-1), expected, rtol=1e-11)


def test_residual_gradient_agrees_with_double_differentiation() -> None:
    density, parameters, *_ = fitted()
    theta, target = normal(1, 2, 3, DIM)
    found = jax.jit(density.mean_square_residual)(parameters, theta, target)
    # The base class differentiates the host's log density twice.
    automatic = FlatDensity(density.guide, KEY)
    expected = jax.jit(automatic.mean_square_residual)(parameters, theta, target)
    assert found[1].keys() == expected[1].keys()
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("source", ["density", "host"])
def test_draws_have_the_mean_and_the_covariance(source) -> None:
    density, parameters, mean, covariance = fitted()
    number = 50_000
    if source == "density":
        draws = density.sample(parameters, KEY, number)
        gradient = jax.grad(lambda p: density.sample(p, KEY, 3).sum())(parameters)
        assert all((leaf == 0).all() for leaf in jax.tree.leaves(gradient))
    else:
        posterior = density.guide.get_posterior(density.write_back(parameters))
        draws = posterior.sample(KEY, (number,))
        np.testing.assert_allclose(posterior.variance, np.diag(covariance), rtol=1e-10)
    centred = np.asarray(draws) - mean
    products = centred[:, :, None] * centred[:, None, :]
    for values, expected in [(centred, np.zeros(DIM)), (products, covariance)]:
        error = values.std(0) / number**0.5
        assert (np.abs(values.mean(0) - expected) < 5 * error).all()


def test_moments_and_scale() -> None:
    density, parameters, mean, covariance = fitted()
    found = density.moments(parameters)
    np.testing.assert_allclose(found.mean, mean)
    np.testing.assert_allclose(found.scale @ found.scale.T, covariance, rtol=1e-10, atol=1e-12)
    scaled = density.moments(density.set_scale(parameters, 0.3))
    np.testing.assert_allclose(np.square(scaled.scale).sum(1), 0.09, rtol=1e-9)
    correlation = linalg.cholesky(covariance, lower=True)
    correlation /= np.linalg.norm(correlation, axis=1, keepdims=True)
    np.testing.assert_allclose(scaled.scale / 0.3, correlation, rtol=1e-8, atol=1e-10)


# -- the host --------------------------------------------------------------------------------------


def test_guide_is_usable_in_the_host() -> None:
    density, parameters, mean, covariance = fitted()
    guide, params = density.guide, density.write_back(parameters)
    deviations = np.sqrt(np.diag(covariance))

    @jax.jit
    def computed(params):
        return (
            guide.median(params),
            guide.quantiles(params, [0.5, 0.9]),
            Predictive(guide, params=params, num_samples=400)(KEY),
        )

    median, quantiles, draws = jax.tree.map(np.asarray, computed(params))
    np.testing.assert_allclose(median["b.weight"], mean[:6].reshape(3, 2))
    quantile = stats.norm(mean, deviations).ppf(0.9)
    np.testing.assert_allclose(quantiles["a"][1], np.exp(quantile[6]), rtol=1e-6)
    np.testing.assert_allclose(quantiles["b.bias"][1], quantile[7:9], rtol=1e-6)
    error = np.abs(draws["b.bias"].mean(0) - mean[7:9])
    assert (error < 5 * deviations[7:9] / 400**0.5).all()

    svi = SVI(model, guide, numpyro.optim.Adam(1e-3), Trace_ELBO(4))
    state = svi.init(KEY, init_params=params)
    state, _ = jax.jit(svi.update)(state)
    # Adam's first step is the learning rate, from where we left the guide, in every parameter.
    after = density.from_host(svi.get_params(state))
    for name, value in after.items():
        assert 0 < jnp.abs(value - parameters[name]).max() < 1.1e-3, name


def test_fit_of_a_layer() -> None:
    """One layer of low rank, from the guide's own start, which is more than 10 nats off."""
    draws = np.random.default_rng(5)
    factor, scale = draws.normal(size=(4, 1)), draws.uniform(0.5, 1.5, 4)
    covariance = np.diag(scale) @ (np.eye(4) + factor @ factor.T) @ np.diag(scale)
    exact = dist.MultivariateNormal(jnp.arange(4.0), jnp.asarray(covariance))

    def one_layer() -> None:
        numpyro.sample("z", exact)

    guide = AutoLayerLowRankNormal(one_layer, rank=1)
    optim = numpyro.optim.Adam(0.05)
    engine = ProximalScoreVI(
        one_layer, guide, solver=GradientSteps(optim, num_samples=8, num_inner_steps=10)
    )
    result = engine.run(KEY, 200, progress_bar=False)
    mean, scale_tril = engine.density.moments(result.state.algorithm.parameters)
    found = dist.MultivariateNormal(mean, scale_tril=scale_tril)
    assert dist.kl_divergence(exact, found) < 0.05
