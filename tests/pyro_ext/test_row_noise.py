"""Flipout and the local reparameterisation in Pyro, against closed forms and plain draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, RenyiELBO, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal, AutoNormal
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import to_pyro_module_
from torch import Tensor, nn
from torch.nn import functional

from ppl_ext.errors import ArgumentError
from pyro_ext.guides import flipout, local_reparameterization
from pyro_ext.guides.local_reparameterization import _sqrt

torch.set_default_dtype(torch.float64)

DRAWS = np.random.default_rng(0)
ROWS, INPUTS, OUTPUTS, NOISE = 32, 4, 3, 0.5
X = torch.tensor(DRAWS.normal(size=(ROWS, INPUTS)) + 0.5)
LOC = torch.tensor(DRAWS.normal(size=(INPUTS, OUTPUTS)))
SCALE = torch.tensor(DRAWS.uniform(0.1, 0.4, (INPUTS, OUTPUTS)))
Y = X @ LOC + NOISE * torch.tensor(DRAWS.normal(size=(ROWS, OUTPUTS)))
METHODS = [flipout, local_reparameterization]


@pytest.fixture(autouse=True)
def clean_store():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    yield
    pyro.clear_param_store()


def standard(*shape: int) -> Any:
    return dist.Normal(torch.zeros(shape), 1.0).to_event(len(shape))


def regression(x: Any = X, y: Any = Y) -> None:
    w = pyro.sample("w", standard(INPUTS, OUTPUTS))
    with pyro.plate("N", len(x)):
        pyro.sample("y", dist.Normal(x @ w, NOISE).to_event(1), obs=y)


def exact_loss(loc: Tensor, scale: Tensor) -> Tensor:
    """Negative evidence lower bound of the regression."""
    fit = dist.Normal(X @ loc, NOISE).log_prob(Y).sum()
    fit = fit - (X.square() @ scale.square()).sum() / (2 * NOISE**2)
    prior = 0.5 * (scale.square() + loc.square() - 1.0) - scale.log()
    return prior.sum() - fit


# -- gradients -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_guide", [AutoNormal, AutoDiagonalNormal])
def test_gradients_are_unbiased_and_quieter(make_guide) -> None:
    guide = make_guide(regression)
    guide()
    if make_guide is AutoNormal:
        guide.locs.w.data.copy_(LOC)
        guide.scales.w = SCALE
        loc, scale = guide.locs.w, guide.scales.w
    else:
        guide.loc.data.copy_(LOC.reshape(-1))
        guide.scale = SCALE.reshape(-1)
        loc, scale = guide.loc, guide.scale
    parameters = list(guide.parameters())
    exact = torch.autograd.grad(
        exact_loss(loc.reshape(LOC.shape), scale.reshape(LOC.shape)), parameters
    )
    number = 400
    variances = []
    for elbo in (Trace_ELBO(), *(method(Trace_ELBO(), ["w"]) for method in METHODS)):
        found = []
        for _ in range(number):
            guide.zero_grad()
            elbo.loss_and_grads(regression, guide)
            found.append([value.grad.clone() for value in parameters])
        draws = [torch.stack(values) for values in zip(*found, strict=True)]
        for values, expected in zip(draws, exact, strict=True):
            error = (values.mean(0) - expected).abs()
            assert (error < 5 * values.std(0) / number**0.5).all()
        variances.append([float(values.var(0).sum()) for values in draws])
    plain, flipped, local = variances
    # Rows have noise of their own, over which the gradient in the mean is averaged.
    assert flipped[0] < plain[0] / 4 and local[0] < plain[0] / 4
    # In the scale flipout's rows share the squares of the weights' noise.
    assert flipped[1] < plain[1] and local[1] < plain[1] / 4


# -- outputs ---------------------------------------------------------------------------------------


def outputs(model: Any, method: Any, number: int, **sites: Tensor) -> Tensor:
    """Draws of the mean of the observed site, under a guide with these standard deviations."""

    def guide() -> None:
        for name, scale in sites.items():
            fn = dist.Normal(0.3 + torch.zeros(scale.shape), scale).to_event(scale.dim())
            pyro.sample(name, fn)

    noisy, recorded = (
        (model, guide) if method is None else method(Trace_ELBO())._handled(model, guide)
    )
    found = []
    for _ in range(number):
        drawn = poutine.trace(recorded).get_trace()
        trace = poutine.trace(poutine.replay(noisy, trace=drawn)).get_trace()
        assert all(trace.nodes[name]["value"] is drawn.nodes[name]["value"] for name in sites)
        found.append(trace.nodes["y"]["fn"].base_dist.loc)
    return torch.stack(found)


def assert_same_moments(found: Tensor, expected: Tensor) -> None:
    """Mean and covariance of two samples (S, K) agree within Monte Carlo error."""
    products = []
    for values in (found, expected):
        centred = values - values.mean(0)
        products.append(centred[:, :, None] * centred[:, None, :])
    for one, other in ((found, expected), tuple(products)):
        error = (one.var(0) / len(one) + other.var(0) / len(other)).sqrt()
        assert ((one.mean(0) - other.mean(0)).abs() < 5 * error).all()


def test_rows_keep_their_distribution_and_lose_their_correlation() -> None:
    """Convolutions with several places, and a weight that is applied twice, once transposed."""
    x = torch.tensor(DRAWS.normal(size=(3, 2, 4)))
    number = 2000

    def model() -> None:
        kernel = pyro.sample("k", standard(3, 2, 2))
        back = pyro.sample("b", standard(3, 1, 2))
        w = pyro.sample("w", standard(9, 2))
        hidden = torch.tanh(functional.conv1d(x, kernel, torch.ones(3)))
        again = functional.conv_transpose1d(hidden, back).flatten(1)
        hidden = hidden.flatten(1)
        hidden = torch.cat([hidden, again, torch.tanh(hidden @ w) @ w.T], -1)
        with pyro.plate("N", 3):
            pyro.sample("y", dist.Normal(hidden, 1.0).to_event(1), obs=torch.zeros(3, 22))

    scales = {
        name: torch.tensor(DRAWS.uniform(0.3, 1.0, shape))
        for name, shape in {"k": (3, 2, 2), "b": (3, 1, 2), "w": (9, 2)}.items()
    }
    plain = outputs(model, None, number, **scales)
    found = outputs(model, flipout, number, **scales)
    for row in range(3):
        assert_same_moments(found[:, row], plain[:, row])

    def correlation(values: Tensor) -> float:
        rows = values[:, :2].reshape(number, -1)
        return float(torch.corrcoef(rows.T)[:22, 22:].abs().max())

    assert correlation(plain) > 0.3
    # Not zero: rows share the size of the weights' noise.
    assert correlation(found) < correlation(plain) / 4


def test_local_noise_has_the_variance_of_the_weights() -> None:
    """Of a vector of weights and of a matrix, with a row of zeros."""
    x = torch.tensor(DRAWS.normal(size=(3, 4)))
    x[2] = 0.0
    number = 2000

    def model() -> None:
        w, v = pyro.sample("w", standard(4, 2)), pyro.sample("v", standard(4))
        result = torch.cat([x @ w, (x @ v)[:, None]], -1)
        with pyro.plate("N", 3):
            pyro.sample("y", dist.Normal(result, 1.0).to_event(1), obs=torch.zeros(3, 3))

    scales = {
        "w": torch.tensor(DRAWS.uniform(0.3, 1.0, (4, 2))),
        "v": torch.tensor(DRAWS.uniform(0.3, 1.0, 4)),
    }
    found = outputs(model, local_reparameterization, number, **scales)
    variance = x.square() @ torch.cat([scales["w"], scales["v"][:, None]], -1).square()
    error = (found.mean(0) - 0.3 * x.sum(-1, keepdim=True)).abs()
    assert (error <= 5 * (variance / number).sqrt()).all()
    assert ((found.var(0) - variance).abs() <= 5 * variance * (2 / number) ** 0.5).all()
    rows = found[:, :2].reshape(number, -1)
    assert (torch.corrcoef(rows.T) - torch.eye(6)).abs().max() < 5 / number**0.5

    # A row without noise leaves the gradient finite.
    values = torch.tensor([0.0, 4.0], requires_grad=True)
    _sqrt(values).sum().backward()
    assert values.grad.tolist() == [0.0, 0.25]


# -- programs --------------------------------------------------------------------------------------


class Network(PyroModule):
    """A network made Bayesian in the host's way."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Unflatten(1, (1, INPUTS)), nn.Conv1d(1, 2, 2), nn.Flatten(1), nn.Linear(6, 1)
        )
        to_pyro_module_(self.body)
        for module in self.body.modules():
            for name, value in list(module.named_parameters(recurse=False)):
                setattr(module, name, PyroSample(standard(*value.shape)))

    def forward(self, x: Tensor, y: Any = None) -> Tensor:
        mean = self.body(x).squeeze(-1)
        with pyro.plate("N", len(x)):
            return pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.mark.parametrize("make_guide", [AutoNormal, AutoDiagonalNormal])
