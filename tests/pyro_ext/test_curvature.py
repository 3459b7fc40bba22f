"""Fisher information of what Pyro has its own: distributions, masks, classes of a user."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

from ppl_ext.errors import ArgumentError
from pyro_ext.curvature import fisher as fisher_module
from pyro_ext.curvature import register_output_fisher, symmetric_eigen
from tests.backends import backend_of
from tests.curvature_support import assert_is_fisher, gauss_newton, root_and_scores

torch.set_default_dtype(torch.float64)

BACKEND = backend_of("pyro")


def zero_inflated(total_count: Any, logits: Any, gate_logits: Any) -> Any:
    base = dist.NegativeBinomial(total_count, logits=logits)
    return dist.ZeroInflatedDistribution(base, gate_logits=gate_logits)


def normal_vector(**parameters: Any) -> Any:
    return dist.MultivariateNormal(**parameters)


COVARIANCE = [[1.44, 0.6], [0.6, 0.89]]
CASES: dict[str, Any] = {
    "NegativeBinomial probs": (dist.NegativeBinomial, {"total_count": 1.4, "probs": 0.6}, {}),
    "NegativeBinomial logits": (dist.NegativeBinomial, {"total_count": 3.4, "logits": -0.6}, {}),
    "NegativeBinomial, nearly Poisson": (
        dist.NegativeBinomial,
        {"total_count": 25.0, "logits": -1.8},
        {},
    ),
    "zero-inflated": (
        zero_inflated,
        {"total_count": 1.4, "logits": 0.6, "gate_logits": -0.5},
        {},
    ),
    "covariance": (normal_vector, {"loc": [0.3, -1.0], "covariance_matrix": COVARIANCE}, {}),
    "precision": (normal_vector, {"loc": [0.3, -1.0], "precision_matrix": COVARIANCE}, {}),
    "OneHotCategorical": (dist.OneHotCategorical, {"logits": [0.7, -0.2, 0.1]}, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_fisher_information_is_the_covariance_of_the_score(name: str) -> None:
    root, scores = root_and_scores(BACKEND, *CASES[name])
    assert_is_fisher(root.T @ root, scores)


def test_a_mask_of_the_handler() -> None:
    keep = torch.tensor([True, False, True])

    def model() -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("N", 3), poutine.mask(mask=keep):
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(3))

    np.testing.assert_allclose(gauss_newton(BACKEND, model, np.zeros(3)), np.diag([1.0, 0.0, 1.0]))


def test_arguments_that_are_lost_are_noticed() -> None:
    class Repeated(dist.TorchDistribution):
        """Two equal Normals, unless told another number."""

        arg_constraints: ClassVar = {"loc": dist.constraints.real}
        support = dist.constraints.real_vector

        def __init__(self, loc: Any, times: int = 2) -> None:
            self.loc, self.times = loc, times
            super().__init__(loc.shape, (times,), validate_args=False)

        def sample(self, sample_shape: Any = ()) -> Any:
            return self.loc.expand((*self.loc.shape, self.times))

        def log_prob(self, value: Any) -> Any:
            return -((value - self.loc[..., None]) ** 2).sum(-1)

    def model() -> None:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", Repeated(z, 5), obs=torch.ones(5))

    with pytest.raises(ArgumentError, match=r"Repeated.*events of shape"):
        gauss_newton(BACKEND, model, np.zeros(1))


def test_series_are_refused_by_name() -> None:
    def series() -> None:
        loc = pyro.sample("loc", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        hidden = dist.DiscreteHMM(torch.zeros(2), torch.zeros(2, 2), dist.Normal(loc, 1.0))
        pyro.sample("y", hidden, obs=torch.zeros(5))

    expected = (
        "Site 'y': expected a distribution whose .* found DiscreteHMM.*register_output_fisher"
    )
    with pytest.raises(ArgumentError, match=expected):
        gauss_newton(BACKEND, series, np.zeros(2))


def test_parameters_that_no_element_has_alone_are_noticed() -> None:
    class Profile(dist.TorchDistribution):
        """Elements with a level each and a shape in common, which is said to be a number."""

        arg_constraints: ClassVar = {"level": dist.constraints.real, "shape": dist.constraints.real}
        support = dist.constraints.real_vector

        def __init__(self, level: Any, shape: Any) -> None:
            self.level, self.shape = level, shape
            super().__init__(level.shape, shape.shape, validate_args=False)

        def sample(self, sample_shape: Any = ()) -> Any:
            return self.level[..., None] + self.shape

        def log_prob(self, value: Any) -> Any:
            return -((value - self.level[..., None] - self.shape) ** 2).sum(-1)

    def model() -> None:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", Profile(z * torch.ones(3), z * torch.ones(4)), obs=torch.ones((3, 4)))

    with pytest.raises(ArgumentError, match=r"Site 'y'.*Profile \(shape of shape \(4,\)"):
        gauss_newton(BACKEND, model, np.zeros(1))


def test_a_distribution_of_the_user() -> None:
    class Shifted(dist.TorchDistribution):
        arg_constraints: ClassVar = {"shift": dist.constraints.real}
        support = dist.constraints.real

        def __init__(self, shift: Any) -> None:
            self.shift = shift
            super().__init__(shift.shape, validate_args=False)

        def log_prob(self, value: Any) -> Any:
            return -((value - self.shift).abs() ** 3)

    def model() -> None:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", Shifted(2 * z), obs=torch.tensor(1.0))

    with pytest.raises(ArgumentError, match=r"Site 'y'.*Shifted.*register_output_fisher"):
        gauss_newton(BACKEND, model, np.zeros(1))
    try:
        register_output_fisher(Shifted)(lambda p, t: 3.0 * t["shift"][..., None])
        np.testing.assert_allclose(gauss_newton(BACKEND, model, np.zeros(1)), [[36.0]])
    finally:
        del fisher_module._ROOTS[Shifted]
    with pytest.raises(ArgumentError, match="not one of its objects"):
        register_output_fisher(dist.Normal(0.0, 1.0))  # type: ignore[arg-type]


def test_eigenvalues_of_a_matrix_that_is_not_finite() -> None:
    # One particle that is lost must not take the others with it.
    matrices = torch.eye(3).repeat(2, 1, 1) * torch.tensor([2.0, torch.nan])[:, None, None]
    values, vectors = symmetric_eigen(matrices)
    np.testing.assert_allclose(values[0], 2.0)
    np.testing.assert_allclose(vectors[0] @ vectors[0].T, np.eye(3), atol=1e-12)
    assert torch.isnan(values[1]).all()
