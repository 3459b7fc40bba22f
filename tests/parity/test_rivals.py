"""The two packages take the same steps of GSM, BaM and FisherVI, in float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.infer.autoguide as numpyro_guides
import pyro.infer.autoguide as pyro_guides
import pytest
import torch

import numpyro_ext.density as numpyro_target
import numpyro_ext.guides as numpyro_density
import numpyro_ext.score.bam as numpyro_bam
import numpyro_ext.score.fisher as numpyro_fisher
import numpyro_ext.score.gsm as numpyro_gsm
import pyro_ext.density as pyro_target
import pyro_ext.guides as pyro_density
import pyro_ext.score.bam as pyro_bam
import pyro_ext.score.fisher as pyro_fisher
import pyro_ext.score.gsm as pyro_gsm
from ppl_ext.fisher import NORMS
from tests.models import numpyro_models, pyro_models, zoo

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)


def assert_equal(theirs: Any, ours: Any) -> None:
    np.testing.assert_allclose(theirs.detach().numpy(), np.asarray(ours), rtol=1e-9, atol=1e-11)


def draws_and_scores(dim: int, number: int) -> tuple[np.ndarray, ...]:
    draws = np.random.default_rng([dim, number])
    root = draws.normal(size=(dim, dim))
    scale = np.linalg.cholesky(root @ root.T + 0.1 * np.eye(dim))
    mean = draws.normal(size=dim)
    theta = mean + draws.normal(size=(number, dim)) @ scale.T
    return mean, scale, theta, 2.0 * draws.normal(size=(number, dim))


@pytest.mark.parametrize(("dim", "number"), [(1, 1), (5, 2), (3, 8)])
def test_matching_updates_agree(dim: int, number: int) -> None:
    arrays = draws_and_scores(dim, number)
    mean, scale, theta, score = (torch.tensor(array) for array in arrays)
    theirs = pyro_density.Moments(mean, scale)
    mean, scale, ours_theta, ours_score = (jnp.asarray(array) for array in arrays)
    ours = numpyro_density.Moments(mean, scale)
    for found, expected in [
        (
            pyro_gsm.gsm_update(theirs, theta, score),
            numpyro_gsm.gsm_update(ours, ours_theta, ours_score),
        ),
        (
            pyro_bam.bam_update(theirs, theta, score, 7.5),
            numpyro_bam.bam_update(ours, ours_theta, ours_score, 7.5),
        ),
    ]:
        for a, b in zip(found, expected, strict=True):
            assert_equal(a, b)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["logistic_regression", "dependent_uniform"])
def test_fisher_gradients_agree(name: str, norm: str) -> None:
    """On the same noise; the gradients in the mean and in the scale have the same coordinates."""
    assert zoo.ZOO[name].same_transform
    options = zoo.ZOO[name].options
    torch_arguments, jax_arguments = pyro_models.arguments(name), numpyro_models.arguments(name)
    theirs = pyro_target.LogDensity(pyro_models.build(name), torch_arguments, options)
    twice = pyro_fisher.DifferentiableTarget(theirs)
    torch_data = theirs.bind(*torch_arguments, **options)
    key = jax.random.key(0)
    ours = numpyro_target.LogDensity(numpyro_models.build(name), key, jax_arguments, options)
    jax_data = ours.bind(*jax_arguments, **options)
    their_density = pyro_density.flat_density(
        pyro_guides.AutoDiagonalNormal(pyro_models.build(name)), torch_arguments, options, seed=0
    )
    our_density = numpyro_density.flat_density(
        numpyro_guides.AutoDiagonalNormal(numpyro_models.build(name)), key, jax_arguments, options
    )
    draws = np.random.default_rng(3)
    loc, scale = 0.3 * draws.normal(size=(2, theirs.dim))
    noise = draws.normal(size=(2, theirs.dim))

    def torch_draw(parameters: Any) -> Any:
        mean, deviation = their_density.moments(parameters)
        return mean + torch.tensor(noise) * deviation

    def jax_draw(parameters: Any) -> Any:
        mean, deviation = our_density.moments(parameters)
        return mean + noise * deviation

    value, gradient, _ = pyro_fisher.fisher_gradient(
        their_density,
        {"loc": torch.tensor(loc), "scale_unconstrained": torch.tensor(scale)},
        torch_draw,
        lambda theta: (twice.full_score(theta, torch_data).score, None),
        norm,
    )

    @jax.jit
    def jax_gradient(parameters: Any) -> Any:
        return numpyro_fisher.fisher_gradient(
            our_density,
            parameters,
            jax_draw,
            lambda theta: (ours.full_score(theta, jax_data).score, None),
            norm,
        )

    expected, expected_gradient, _ = jax_gradient(
        {"auto_loc": jnp.asarray(loc), "auto_scale": jnp.asarray(scale)}
    )
    assert_equal(value, expected)
    assert_equal(gradient["loc"], expected_gradient["auto_loc"])
    assert_equal(gradient["scale_unconstrained"], expected_gradient["auto_scale"])
