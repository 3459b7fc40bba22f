"""Conversion to ArviZ in both packages: the same groups and the same values."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch

import numpyro_ext.diagnostics
import pyro_ext.diagnostics
from numpyro_ext.density import LogDensity as NumPyroLogDensity
from pyro_ext.density import LogDensity as PyroLogDensity
from tests import arviz_support as support
from tests.models import numpyro_models, pyro_models, zoo

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

pytestmark = [pytest.mark.filterwarnings(rule) for rule in support.IGNORED]


class Fixed:
    """An engine whose draws are given."""

    def __init__(self, target: Any, draws: dict[str, Any]) -> None:
        self.target, self.draws = target, draws

    def get_samples(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return self.draws


@pytest.mark.parametrize(
    "name", ["eight_schools_noncentered", "nested_plates", "deterministic", "local_latents"]
)
def test_both_packages_give_the_same_groups(name: str) -> None:
    options = zoo.ZOO[name].options
    args = pyro_models.arguments(name)
    target = PyroLogDensity(pyro_models.build(name), args, options)
    z = torch.tensor(support.positions(target.dim, num=6))
    draws = target.constrain(z, target.bind(*args, **options))
    first = pyro_ext.diagnostics.to_arviz(Fixed(target, draws), *args, data_chunk=5, **options)

    other_args = numpyro_models.arguments(name)
    other = NumPyroLogDensity(numpyro_models.build(name), jax.random.key(0), other_args, options)
    engine = Fixed(other, {site: value.numpy() for site, value in draws.items()})
    second = numpyro_ext.diagnostics.to_arviz(engine, None, *other_args, data_chunk=5, **options)

    assert support.group_names(first) == support.group_names(second)
    for group in support.group_names(first):
        one, two = support.group(first, group), support.group(second, group)
        assert set(one.data_vars) == set(two.data_vars)
        for variable in one.data_vars:
            assert one[variable].dims == two[variable].dims
            if group != "posterior_predictive":
                np.testing.assert_allclose(
                    one[variable].values, two[variable].values, rtol=1e-9, atol=1e-9
                )
