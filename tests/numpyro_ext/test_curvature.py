"""Fisher information of what NumPyro has its own: distributions, masks, classes of a user."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_ext.curvature import fisher as fisher_module
from numpyro_ext.curvature import register_output_fisher
from ppl_ext.errors import ArgumentError
from tests.backends import backend_of
from tests.curvature_support import assert_is_fisher, gauss_newton, root_and_scores

jax.config.update("jax_enable_x64", True)

BACKEND = backend_of("numpyro")


def zero_inflated(mean: Any, concentration: Any, gate_logits: Any) -> Any:
    base = dist.NegativeBinomial2(mean, concentration)
    return dist.ZeroInflatedDistribution(base, gate_logits=gate_logits)


CASES: dict[str, Any] = {
    "NegativeBinomial2": (dist.NegativeBinomial2, {"mean": 2.3, "concentration": 1.4}, {}),
    "NegativeBinomial2, nearly Poisson": (
        dist.NegativeBinomial2,
        {"mean": 4.0, "concentration": 25.0},
        {},
    ),
    "NegativeBinomialProbs": (dist.NegativeBinomialProbs, {"total_count": 1.4, "probs": 0.6}, {}),
    "NegativeBinomialLogits": (
        dist.NegativeBinomialLogits,
        {"total_count": 3.4, "logits": -0.6},
        {},
    ),
    "zero-inflated": (
        zero_inflated,
        {"mean": 2.3, "concentration": 1.4, "gate_logits": -0.5},
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_fisher_information_is_the_covariance_of_the_score(name: str) -> None:
    root, scores = root_and_scores(BACKEND, *CASES[name])
    assert_is_fisher(root.T @ root, scores)


def test_arguments_that_are_lost_are_noticed() -> None:
    def model() -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        walk = dist.GaussianRandomWalk(jnp.exp(z), num_steps=12)
        numpyro.sample("y", walk, obs=jnp.ones(12))

    with pytest.raises(ArgumentError, match=r"GaussianRandomWalk.*events of shape"):
        gauss_newton(BACKEND, model, np.zeros(1))


def test_a_distribution_of_the_user() -> None:
    class Shifted(dist.Distribution):
        arg_constraints: ClassVar = {"shift": dist.constraints.real}
        support = dist.constraints.real

        def __init__(self, shift: Any) -> None:
            self.shift = shift
            super().__init__(jnp.shape(shift))

        def log_prob(self, value: Any) -> Any:
            return -(jnp.abs(value - self.shift) ** 3)

    def model() -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("y", Shifted(2 * z), obs=1.0)

    with pytest.raises(ArgumentError, match=r"Site 'y'.*Shifted.*register_output_fisher"):
        gauss_newton(BACKEND, model, np.zeros(1))
    try:
        register_output_fisher(Shifted)(lambda p, t: 3.0 * t["shift"][..., None])
        np.testing.assert_allclose(gauss_newton(BACKEND, model, np.zeros(1)), [[36.0]])
    finally:
        del fisher_module._ROOTS[Shifted]
    with pytest.raises(ArgumentError, match="not one of its objects"):
        register_output_fisher(dist.Normal(0.0, 1.0))  # type: ignore[arg-type]
