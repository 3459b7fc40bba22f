"""What only Pyro's guides have: constraints of their own, the parameter store, other dtypes."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
)
from torch.distributions import constraints, transform_to
from torch.distributions.transforms import ExpTransform

from ppl_ext.errors import ArgumentError
from pyro_ext.guides import AutoMatrixNormal, AutoPlanarFlow, flat_density
from tests.guides_support import DIM, check_residual_gradient, face_of, model_of

torch.set_default_dtype(torch.float64)

model = model_of("pyro")


class AboveZero(constraints.Constraint):
    """Of positive numbers, with the exponential alone; PyTorch's own adds a lower bound of 0."""

    def check(self, value: torch.Tensor) -> torch.Tensor:
        return value > 0


@transform_to.register(AboveZero)
def exponential(constraint: AboveZero) -> ExpTransform:
    return ExpTransform()


def test_a_constraint_of_the_guide_that_is_not_pytorchs() -> None:
    class Exponential(AutoDiagonalNormal):
        scale_constraint = AboveZero()

    face, density = face_of("pyro"), flat_density(Exponential(model))
    parameters = face.random(density, 0.7)
    scale = density.moments(parameters).scale
    torch.testing.assert_close(scale, parameters["scale_unconstrained"].exp())
    check_residual_gradient(face, density, parameters)


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
    for guide_class in (
        AutoDiagonalNormal,
        AutoMultivariateNormal,
        AutoLowRankMultivariateNormal,
        AutoMatrixNormal,
        AutoPlanarFlow,
    ):
        density = flat_density(guide_class(model), dtype=torch.float32)
        parameters = density.initial_parameters()
        theta = density.sample(parameters, torch.Generator(), 3)
        posterior = density.guide.get_posterior()
        for found in (
            theta,
            density.score(parameters, theta),
            density.log_prob(parameters, theta),
            posterior.log_prob(posterior.sample()),
        ):
            assert found.dtype == torch.float32
    with pytest.raises(ArgumentError, match=r"AutoIAFNormal, found torch.float32.*set_default"):
        flat_density(AutoIAFNormal(model), dtype=torch.float32)


def test_fixed_values_of_a_laplace_approximation_are_refused() -> None:
    guide = AutoLaplaceApproximation(model)
    with torch.random.fork_rng():
        guide()
    with pytest.raises(ArgumentError, match="fixed values"):
        flat_density(guide.laplace_approximation())
