"""The two packages move a matrix-normal guide alike, in float64."""

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
import numpyro_ext.score.regression as numpyro_regression
import pyro_ext.guides as pyro_guides
import pyro_ext.score.regression as pyro_regression

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

ROWS, COLUMNS, REST = 3, 2, 4
DIM = ROWS * COLUMNS + REST


def pyro_model() -> None:
    pyro.sample("z", pyro_dist.Normal(torch.zeros(REST), 1.0).to_event(1))
    pyro.sample("w", pyro_dist.Normal(torch.zeros(ROWS, COLUMNS), 1.0).to_event(2))


def numpyro_model() -> None:
    numpyro.sample("z", numpyro_dist.Normal(jnp.zeros(REST), 1.0).to_event(1))
    numpyro.sample("w", numpyro_dist.Normal(jnp.zeros((ROWS, COLUMNS)), 1.0).to_event(2))


def make():
    """A guide of each package over the same latents, and equal parameters for both.

    NumPyro packs a triangular factor into one vector.
    """
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
    torch_density = pyro_guides.flat_density(pyro_guides.AutoMatrixNormal(pyro_model))
    guide = numpyro_guides.AutoMatrixNormal(numpyro_model)
    jax_density = numpyro_guides.flat_density(guide, jax.random.key(0))
    return (
        (torch_density, {name: torch.tensor(value) for name, value in theirs.items()}),
        (jax_density, {name: jnp.asarray(value) for name, value in ours.items()}),
    )


@pytest.mark.parametrize("total", [0, 14])
def test_closed_forms_agree(total: int) -> None:
    """Twelve updates from the same scores, each from the draws of the guide as it then is."""
    (theirs, torch_parameters), (ours, jax_parameters) = make()
    form = pyro_regression.CLOSED_FORMS["matrix_normal"](theirs)
    jax_form = numpyro_regression.CLOSED_FORMS["matrix_normal"](ours)
    state, jax_state = form.initial(torch_parameters), jax_form.initial(jax_parameters)
    update = jax.jit(jax_form.update)
    before = theirs.moments(torch_parameters)
    generator = np.random.default_rng(4)
    for _ in range(12):
        mean, root = (value.numpy() for value in theirs.moments(torch_parameters))
        draws = generator.normal(size=(2, DIM)) @ root.T
        theta = mean + np.concatenate([draws, -draws])
        score = 0.5 - 2.0 * theta + 0.1 * generator.normal(size=(4, DIM))
        state, torch_parameters = form.update(
            state, torch_parameters, torch.tensor(theta), torch.tensor(score), total
        )
        jax_state, jax_parameters = update(
            jax_state, jax_parameters, jnp.asarray(theta), jnp.asarray(score), total
        )
    after = theirs.moments(torch_parameters)
    for a, b in zip(after, ours.moments(jax_parameters), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    assert not any(torch.allclose(a, b) for a, b in zip(before, after, strict=True))
