"""Diagnostics in both packages: the same options, groups and values."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import numpy as np
import pytest
import torch

import numpyro_ext
import numpyro_ext.diagnostics
import pyro_ext
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


@pytest.mark.parametrize("name", ["gamma_poisson", "conjugate_normal_subsampled"])
def test_discrepancies_of_positions_agree(name: str) -> None:
    positions, options = support.positions(1, num=12), zoo.ZOO[name].options
    one, two = (
        package.ksd(
            positions, model=models.build(name), args=models.arguments(name), kwargs=options
        )
        for package, models in ((pyro_ext, pyro_models), (numpyro_ext, numpyro_models))
    )
    np.testing.assert_allclose(one.value, two.value, rtol=1e-9)


@pytest.mark.parametrize("name", ["elbo", "psis_khat", "ksd"])
def test_options_and_their_defaults_agree(name: str) -> None:
    """All but what the hosts' random numbers and states need."""
    one, two = (
        {
            option.name: option.default
            for option in inspect.signature(getattr(package, name)).parameters.values()
            if option.name not in ("seed", "rng_key", "state")
        }
        for package in (pyro_ext, numpyro_ext)
    )
    assert one == two
