"""The guides with a low-rank covariance for each layer, against dense covariances."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg, stats

from ppl_ext.errors import ArgumentError
from ppl_ext.guides.layouts import Layer, find_layers
from ppl_ext.score_matching.options import GradientSteps
from tests import guides_support
from tests.backends import use_float64
from tests.guides_support import face_of

use_float64()

DIM, RANK = 11, 2
#: Of which coordinate each layer is made; the first layer is in two pieces.
LAYERS = ((0, 1, 2, 3, 4, 5, 7, 8), (6,), (9, 10))
DRAWS = np.random.default_rng(0)
MEAN, SCALE = DRAWS.normal(size=DIM), DRAWS.uniform(0.5, 2.0, DIM)
FACTOR = DRAWS.normal(size=(DIM, RANK))


def dense_covariance() -> np.ndarray:
    covariance = np.eye(DIM)
    for layer in LAYERS:
        where = np.ix_(layer, layer)
        covariance[where] += (FACTOR @ FACTOR.T)[where]
    return SCALE[:, None] * covariance * SCALE


COVARIANCE = dense_covariance()


@cache
def model_of(package: str) -> Any:
    """Two layers of several sites with another site between them."""
    face = face_of(package)
    host, dist = face.host, face.dist

    def model() -> None:
        host.sample("b.weight", dist.Normal(face.zeros(3, 2), 1.0).to_event(2))
        host.sample("a", dist.LogNormal(0.0, 1.0))
        host.sample("b.bias", dist.Normal(face.zeros(2), 1.0).to_event(1))
        host.sample("c.0", dist.Normal(0.0, 1.0))
        host.sample("c.1", dist.Normal(0.0, 1.0))

    return model


@cache
def fitted(package: str) -> tuple[Any, dict[str, Any]]:
    """A guide and its parameters."""
    face = face_of(package)
    density = face.density(face.guides.AutoLayerLowRankNormal(model_of(package), rank=RANK))
    assert isinstance(density, face.guides.LayerLowRankNormalDensity)
    values = {"loc": MEAN, "scale": SCALE, "cov_factor": FACTOR}
    parameters = face.constrained(density, values)
    assert density.initial_parameters().keys() == parameters.keys()
    return density, parameters


# -- layers ----------------------------------------------------------------------------------------


def test_which_sites_are_a_layer(face: Any) -> None:
    density, _ = fitted(face.name)
    expected = (Layer("b", ((0, 6), (7, 9))), Layer("a", ((6, 7),)), Layer("c", ((9, 11),)))
    assert density.guide.layers == expected
    assert density.dim == DIM and density.covariance_structure == "layer_low_rank"


@pytest.mark.parametrize("names", [("net.0.weight", "net.1.weight"), ("net/A.kernel", "net/B.k")])
def test_names_of_layers(names: tuple[str, str]) -> None:
    shapes: dict[str, tuple[int, ...]] = {"w": (2, 2), "empty": (0,), names[0]: (3,), names[1]: ()}
    first, second = (name.rpartition(".")[0] for name in names)
    assert find_layers(shapes) == (
        Layer("w", ((0, 4),)),
        Layer(first, ((4, 7),)),
        Layer(second, ((7, 8),)),
    )
    together = find_layers(shapes, {names[1]: "w"})
    assert together == (Layer("w", ((0, 4), (7, 8))), Layer(first, ((4, 7),)))
    with pytest.raises(ArgumentError, match=r"found \['x'\] among its sites"):
        find_layers(shapes, {"x": "w"})


def test_layers_of_a_flax_network() -> None:
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from flax import linen
    from numpyro.contrib.module import random_flax_module

    class Network(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            x = linen.tanh(linen.Dense(2)(x))
            return linen.Dense(1)(x)

    def network(x: Any) -> None:
        net = random_flax_module("net", Network(), dist.Normal(0.0, 1.0), input_shape=(1, 3))
        mean = net(x)[:, 0]
        with numpyro.plate("N", len(x)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=jnp.ones(len(x)))

    face = face_of("numpyro")
    guide = face.guides.AutoLayerLowRankNormal(network)
    assert face.density(guide, jnp.ones((5, 3))).dim == 11
    assert [layer.name for layer in guide.layers] == ["net/Dense_0", "net/Dense_1"]
    assert [layer.places for layer in guide.layers] == [((0, 8),), ((8, 11),)]


def test_layers_of_a_module() -> None:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import SVI, Trace_ELBO
    from pyro.nn import PyroModule, PyroSample
    from torch import Tensor, nn

    class Network(PyroModule):
        def __init__(self) -> None:
            super().__init__()
            linear = PyroModule[nn.Linear]
            self.body = PyroModule[nn.Sequential](linear(3, 2), nn.Tanh(), linear(2, 1))
            for layer in (self.body[0], self.body[2]):
                for name, value in list(layer.named_parameters()):
                    prior = dist.Normal(torch.zeros_like(value), 1.0).to_event(value.dim())
                    setattr(layer, name, PyroSample(prior))

        def forward(self, x: Tensor) -> None:
            mean = self.body(x)[:, 0]
            with pyro.plate("N", len(x)):
                pyro.sample("y", dist.Normal(mean, 1.0), obs=torch.ones(len(x)))

    face, network, x = face_of("pyro"), Network(), torch.ones(5, 3)
    guide = face.guides.AutoLayerLowRankNormal(network)
    assert face.density(guide, x).dim == 11
    assert [layer.name for layer in guide.layers] == ["body.0", "body.2"]
    assert [layer.places for layer in guide.layers] == [((0, 8),), ((8, 11),)]
    SVI(network, guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO()).step(x)
    assert guide.median()["body.0.weight"].shape == (2, 3)


@pytest.mark.parametrize("options", [{"rank": 0}, {"rank": 1.5}])
def test_bad_options_are_refused(face: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="Expected"):
        face.guides.AutoLayerLowRankNormal(model_of(face.name), **options)


# -- the density -----------------------------------------------------------------------------------


def test_log_prob_and_score_are_those_of_the_dense_normal(face: Any) -> None:
    guides_support.check_log_prob_and_score(face, *fitted(face.name), MEAN, COVARIANCE)


def test_single_precision_of_a_large_factor(face: Any) -> None:
    density = face.density(face.guides.AutoLayerLowRankNormal(model_of(face.name), rank=RANK))
    guides_support.check_single_precision(face, density, RANK)


def test_residual_gradient_agrees_with_double_differentiation(face: Any) -> None:
    guides_support.check_residual_gradient(face, *fitted(face.name))


@pytest.mark.parametrize("source", ["density", "host"])
def test_draws_have_the_mean_and_the_covariance(face: Any, source: str) -> None:
    density, parameters = fitted(face.name)
    if source == "density":
        draws = face.draws(density, parameters, 50_000)
        face.no_gradient_through(density, parameters)
    else:
        draws = face.posterior_draws(density, parameters, 50_000)
        posterior = face.posterior(density, parameters)
        np.testing.assert_allclose(face.numpy(posterior.variance), np.diag(COVARIANCE), rtol=1e-10)
    guides_support.check_moments_of_draws(draws, MEAN, COVARIANCE)


def test_draws_of_the_posterior_have_gradients() -> None:
    assert face_of("pyro").posterior(*fitted("pyro")).rsample((2,)).requires_grad


def test_moments_and_scale(face: Any) -> None:
    density, parameters = fitted(face.name)
    mean, scale = face.numpy(density.moments(parameters))
    np.testing.assert_allclose(mean, MEAN)
    np.testing.assert_allclose(scale @ scale.T, COVARIANCE, rtol=1e-10, atol=1e-12)
    _, scaled = face.numpy(density.moments(density.set_scale(parameters, 0.3)))
    np.testing.assert_allclose(np.square(scaled).sum(1), 0.09, rtol=1e-9)
    correlation = linalg.cholesky(COVARIANCE, lower=True)
    correlation /= np.linalg.norm(correlation, axis=1, keepdims=True)
    np.testing.assert_allclose(scaled / 0.3, correlation, rtol=1e-8, atol=1e-10)


# -- the host --------------------------------------------------------------------------------------


def test_guide_is_usable_in_the_host(face: Any) -> None:
    density, parameters = fitted(face.name)
    deviations = np.sqrt(np.diag(COVARIANCE))
    median = face.median(density, parameters)
    np.testing.assert_allclose(median["b.weight"], MEAN[:6].reshape(3, 2))
    quantile = stats.norm(MEAN, deviations).ppf(0.9)
    quantiles = face.quantiles(density, parameters, [0.5, 0.9])
    np.testing.assert_allclose(quantiles["a"][1], np.exp(quantile[6]), rtol=1e-6)
    np.testing.assert_allclose(quantiles["b.bias"][1], quantile[7:9], rtol=1e-6)
    for draws in face.host_draws(density, parameters, model_of(face.name), 400):
        error = np.abs(draws["b.bias"].mean(0).squeeze() - MEAN[7:9])
        assert (error < 5 * deviations[7:9] / 400**0.5).all()
    guides_support.check_svi_goes_on(face, density, parameters, model_of(face.name))


def test_a_saved_state_belongs_to_its_layers(tmp_path: Path) -> None:
    from pyro_ext import GradientSteps, ProximalScoreVI

    def engine(**options: Any) -> ProximalScoreVI:
        guide = face_of("pyro").guides.AutoLayerLowRankNormal(model_of("pyro"), **options)
        steps = GradientSteps(num_inner_steps=1)
        found = ProximalScoreVI(model_of("pyro"), guide, solver=steps, total_steps=4, seed=0)
        found.step()
        return found

    first = engine()
    first.save(tmp_path / "state")
    engine().load(tmp_path / "state")
    with pytest.raises(ArgumentError, match="belongs to another AutoLayerLowRankNormal"):
        engine(layers={"a": "b"}).load(tmp_path / "state")


@pytest.mark.slow
def test_fit_of_a_layer(face: Any) -> None:
    """One layer of low rank, from the guide's own start, which is more than 10 nats off."""
    draws = np.random.default_rng(5)
    factor, scale = draws.normal(size=(4, 1)), draws.uniform(0.5, 1.5, 4)
    covariance = scale[:, None] * (np.eye(4) + factor @ factor.T) * scale
    exact = face.dist.MultivariateNormal(face.array(np.arange(4.0)), face.array(covariance))

    def one_layer() -> None:
        face.host.sample("z", exact)

    guide = face.guides.AutoLayerLowRankNormal(one_layer, rank=1)
    solver = GradientSteps(face.backend.adam(0.05), num_samples=8, num_inner_steps=10)
    fit = face.backend.fit("ProximalScoreVI", one_layer, guide, solver, steps=400, draws=2)
    mean, scale_tril = face.numpy(fit.engine.density.moments(face.fitted_parameters(fit)))
    found = guides_support.divergence(np.arange(4.0), covariance, mean, scale_tril @ scale_tril.T)
    assert found < 0.05
