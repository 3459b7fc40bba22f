"""The guide with a low-rank covariance for each layer of Pyro, against dense covariances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn

from ppl_ext.errors import ArgumentError
from ppl_ext.score import GradientSteps
from pyro_ext.guides import (
    AutoLayerLowRankNormal,
    FlatDensity,
    LayerLowRankNormalDensity,
    flat_density,
)
from pyro_ext.guides.layer_low_rank import Layer, find_layers
from pyro_ext.score import ProximalScoreVI

torch.set_default_dtype(torch.float64)

DIM, RANK = 11, 2
#: Of which coordinate each layer is made; the first layer is in two pieces.
LAYERS = ([0, 1, 2, 3, 4, 5, 7, 8], [6], [9, 10])


@pytest.fixture(autouse=True)
def clean_store():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    yield
    pyro.clear_param_store()


def model() -> None:
    """Two layers of several sites with another site between them."""
    pyro.sample("b.weight", dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))
    pyro.sample("a", dist.LogNormal(0.0, 1.0))
    pyro.sample("b.bias", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("c.0", dist.Normal(0.0, 1.0))
    pyro.sample("c.1", dist.Normal(0.0, 1.0))


def dense_covariance(scale: Tensor, factor: Tensor) -> Tensor:
    covariance = torch.eye(DIM)
    for layer in LAYERS:
        covariance[np.ix_(layer, layer)] += (factor @ factor.T)[np.ix_(layer, layer)]
    return scale[:, None] * covariance * scale


def fitted() -> tuple[LayerLowRankNormalDensity, dict[str, Tensor], Tensor, Tensor]:
    """A guide, its parameters, and its mean and covariance."""
    density = flat_density(AutoLayerLowRankNormal(model, rank=RANK))
    assert isinstance(density, LayerLowRankNormalDensity)
    draws = np.random.default_rng(0)
    mean = torch.tensor(draws.normal(size=DIM))
    scale = torch.tensor(draws.uniform(0.5, 2.0, DIM))
    factor = torch.tensor(draws.normal(size=(DIM, RANK)))
    parameters = {
        "loc": mean,
        "scale_unconstrained": density._unconstrained_scale(scale),
        "cov_factor": factor,
    }
    assert density.initial_parameters().keys() == parameters.keys()
    density.write_back(parameters)
    return density, density.initial_parameters(), mean, dense_covariance(scale, factor)


# -- layers ----------------------------------------------------------------------------------------


def test_which_sites_are_a_layer() -> None:
    density, *_ = fitted()
    expected = (Layer("b", ((0, 6), (7, 9))), Layer("a", ((6, 7),)), Layer("c", ((9, 11),)))
    assert density.guide.layers == expected
    assert density.dim == DIM and density.covariance_structure == "layer_low_rank"
    shapes = {"w": (2, 2), "empty": (0,), "net.0.weight": (3,), "net.1.weight": ()}
    assert find_layers(shapes) == (
        Layer("w", ((0, 4),)),
        Layer("net.0", ((4, 7),)),
        Layer("net.1", ((7, 8),)),
    )
    together = find_layers(shapes, {"net.1.weight": "w"})
    assert together == (Layer("w", ((0, 4), (7, 8))), Layer("net.0", ((4, 7),)))
    with pytest.raises(ArgumentError, match=r"found \['x'\] among its sites"):
        find_layers(shapes, {"x": "w"})


def test_layers_of_a_module() -> None:
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

    network, x = Network(), torch.ones(5, 3)
    guide = AutoLayerLowRankNormal(network)
    assert flat_density(guide, (x,)).dim == 11
    assert [layer.name for layer in guide.layers] == ["body.0", "body.2"]
    assert [layer.places for layer in guide.layers] == [((0, 8),), ((8, 11),)]
    SVI(network, guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO()).step(x)
    assert guide.median()["body.0.weight"].shape == (2, 3)


@pytest.mark.parametrize("options", [{"rank": 0}, {"rank": 1.5}, {"init_scale": -1.0}])
def test_bad_options_are_refused(options: Any) -> None:
    with pytest.raises(ArgumentError, match="Expected"):
        AutoLayerLowRankNormal(model, **options)


# -- the density -----------------------------------------------------------------------------------


def test_log_prob_and_score_are_those_of_the_dense_normal() -> None:
    density, parameters, mean, covariance = fitted()
    theta = torch.randn(6, DIM)
    expected = dist.MultivariateNormal(mean, covariance).log_prob(theta)
    torch.testing.assert_close(density.log_prob(parameters, theta), expected, rtol=1e-11, atol=0)
    score = -torch.linalg.solve(covariance, (theta - mean).T).T
    torch.testing.assert_close(density.score(parameters, theta), score, rtol=1e-9, atol=1e-11)
    # A single point, and more than one leading dimension.
    torch.testing.assert_close(density.score(parameters, theta[0]), score[0])
    points = theta.reshape(2, 3, DIM)
    torch.testing.assert_close(density.score(parameters, points), score.reshape(2, 3, DIM))
    posterior = density.guide.get_posterior()
    torch.testing.assert_close(posterior.log_prob(points).reshape(-1), expected)


def test_residual_gradient_agrees_with_double_differentiation() -> None:
    density, parameters, *_ = fitted()
    theta, target = torch.randn(2, 3, DIM)
    value, gradient = density.mean_square_residual(parameters, theta, target)
    # The base class differentiates the host's log density twice.
    expected, of_host = FlatDensity(density.guide).mean_square_residual(parameters, theta, target)
    torch.testing.assert_close(value, expected)
    assert gradient.keys() == of_host.keys()
    for name, entry in gradient.items():
        torch.testing.assert_close(entry, of_host[name], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("source", ["density", "host"])
def test_draws_have_the_mean_and_the_covariance(source: str) -> None:
    density, parameters, mean, covariance = fitted()
    number = 50_000
    if source == "density":
        draws = density.sample(parameters, torch.Generator().manual_seed(0), number)
        assert not draws.requires_grad
    else:
        posterior = density.guide.get_posterior()
        draws = posterior.rsample((number,))
        assert draws.requires_grad
        draws = draws.detach()
        torch.testing.assert_close(posterior.variance, covariance.diagonal())
    centred = draws - mean
    products = centred[:, :, None] * centred[:, None, :]
    for values, expected in [(centred, torch.zeros(DIM)), (products, covariance)]:
        error = values.std(0) / number**0.5
        assert ((values.mean(0) - expected).abs() < 5 * error).all()


def test_moments_and_scale() -> None:
    density, parameters, mean, covariance = fitted()
    found = density.moments(parameters)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.scale @ found.scale.T, covariance)
    scaled = density.moments(density.set_scale(parameters, 0.3))
    torch.testing.assert_close(scaled.scale.square().sum(1), torch.full((DIM,), 0.09))
    correlation = torch.linalg.cholesky(covariance)
    correlation /= correlation.norm(dim=1, keepdim=True)
    torch.testing.assert_close(scaled.scale / 0.3, correlation)


# -- the host --------------------------------------------------------------------------------------


def test_guide_is_usable_in_the_host() -> None:
    density, _, mean, covariance = fitted()
    guide = density.guide
    deviations = covariance.diagonal().sqrt()
    torch.testing.assert_close(guide.median()["b.weight"], mean[:6].reshape(3, 2))
    quantile = dist.Normal(mean, deviations).icdf(torch.tensor(0.9))
    quantiles = guide.quantiles([0.5, 0.9])
    torch.testing.assert_close(quantiles["a"][1], quantile[6].exp())
    torch.testing.assert_close(quantiles["b.bias"][1], quantile[7:9])
    draws = Predictive(model, guide=guide, num_samples=400)()
    error = (draws["b.bias"].mean(0).squeeze() - mean[7:9]).abs()
    assert (error < 5 * deviations[7:9] / 400**0.5).all()

    before = density.initial_parameters()
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO(4, vectorize_particles=True))
    svi.step()
    # Adam's first step is the learning rate, from where we left the guide, in every parameter.
    for name, value in density.initial_parameters().items():
        moved = (value - before[name]).abs()
        assert 0 < moved.max() < 1.1e-3, name


def test_a_saved_state_belongs_to_its_layers(tmp_path: Any) -> None:
    def engine(**options: Any) -> ProximalScoreVI:
        guide = AutoLayerLowRankNormal(model, **options)
        found = ProximalScoreVI(
            model, guide, solver=GradientSteps(num_inner_steps=1), total_steps=4, seed=0
        )
        found.step()
        return found

    first = engine()
    first.save(tmp_path / "state")
    engine().load(tmp_path / "state")
    with pytest.raises(ArgumentError, match="belongs to another AutoLayerLowRankNormal"):
        engine(layers={"a": "b"}).load(tmp_path / "state")


def test_fit_of_a_layer() -> None:
    """One layer of low rank, from the guide's own start, which is more than 10 nats off."""
    draws = np.random.default_rng(5)
    factor = torch.tensor(draws.normal(size=(4, 1)))
    scale = torch.tensor(draws.uniform(0.5, 1.5, 4))
    covariance = scale[:, None] * (torch.eye(4) + factor @ factor.T) * scale
    exact = dist.MultivariateNormal(torch.arange(4.0), covariance)

    def one_layer() -> None:
        pyro.sample("z", exact)

    optim = pyro.optim.Adam({"lr": 0.05})
    guide = AutoLayerLowRankNormal(one_layer, rank=1)
    engine = ProximalScoreVI(
        one_layer, guide, solver=GradientSteps(optim, num_samples=8, num_inner_steps=10)
    )
    engine.run(200, progress_bar=False)
    mean, scale_tril = engine.density.moments(engine.parameters)
    found = dist.MultivariateNormal(mean, scale_tril=scale_tril)
    assert torch.distributions.kl_divergence(exact, found) < 0.05