def test_weights_of_the_hosts_networks_are_met(make_guide) -> None:
    model = Network()
    guide = make_guide(model)
    guide(X, Y[:, 0])
    names = ["body.1.weight", "body.3.weight"]
    for elbo in (
        flipout(Trace_ELBO(num_particles=2), names),
        flipout(TraceGraph_ELBO()),
        local_reparameterization(TraceMeanField_ELBO(), names, independent_places=True),
    ):
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), elbo)
        before = [value.detach().clone() for value in guide.parameters()]
        svi.step(X, Y[:, 0])
        after = list(guide.parameters())
        assert all((a != b).all() for a, b in zip(after, before, strict=True))
    # Torch's own way to an objective.
    assert elbo(model, guide)(X, Y[:, 0]).requires_grad


def test_rows_of_a_minibatch_belong_together() -> None:
    """Fits to their own targets are near perfect only if both come from the same rows."""
    w = torch.tensor(DRAWS.normal(size=(INPUTS, 1)))

    def model(x: Tensor, y: Tensor) -> None:
        weights = pyro.sample("w", standard(INPUTS, 1))
        with pyro.plate("N", len(x), subsample_size=8) as rows:
            mean = pyro.deterministic("mean", (x[rows] @ weights)[:, 0])
            pyro.sample("y", dist.Normal(mean, 1e-3), obs=y[rows])

    def guide(x: Tensor, y: Tensor) -> None:
        pyro.sample("w", dist.Normal(w, 1e-9).to_event(2))

    loss = flipout(Trace_ELBO()).loss(model, guide, X, (X @ w)[:, 0])
    entropy = dist.Normal(w, 1e-9).entropy().sum() + dist.Normal(0.0, 1.0).log_prob(w).sum()
    perfect = ROWS * dist.Normal(0.0, 1e-3).log_prob(torch.zeros(()))
    assert -loss == pytest.approx(float(perfect + entropy), abs=INPUTS * 4)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_objectives_that_are_not_linear_are_refused(method) -> None:
    for elbo in (RenyiELBO(), Trace_ELBO(num_particles=2, vectorize_particles=True)):
        with pytest.raises(ArgumentError, match="linear in the log likelihood"):
            method(elbo)
    with pytest.raises(ArgumentError, match="list of names"):
        method(TraceMeanField_ELBO(), "w")


