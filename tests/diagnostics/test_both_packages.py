"""Diagnostics in both packages: the same options, groups and values."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from tests import arviz_support as support
from tests.backends import PACKAGES, backend_of, from_zoo, use_float64
from tests.diagnostics.conftest import FixedEngine

use_float64()

pytestmark = [pytest.mark.filterwarnings(rule) for rule in support.IGNORED]
BACKENDS = [backend_of(package) for package in PACKAGES]


@pytest.mark.parametrize(
    "name", ["eight_schools_noncentered", "nested_plates", "deterministic", "local_latents"]
)
def test_both_packages_give_the_same_groups(name: str) -> None:
    found = []
    for backend in BACKENDS:
        model, args, options = from_zoo(backend, name)
        dim = backend.target(model, args, options)[0].dim
        engine = FixedEngine(backend, model, args, support.positions(dim, num=6), **options)
        found.append(engine.to_arviz(*args, data_chunk=5, **options))
    first, second = found
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
    found = []
    for backend in BACKENDS:
        model, args, options = from_zoo(backend, name)
        positions = support.positions(1, num=12)
        found.append(backend.public.ksd(positions, model=model, args=args, kwargs=options).value)
    np.testing.assert_allclose(*found, rtol=1e-9)


@pytest.mark.parametrize("name", ["nested_plates", "bnn"])
def test_predictions_agree(name: str) -> None:
    found = []
    for backend in BACKENDS:
        if name == "bnn":
            model, args, draws = network(backend)
        else:
            model, args, _ = from_zoo(backend, name)
            target, data = backend.target(model, args)
            z = backend.array(support.positions(target.dim, num=6))
            draws = target.constrain(z, data)
        found.append(backend.public.predictive_distribution(model, draws, *args))
    ours, theirs = found
    assert ours.attrs == theirs.attrs and set(ours) == set(theirs)
    for variable in ours:
        assert ours[variable].dims == theirs[variable].dims
        np.testing.assert_allclose(ours[variable], theirs[variable], rtol=1e-9, atol=1e-12)


def network(backend: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A hidden layer whose weights are two sites, its arguments, and draws."""
    host, dist = backend.host, backend.dist
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(7, 2)), np.array([0, 2, 1, 1, 0, 2, 2])
    draws = {"w": rng.normal(size=(5, 2, 4)), "v": rng.normal(size=(5, 4, 3))}

    def model(x: Any, y: Any = None) -> None:
        w = host.sample("w", dist.Normal(0.0, 1.0).expand([2, 4]).to_event(2))
        v = host.sample("v", dist.Normal(0.0, 1.0).expand([4, 3]).to_event(2))
        with host.plate("rows", len(x)):
            host.sample("y", dist.Categorical(logits=backend.xp.tanh(x @ w) @ v), obs=y)

    return model, backend.arrays((x, y)), backend.arrays(draws)


@pytest.mark.parametrize("name", ["elbo", "psis_khat", "ksd"])
def test_options_and_their_defaults_agree(name: str) -> None:
    """All but what the hosts' random numbers and states need."""
    one, two = (
        {
            option.name: option.default
            for option in inspect.signature(getattr(backend.public, name)).parameters.values()
            if option.name not in ("seed", "rng_key", "state")
        }
        for backend in BACKENDS
    )
    assert one == two
