"""The two packages' mixture guides have the same densities, scores and residuals, in float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import numpyro_ext.guides as numpyro_density
import pyro_ext.guides as pyro_density
from tests.models import numpyro_models, pyro_models

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

DIM, COMPONENTS, RANK, SAMPLES = 5, 3, 2, 4
COVARIANCES = ["diag", "full", "low_rank"]
LOWER = np.tril_indices(DIM, -1)


def packed(theirs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Pyro's parameters, or their gradients, as NumPyro holds them."""
    ours = {f"auto_{name}": theirs[name] for name in ("logits", "loc")}
    scale = theirs["scale_unconstrained"]
    if "scale_tril_unconstrained" in theirs:
        lower = theirs["scale_tril_unconstrained"][:, LOWER[0], LOWER[1]]
        return ours | {"auto_scale_tril": np.concatenate([lower, scale], -1)}
    if "cov_factor" in theirs:
        ours["auto_cov_factor"] = theirs["cov_factor"]
    return ours | {"auto_scale": scale}


def make(covariance: str) -> Any:
    """A guide of each host over the same five latents, and equal parameters for both."""
    options = {"rank": RANK} if covariance == "low_rank" else {}
    theirs = pyro_density.flat_density(
        pyro_density.AutoGaussianMixture(
            pyro_models.gaussian_five, COMPONENTS, covariance, **options
        ),
        seed=0,
    )
    ours = numpyro_density.flat_density(
        numpyro_density.AutoGaussianMixture(
            numpyro_models.gaussian_five, COMPONENTS, covariance, **options
        ),
        jax.random.key(0),
    )
    draws = np.random.default_rng(1)
    parameters = {
        "logits": draws.normal(size=COMPONENTS),
        "loc": draws.normal(size=(COMPONENTS, DIM)),
        "scale_unconstrained": draws.normal(size=(COMPONENTS, DIM)),
    }
    if covariance == "full":
        shape = (COMPONENTS, DIM, DIM)
        parameters["scale_tril_unconstrained"] = np.tril(draws.normal(size=shape), -1)
    if covariance == "low_rank":
        parameters["cov_factor"] = draws.normal(size=(COMPONENTS, DIM, RANK))
    torch_parameters = {name: torch.tensor(value) for name, value in parameters.items()}
    jax_parameters = {name: jnp.asarray(value) for name, value in packed(parameters).items()}
    assert set(torch_parameters) == set(theirs.initial_parameters())
    assert set(jax_parameters) == set(ours.initial_parameters())
    return (theirs, torch_parameters), (ours, jax_parameters)


def assert_equal(theirs: Any, ours: Any) -> None:
    np.testing.assert_allclose(np.asarray(theirs), np.asarray(ours), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_densities_agree(covariance: str) -> None:
    (theirs, torch_parameters), (ours, jax_parameters) = make(covariance)
    theta = 2.0 * np.random.default_rng(2).normal(size=(SAMPLES, DIM))
    points = torch.tensor(theta)
    assert_equal(theirs.log_prob(torch_parameters, points), ours.log_prob(jax_parameters, theta))
    assert_equal(theirs.score(torch_parameters, points), ours.score(jax_parameters, theta))
    for a, b in zip(theirs.moments(torch_parameters), ours.moments(jax_parameters), strict=True):
        assert_equal(a, b)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_residuals_and_their_gradients_agree(covariance: str) -> None:
    (theirs, torch_parameters), (ours, jax_parameters) = make(covariance)
    theta, target = np.random.default_rng(3).normal(size=(2, SAMPLES, DIM))
    value, gradient = theirs.mean_square_residual(
        torch_parameters, torch.tensor(theta), torch.tensor(target)
    )
    jax_value, jax_gradient = ours.mean_square_residual(jax_parameters, theta, target)
    assert_equal(value, jax_value)
    expected = packed({name: entry.numpy() for name, entry in gradient.items()})
    assert set(expected) == set(jax_gradient)
    for name, entry in expected.items():
        assert_equal(entry, jax_gradient[name])


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_quantiles_agree(covariance: str) -> None:
    (theirs, torch_parameters), (ours, jax_parameters) = make(covariance)
    theirs.write_back(torch_parameters)
    levels = [0.01, 0.5, 0.9]
    expected = theirs.guide.quantiles(levels)
    actual = ours.guide.quantiles(ours.write_back(jax_parameters), levels)
    assert set(expected) == set(actual)
    for name, entry in expected.items():
        assert_equal(entry, actual[name])
