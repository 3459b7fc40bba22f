"""The two packages move a matrix-normal guide alike, in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import numpyro_ext.score.regression as numpyro_regression
import pyro_ext.score.regression as pyro_regression
from tests.parity.test_guides import DIM, make

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize("total", [0, 14])
def test_closed_forms_agree(total: int) -> None:
    """Twelve updates from the same scores, each from the draws of the guide as it then is."""
    (theirs, torch_parameters), (ours, jax_parameters) = make("AutoMatrixNormal")
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
