"""ELBO, k-hat and KSD in both packages: the same values from the same draws."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import numpy as np
import pytest
import torch

import numpyro_ext.diagnostics.fit as numpyro_fit
import numpyro_ext.diagnostics.importance as numpyro_importance
import numpyro_ext.diagnostics.stein_discrepancy as numpyro_discrepancy
import pyro_ext.diagnostics.fit as pyro_fit
import pyro_ext.diagnostics.importance as pyro_importance
import pyro_ext.diagnostics.stein_discrepancy as pyro_discrepancy
from tests import arviz_support as support
from tests.models import numpyro_models, pyro_models, zoo

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

pytestmark = [pytest.mark.filterwarnings(rule) for rule in support.IGNORED]


@pytest.mark.parametrize("statistic", ["U", "V"])
@pytest.mark.parametrize("metric", [None, "whitened", "given"])
def test_discrepancies_of_given_scores_agree(statistic: str, metric: Any) -> None:
    draws = np.random.default_rng(0)
    positions, scores = 3.0 + draws.normal(size=(2, 30, 4))
    options = {"statistic": statistic, "scale": 0.8, "block": 16}
    options["metric"] = np.array([0.5, 1.0, 2.0, 4.0]) if metric == "given" else metric
    theirs = pyro_discrepancy.stein_discrepancy(
        torch.tensor(positions), torch.tensor(scores), **options
    )
    ours = numpyro_discrepancy.stein_discrepancy(positions, scores, **options)
    np.testing.assert_allclose(theirs[:2], ours[:2], rtol=1e-11)
    assert theirs[2:] == ours[2:]


@pytest.mark.parametrize("name", ["gamma_poisson", "conjugate_normal_subsampled"])
def test_discrepancies_of_positions_agree(name: str) -> None:
    positions = support.positions(1, num=12)
    options = zoo.ZOO[name].options
    theirs = pyro_discrepancy.ksd(
        positions,
        model=pyro_models.build(name),
        args=pyro_models.arguments(name),
        kwargs=options,
    )
    ours = numpyro_discrepancy.ksd(
        positions,
        model=numpyro_models.build(name),
        args=numpyro_models.arguments(name),
        kwargs=options,
    )
    np.testing.assert_allclose(theirs.value, ours.value, rtol=1e-9)


def test_tails_of_given_ratios_agree() -> None:
    ratios = np.random.default_rng(1).standard_t(4, size=1000)
    found = pyro_importance._pareto_shape(ratios, 0.0)
    assert found == numpyro_importance._pareto_shape(ratios, 0.0)
    assert np.isfinite(found)


def test_messages_and_chunks_agree() -> None:
    for khat in (-0.1, 0.6, 0.8, 2.0):
        theirs = pyro_importance.ParetoKHat(khat, 300)
        ours = numpyro_importance.ParetoKHat(khat, 300)
        assert theirs == ours and theirs.message == ours.message
        assert theirs.threshold == ours.threshold and theirs.reliable == ours.reliable
    for arguments in ((1000, 3, None), (1000, 10**6, None), (10, 3, 4)):
        assert pyro_fit.chunk_sizes(*arguments) == numpyro_fit.chunk_sizes(*arguments)


def test_options_and_their_defaults_agree() -> None:
    """All but what the hosts' random numbers and states need."""
    for theirs, ours in (
        (pyro_importance.elbo, numpyro_importance.elbo),
        (pyro_importance.psis_khat, numpyro_importance.psis_khat),
        (pyro_discrepancy.ksd, numpyro_discrepancy.ksd),
        (pyro_discrepancy.stein_discrepancy, numpyro_discrepancy.stein_discrepancy),
    ):
        one, two = (
            {name: parameter.default for name, parameter in inspect.signature(f).parameters.items()}
            for f in (theirs, ours)
        )
        one.pop("seed", None)
        two.pop("rng_key", None)
        two.pop("state", None)
        assert one == two
