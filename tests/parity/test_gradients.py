"""The estimators give the same scores in both packages, from the same rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import numpyro_ext.gradients
import pyro_ext.gradients
from numpyro_ext.density import LogDensity as NumPyroLogDensity
from pyro_ext.density import LogDensity as PyroLogDensity
from tests.models import numpyro_models, pyro_models

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

Y = np.linspace(-1.0, 3.0, 10)
ESTIMATORS = {
    "Minibatch": {"sampling": "cyclic"},
    "SVRG": {"anchor_every": 3, "sampling": "cyclic"},
    "SAGA": {"sampling": "cyclic"},
}


@pytest.mark.parametrize(("name", "options"), ESTIMATORS.items())
def test_the_same_rows_give_the_same_scores(name: str, options: dict[str, Any]) -> None:
    ours = getattr(pyro_ext.gradients, name)(**options)
    theirs = getattr(numpyro_ext.gradients, name)(**options)
    tensor, array = torch.tensor(Y), jnp.asarray(Y)
    target = PyroLogDensity(
        pyro_models.conjugate_normal_subsampled, (tensor, 4), likelihood_temperature=0.5
    )
    jax_target = NumPyroLogDensity(
        numpyro_models.conjugate_normal_subsampled,
        jax.random.key(0),
        (array, 4),
        likelihood_temperature=0.5,
    )
    generator = torch.Generator()
    data, jax_data = target.bind(tensor, 4), jax_target.bind(array, 4)
    state = ours.init(target, data, generator)
    jax_state = theirs.init(jax_target, jax_data, jax.random.key(1), 3)
    draws = np.random.default_rng(0)
    for _ in range(7):
        z = draws.normal(size=(3, target.dim))
        found, state = ours.estimate(target, state, torch.tensor(z), data, generator)
        expected, jax_state = theirs.estimate(jax_target, jax_state, jnp.asarray(z), jax_data)
        for one, other in zip(found[:3], expected[:3], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
