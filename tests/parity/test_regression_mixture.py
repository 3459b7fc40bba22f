"""The two packages move a mixture alike, in float64."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch

import numpyro_ext.score.regression.mixture as numpyro_form
import pyro_ext.score.regression.mixture as pyro_form
from numpyro_ext.guides.mixture import Components as NumPyroComponents
from pyro_ext.guides.mixture import Components as PyroComponents
from tests import mixture_support as support

jax.config.update("jax_enable_x64", True)


TARGET = support.Mixture(np.zeros(1), np.ones((1, 4)), np.diag([0.5, 1.0, 2.0, 1.0])[None])


class Density:
    """A guide whose parameters are its components."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def components(self, parameters: Any) -> Any:
        return self._kind(**parameters)

    def set_components(self, parameters: Any, components: Any) -> Any:
        return components._asdict()


@pytest.mark.parametrize("total", [0, 240])
def test_updates_agree(total: int) -> None:
    """A run with restarts, search and match, each from the draws of the guide as it then is."""
    generator = np.random.default_rng(5)
    start = support.random_mixture(generator, 3, 4)._asdict()
    # Two components that are of no use yet.
    start["logits"] = np.array([0.0, -30.0, -30.0])
    # Stand-ins that have what the form asks of a guide's density, and are not one.
    densities: list[Any] = [Density(PyroComponents), Density(NumPyroComponents)]
    theirs: Any = pyro_form.MixtureForm(densities[0])
    ours: Any = numpyro_form.MixtureForm(densities[1])
    torch_parameters = {name: torch.tensor(value) for name, value in start.items()}
    jax_parameters = jax.tree.map(jax.numpy.asarray, start)
    state, jax_state = theirs.initial(torch_parameters), ours.initial(jax_parameters)
    update = jax.jit(ours.update)
    for _ in range(240):
        mixture = support.Mixture(**{k: v.numpy() for k, v in torch_parameters.items()})
        noise = generator.normal(size=(3, 4))
        apart = np.einsum("kij,kj->ki", mixture.scale_tril, noise)
        theta = np.concatenate([mixture.loc + apart, mixture.loc - apart])
        scores = support.score(TARGET, theta) + 0.1 * generator.normal(size=theta.shape)
        given = theta, scores, support.log_density(TARGET, theta)
        arrays = [torch.tensor(array) for array in given]
        state, torch_parameters = theirs.update(
            state, torch_parameters, *arrays[:2], total, arrays[2]
        )
        jax_state, jax_parameters = update(jax_state, jax_parameters, *given[:2], total, given[2])
    assert state.num_restarts == int(jax_state.num_restarts) >= 2
    for name, value in torch_parameters.items():
        np.testing.assert_allclose(value, jax_parameters[name], rtol=1e-7, atol=1e-9)
        assert not np.allclose(value, start[name])
