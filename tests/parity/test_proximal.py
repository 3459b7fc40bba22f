"""The two packages take the same proximal steps, in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.infer.autoguide as numpyro_guides
import optax
import pyro.infer.autoguide as pyro_guides
import pytest
import torch

import numpyro_ext.guides as numpyro_density
import numpyro_ext.score.objective as numpyro_objective
import numpyro_ext.score.regression as numpyro_regression
import pyro_ext.guides as pyro_density
import pyro_ext.score.objective as pyro_objective
import pyro_ext.score.regression as pyro_regression
from tests.models import numpyro_models, pyro_models

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

DIM, SAMPLES, RANK = 5, 3, 2
GUIDES = ["AutoDiagonalNormal", "AutoMultivariateNormal", "AutoLowRankMultivariateNormal"]


def make(name: str):
    """A guide of each host over the same five latents, and equal parameters for both."""
    options = {"rank": RANK} if "LowRank" in name else {}
    torch.manual_seed(0)
    theirs = pyro_density.flat_density(
        getattr(pyro_guides, name)(pyro_models.gaussian_five, **options)
    )
    ours = numpyro_density.flat_density(
        getattr(numpyro_guides, name)(numpyro_models.gaussian_five, **options), jax.random.key(0)
    )
    draws = np.random.default_rng(1)
    loc, scale = draws.normal(size=DIM), draws.normal(size=DIM)
    torch_parameters, jax_parameters = {"loc": loc, "scale_unconstrained": scale}, {"auto_loc": loc}
    if name == "AutoMultivariateNormal":
        lower = np.tril(draws.normal(size=(DIM, DIM)), -1)
        torch_parameters["scale_tril_unconstrained"] = lower
        jax_parameters["auto_scale_tril"] = np.concatenate([lower[np.tril_indices(DIM, -1)], scale])
    else:
        jax_parameters["auto_scale"] = scale
    if name == "AutoLowRankMultivariateNormal":
        factor = draws.normal(size=(DIM, RANK))
        torch_parameters["cov_factor"] = jax_parameters["auto_cov_factor"] = factor
    return (
        (theirs, {key: torch.tensor(value) for key, value in torch_parameters.items()}),
        (ours, {key: jnp.asarray(value) for key, value in jax_parameters.items()}),
    )


def assert_equal(theirs, ours) -> None:
    np.testing.assert_allclose(theirs.detach().numpy(), np.asarray(ours), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", GUIDES)
def test_densities_agree(name: str) -> None:
    (theirs, torch_parameters), (ours, jax_parameters) = make(name)
    theta = np.random.default_rng(2).normal(size=(SAMPLES, DIM))
    assert_equal(
        theirs.log_prob(torch_parameters, torch.tensor(theta)), ours.log_prob(jax_parameters, theta)
    )
    assert_equal(
        theirs.score(torch_parameters, torch.tensor(theta)), ours.score(jax_parameters, theta)
    )
    for a, b in zip(theirs.moments(torch_parameters), ours.moments(jax_parameters), strict=True):
        assert_equal(a, b)


@pytest.mark.parametrize("name", GUIDES)
def test_inner_steps_agree(name: str) -> None:
    """Several steps of Adam on one batch of draws and scores, moments of the guide compared."""
    (theirs, torch_parameters), (ours, jax_parameters) = make(name)
    draws = np.random.default_rng(3)
    theta, score = draws.normal(size=(2, SAMPLES, DIM))
    weight, rate = 0.3, 0.02
    torch_target = pyro_objective.blended_target(
        torch.tensor(score), theirs.score(torch_parameters, torch.tensor(theta)), weight
    )
    jax_target = numpyro_objective.blended_target(score, ours.score(jax_parameters, theta), weight)
    assert_equal(torch_target, jax_target)

    for parameter in torch_parameters.values():
        parameter.requires_grad_()
    optimizer = torch.optim.Adam(list(torch_parameters.values()), lr=rate)
    jax_optimizer = optax.adam(rate)
    state = jax_optimizer.init(jax_parameters)
    for _ in range(4):
        value, gradient = pyro_objective.proximal_gradient(
            theirs, torch_parameters, torch.tensor(theta), torch_target, weight
        )
        for key, parameter in torch_parameters.items():
            parameter.grad = gradient[key]
        optimizer.step()
        jax_value, jax_gradient = numpyro_objective.proximal_gradient(
            ours, jax_parameters, theta, jax_target, weight
        )
        updates, state = jax_optimizer.update(jax_gradient, state)
        jax_parameters = optax.apply_updates(jax_parameters, updates)
        assert_equal(value, jax_value)
    for a, b in zip(theirs.moments(torch_parameters), ours.moments(jax_parameters), strict=True):
        assert_equal(a, b)


@pytest.mark.parametrize("name", GUIDES)
def test_closed_forms_agree(name: str) -> None:
    """Twelve updates from the same scores, at the draws of a guide that stays where it was."""
    (theirs, torch_parameters), (ours, jax_parameters) = make(name)
    form = pyro_regression.CLOSED_FORMS[theirs.covariance_structure](theirs)
    jax_form = numpyro_regression.CLOSED_FORMS[ours.covariance_structure](ours)
    state, jax_state = form.initial(torch_parameters), jax_form.initial(jax_parameters)
    before = theirs.moments(torch_parameters)
    draws = np.random.default_rng(4)
    for _ in range(12):
        theta = draws.normal(size=(4, DIM))
        score = 0.5 - 2.0 * theta + 0.1 * draws.normal(size=(4, DIM))
        state, torch_parameters = form.update(
            state, torch_parameters, torch.tensor(theta), torch.tensor(score), 20
        )
        jax_state, jax_parameters = jax_form.update(jax_state, jax_parameters, theta, score, 20)
    after = theirs.moments(torch_parameters)
    for a, b in zip(after, ours.moments(jax_parameters), strict=True):
        assert_equal(a, b)
    assert not any(torch.allclose(a, b) for a, b in zip(before, after, strict=True))