def loss_of(elbo: Any, model: Any, guide: Any = None) -> None:
    elbo.loss(model, AutoNormal(model) if guide is None else guide)


def model_of(function: Any) -> Any:
    """A regression on a function of the weights and the inputs."""

    def model() -> None:
        w = pyro.sample("w", standard(INPUTS, OUTPUTS))
        with pyro.plate("N", ROWS):
            pyro.sample("y", dist.Normal(function(w), 1.0).to_event(1), obs=Y)

    return model


def test_weights_that_are_not_met_are_refused() -> None:
    scaled = model_of(lambda w: X @ (2.0 * w))
    for sites in (None, ["w"]):
        with pytest.raises(ArgumentError, match=r"product or convolution.*'w': \['.*mul"):
            loss_of(flipout(Trace_ELBO(), sites), scaled)
    with pytest.raises(ArgumentError, match=r"names of latent sites.*\['v'\]"):
        loss_of(flipout(Trace_ELBO(), ["v"]), regression)
    summed = model_of(lambda w: torch.einsum("ni,io->no", X, w))
    with pytest.raises(ArgumentError, match=r"'w': \['einsum'\]"):
        loss_of(flipout(Trace_ELBO()), summed)


def test_weights_with_one_draw_for_all_rows_elsewhere_are_refused() -> None:
    for method in METHODS:
        with pytest.raises(ArgumentError, match=r"'w' in linear operations only.*sum"):
            loss_of(method(Trace_ELBO()), model_of(lambda w: X @ w + w.sum()))


def test_rows_that_are_not_those_of_the_data_are_refused() -> None:
    basis = torch.ones(5, INPUTS)
    for method in METHODS:
        with pytest.raises(ArgumentError, match=r"length 5, to be the rows .*\[3, 32\]"):
            loss_of(method(Trace_ELBO()), model_of(lambda w: torch.ones(ROWS, 5) @ (basis @ w)))


def test_guides_with_correlated_weights_are_refused() -> None:
    with pytest.raises(ArgumentError, match="factorised Normal, found 'w' from Multivariate"):
        loss_of(flipout(Trace_ELBO()), regression, AutoMultivariateNormal(regression))


def test_local_noise_is_refused_where_it_is_not_exact() -> None:
    square = model_of(lambda w: torch.tanh(X @ w) @ w.T @ w)
    with pytest.raises(ArgumentError, match="applied once, found a second use"):
        loss_of(local_reparameterization(Trace_ELBO()), square)
    loss_of(flipout(Trace_ELBO()), square)
    places = model_of(lambda w: (torch.stack([X, X + 1.0], 1) @ w).sum(1))
    with pytest.raises(ArgumentError, match="once a row, found 2 places"):
        loss_of(local_reparameterization(Trace_ELBO()), places)
    loss_of(local_reparameterization(Trace_ELBO(), independent_places=True), places)
    stacked = model_of(lambda w: X @ w + (torch.cat([X, X]) @ w)[:ROWS])
    with pytest.raises(ArgumentError, match="one number of rows, found 32 and 64"):
        loss_of(flipout(Trace_ELBO()), stacked)
