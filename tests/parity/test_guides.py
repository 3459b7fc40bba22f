"""The two packages' own guides have the same densities and residuals, in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as numpyro_dist
import pyro
import pyro.distributions as pyro_dist
import pytest
import torch

import numpyro_ext.guides as numpyro_guides
import numpyro_ext.guides.matrix_normal as numpyro_matrix
import numpyro_ext.guides.planar_flow as numpyro_planar
import pyro_ext.guides as pyro_guides
import pyro_ext.guides.matrix_normal as pyro_matrix
import pyro_ext.guides.planar_flow as pyro_planar

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

ROWS, COLUMNS, REST, FLOWS, RANK, SAMPLES = 3, 2, 4, 3, 2, 3
DIM = ROWS * COLUMNS + REST


def pyro_model() -> None:
    pyro.sample("z", pyro_dist.Normal(torch.zeros(REST), 1.0).to_event(1))
    pyro.sample("w", pyro_dist.Normal(torch.zeros(ROWS, COLUMNS), 1.0).to_event(2))


def numpyro_model() -> None:
    numpyro.sample("z", numpyro_dist.Normal(jnp.zeros(REST), 1.0).to_event(1))
    numpyro.sample("w", numpyro_dist.Normal(jnp.zeros((ROWS, COLUMNS)), 1.0).to_event(2))


def matrix_parameters():
    """Equal parameters; NumPyro packs a triangular factor into one vector."""
    draws = np.random.default_rng(0)
    ours = {"auto_loc": draws.normal(size=DIM), "auto_scale": draws.normal(size=REST)}
    theirs = {"loc": ours["auto_loc"], "scale_unconstrained": ours["auto_scale"]}
    for side, length in (("row", ROWS), ("column", COLUMNS)):
        lower = np.tril(draws.normal(size=(length, length)), -1)
        scale = draws.normal(size=length)
        theirs[f"{side}_tril.w_unconstrained"] = lower
        theirs[f"{side}_scale.w_unconstrained"] = scale
        packed = np.concatenate([lower[np.tril_indices(length, -1)], scale])
        ours[f"auto_w_{side}_tril"] = packed
    return theirs, ours


def planar_parameters():
    draws = np.random.default_rng(1)
    shapes = {
        "loc": (DIM,),
        "scale": (DIM,),
        "weight": (FLOWS, DIM),
        "direction": (FLOWS, DIM),
        "bias": (FLOWS,),
    }
    values = {name: draws.normal(size=shape) for name, shape in shapes.items()}
    theirs = {("scale_unconstrained" if k == "scale" else k): v for k, v in values.items()}
    return theirs, {f"auto_{name}": value for name, value in values.items()}


def layer_parameters():
    draws = np.random.default_rng(4)
    shapes = {"loc": (DIM,), "scale": (DIM,), "cov_factor": (DIM, RANK)}
    values = {name: draws.normal(size=shape) for name, shape in shapes.items()}
    theirs = {("scale_unconstrained" if k == "scale" else k): v for k, v in values.items()}
    return theirs, {f"auto_{name}": value for name, value in values.items()}


CASES = {
    "AutoLayerLowRankNormal": (layer_parameters, {"rank": RANK}),
    "AutoMatrixNormal": (matrix_parameters, {}),
    "AutoPlanarFlow": (planar_parameters, {"num_flows": FLOWS}),
}


def make(name: str):
    """A guide of each package over the same latents, and equal parameters for both."""
    parameters, options = CASES[name]
    theirs = pyro_guides.flat_density(getattr(pyro_guides, name)(pyro_model, **options))
    guide = getattr(numpyro_guides, name)(numpyro_model, **options)
    ours = numpyro_guides.flat_density(guide, jax.random.key(0))
    torch_parameters, jax_parameters = parameters()
    assert theirs.initial_parameters().keys() == torch_parameters.keys()
    assert ours.initial_parameters().keys() == jax_parameters.keys()
    return (
        (theirs, {key: torch.tensor(value) for key, value in torch_parameters.items()}),
        (ours, {key: jnp.asarray(value) for key, value in jax_parameters.items()}),
    )


def assert_equal(theirs, ours) -> None:
    np.testing.assert_allclose(np.asarray(theirs), np.asarray(ours), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", CASES)
def test_densities_agree(name: str) -> None:
    (theirs, torch_parameters), (ours, jax_parameters) = make(name)
    theta = np.random.default_rng(2).normal(size=(SAMPLES, DIM))
    for method in ("log_prob", "score"):
        assert_equal(
            getattr(theirs, method)(torch_parameters, torch.tensor(theta)),
            jax.jit(getattr(ours, method))(jax_parameters, theta),
        )


@pytest.mark.parametrize("name", CASES)
def test_residuals_and_their_gradients_agree(name: str) -> None:
    (theirs, torch_parameters), (ours, jax_parameters) = make(name)
    theta, target = np.random.default_rng(3).normal(size=(2, SAMPLES, DIM))
    value, gradient = theirs.mean_square_residual(
        torch_parameters, torch.tensor(theta), torch.tensor(target)
    )
    jax_value, jax_gradient = jax.jit(ours.mean_square_residual)(jax_parameters, theta, target)
    assert_equal(value, jax_value)
    if name == "AutoMatrixNormal":
        for side, length in (("row", ROWS), ("column", COLUMNS)):
            lower = gradient.pop(f"{side}_tril.w_unconstrained")[np.tril_indices(length, -1)]
            scale = gradient.pop(f"{side}_scale.w_unconstrained")
            assert_equal(torch.cat([lower, scale]), jax_gradient.pop(f"auto_w_{side}_tril"))
    assert len(gradient) == len(jax_gradient)
    for key, entry in gradient.items():
        assert_equal(entry, jax_gradient[f"auto_{key.removesuffix('_unconstrained')}"])


def test_matrix_factors_and_moments_agree() -> None:
    (theirs, torch_parameters), (ours, jax_parameters) = make("AutoMatrixNormal")
    blocks, jax_blocks = theirs.blocks(), ours.blocks()
    assert tuple(map(tuple, blocks.matrices)) == tuple(map(tuple, jax_blocks.matrices))
    assert blocks.rest == jax_blocks.rest
    factors, jax_factors = theirs.factors(torch_parameters), ours.factors(jax_parameters)
    for found, expected in [
        (factors, jax_factors),
        (
            theirs.factors(theirs.set_factors(torch_parameters, factors)),
            ours.factors(ours.set_factors(jax_parameters, jax_factors)),
        ),
    ]:
        assert_equal(found.mean, expected.mean)
        assert_equal(found.scale, expected.scale)
        for a, b in zip(found.matrices["w"], expected.matrices["w"], strict=True):
            assert_equal(a, b)
    for a, b in zip(theirs.moments(torch_parameters), ours.moments(jax_parameters), strict=True):
        assert_equal(a, b)


def test_division_into_blocks_agrees() -> None:
    shapes = {"a": (), "b": (2, 1, 3), "c": (4, 1), "d": (2, 3, 4), "e": (5,), "f": (1, 2)}
    found, expected = pyro_matrix.find_blocks(shapes), numpyro_matrix.find_blocks(shapes)
    assert found.num_rest == expected.num_rest == 1 + 4 + 5 + 2
    assert tuple(map(tuple, found.matrices)) == tuple(map(tuple, expected.matrices))
    assert found.rest == expected.rest


def test_roots_agree() -> None:
    shifted = np.linspace(-20, 20, 101)
    for slope in (1e-4, 0.3, 1.0, 5.0, 100.0):
        found = pyro_planar.solve_planar(torch.tensor(shifted), torch.tensor(slope))
        expected = jax.jit(numpyro_planar.solve_planar)(shifted, slope)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_defaults_agree() -> None:
    for name in ("SHIFT", "INITIAL_DIRECTION", "MAX_STEPS"):
        assert getattr(pyro_planar, name) == getattr(numpyro_planar, name)
