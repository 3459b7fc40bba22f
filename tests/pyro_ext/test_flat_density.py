"""The flat log density of Pyro's guides."""

from __future__ import annotations

from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions.transforms import block_autoregressive, iterated
from pyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormalizingFlow,
)
from torch.distributions import constraints, transform_to
from torch.distributions.transforms import ExpTransform

from ppl_ext.errors import ArgumentError
from pyro_ext.guides import (
    DiagonalNormalDensity,
    FlatDensity,
    flat_density,
)

torch.set_default_dtype(torch.float64)

NORMALS = [AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal]


def model() -> None:
    """Sites on purpose not in alphabetical order, with transforms that change the shape."""
    pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("a", dist.LogNormal(0.0, 1.0))
    pyro.sample("p", dist.Dirichlet(torch.ones(3)))


DIM = 5


@pytest.fixture(autouse=True)
def fixed_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def random_parameters(density: FlatDensity) -> dict[str, torch.Tensor]:
    return {
        name: value + 0.7 * torch.randn_like(value)
        for name, value in density.initial_parameters().items()
    }


def host_log_prob(density: FlatDensity, parameters, theta: torch.Tensor) -> torch.Tensor:
    """Through the host's own get_posterior, with the parameters written into the guide."""
    density.write_back(parameters)
    return density.guide.get_posterior().log_prob(theta)


class AboveZero(constraints.Constraint):
    """Of positive numbers, with the exponential alone; PyTorch's own adds a lower bound of 0."""

    def check(self, value: torch.Tensor) -> torch.Tensor:
        return value > 0


@transform_to.register(AboveZero)
def exponential(constraint: AboveZero) -> ExpTransform:
    return ExpTransform()


@pytest.mark.parametrize("constraint", [constraints.positive, AboveZero()])
def test_constraints_of_the_guide_are_honoured(constraint: constraints.Constraint) -> None:
    class Exponential(AutoDiagonalNormal):
        scale_constraint = constraint

    density = flat_density(Exponential(model))
    parameters = random_parameters(density)
    scale = density.moments(parameters).scale
    torch.testing.assert_close(scale, parameters["scale_unconstrained"].exp())
    theta, target = torch.randn(3, DIM), torch.randn(3, DIM)
    _, gradient = density.mean_square_residual(parameters, theta, target)
    _, expected = FlatDensity.mean_square_residual(density, parameters, theta, target)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("score", [-1e-3, -1e3, 1e3])
@pytest.mark.parametrize("unconstrained", [-3.0, 0.0])
def test_the_bound_on_gradients_holds_at_the_end_of_its_reach(
    score: float, unconstrained: float
) -> None:
    """Where the draws are at the mean, so that only the reach takes residuals away from zero."""
    density = flat_density(AutoDiagonalNormal(model))
    loc, reach = torch.linspace(-1.0, 1.0, DIM), 1.0
    scale = torch.linspace(unconstrained, unconstrained + 2.0, DIM)
    theta, scores = loc.expand(2, DIM), torch.full((2, DIM), score)
    parameters = {"loc": loc, "scale_unconstrained": scale}
    assert isinstance(density, DiagonalNormalDensity)
    bound = density.largest_gradient(parameters, theta, scores, reach)
    largest = 0.0
    for side in (-reach, reach):
        near = {"loc": loc + side, "scale_unconstrained": scale - reach}
        residual, gradient = density.residual_gradient(near, theta, scores)
        largest = max(largest, *(float(v.abs().max()) for v in (residual, *gradient.values())))
    assert largest <= bound < 10.0 * largest


def test_param_store_and_random_state_are_untouched() -> None:
    def model_with_parameter() -> None:
        scale = pyro.param("model_scale", torch.tensor(2.0), constraint=constraints.positive)
        pyro.sample("x", dist.Normal(0.0, scale))

    pyro.param("mine", torch.tensor(3.0))
    before = torch.get_rng_state()
    density = flat_density(AutoMultivariateNormal(model_with_parameter), seed=0)
    density.score(density.initial_parameters(), torch.zeros(2, 1))
    density.write_back(density.initial_parameters())
    flow = flat_density(AutoIAFNormal(model), seed=0)
    flow.score(flow.initial_parameters(), torch.zeros(2, DIM))
    flow.sample(flow.initial_parameters(), torch.Generator(), 2)
    assert list(pyro.get_param_store().keys()) == ["mine"]
    assert pyro.param("mine").item() == 3.0
    assert torch.equal(torch.get_rng_state(), before)


def test_dtype() -> None:
    for guide_class in NORMALS:
        density = flat_density(guide_class(model), dtype=torch.float32)
        parameters = density.initial_parameters()
        theta = density.sample(parameters, torch.Generator(), 3)
        assert theta.dtype == torch.float32
        assert density.score(parameters, theta).dtype == torch.float32
    with pytest.raises(ArgumentError, match=r"AutoIAFNormal, found torch.float32.*set_default"):
        flat_density(AutoIAFNormal(model), dtype=torch.float32)


class AutoBlockFlow(AutoNormalizingFlow):
    def __init__(self, model) -> None:
        super().__init__(model, partial(iterated, 1, block_autoregressive))


def test_flows_that_cannot_be_inverted_and_functions_are_refused() -> None:
    with pytest.raises(ArgumentError, match="AutoBlockFlow, which cannot be inverted"):
        flat_density(AutoBlockFlow(model))
    with pytest.raises(ArgumentError, match=r"Expected an autoguide object.*found model"):
        flat_density(model)
    guide = AutoLaplaceApproximation(model)
    guide()
    with pytest.raises(ArgumentError, match="fixed values"):
        flat_density(guide.laplace_approximation())
