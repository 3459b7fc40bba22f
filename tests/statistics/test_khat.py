"""Pareto k-hat and smoothed weights of given ratios, against ArviZ and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ppl_ext.statistics.khat import LogRatios, ParetoKHat, pareto_khat, smoothed_weights
from ppl_ext.statistics.pareto import pareto_fit
from tests import arviz_support as support

# xarray and ArviZ use what NumPy has deprecated.
pytestmark = [pytest.mark.filterwarnings(rule) for rule in support.IGNORED]


@pytest.mark.parametrize("shape", [0.2, 0.5, 0.9, 1.5])
def test_khat_is_the_shape_of_the_tail(shape: float) -> None:
    """Ratios at the quantiles of a Pareto distribution, in any order and up to a factor."""
    survival = (np.arange(4000) + 0.5) / 4000
    ratios = np.random.default_rng(0).permutation(-shape * np.log(survival)) - 700.0
    # The fit to 190 or so ratios is weighed with a prior of ten at 0.5.
    assert abs(pareto_khat(LogRatios(ratios, 0.0)).khat - (190 * shape + 10 * 0.5) / 200) < 0.05


@pytest.mark.parametrize("number", [25, 100, 4000])
def test_khat_is_arviz_s(number: int) -> None:
    rng = np.random.default_rng(number)
    # ArviZ 1 counts the tail a little differently.
    tolerance = 1e-9 if support.MAJOR < 1 else 0.05
    for ratios in (
        rng.standard_t(3, number),
        3.0 * rng.normal(size=number) + 500.0,
        rng.exponential(0.8, number),
        -rng.exponential(2.0, number),
        np.round(2.0 * rng.normal(size=number), 1),
    ):
        found = pareto_khat(LogRatios(ratios, 0.0)).khat
        np.testing.assert_allclose(found, support.khat(ratios), atol=tolerance)
    # All weights but three underflow beside the largest.
    few = np.concatenate([[3.0, 2.0, 1.0, 0.0], rng.normal(size=number - 4) - 2000.0])
    assert pareto_khat(LogRatios(few, 0.0)).khat == math.inf
    assert not support.khat(few) < math.inf


@pytest.mark.parametrize("number", [60, 1000, 4000])
def test_smoothed_weights_are_quantiles_beyond_the_cutoff(number: int) -> None:
    """Those of the tail are a Pareto distribution's, begun at the largest weight that is not."""
    ratios = 0.7 * np.random.default_rng(number).standard_t(3, number)
    found = smoothed_weights(LogRatios(ratios, 0.0))
    weights = np.exp(ratios - ratios.max())
    tail = math.ceil(min(number / 5, 3 * math.sqrt(number)))
    order = np.argsort(weights)
    cutoff = weights[order[-tail - 1]]
    shape, scale = pareto_fit(weights[order[-tail:]] - cutoff)
    points = (np.arange(tail) + 0.5) / tail
    quantiles = stats.genpareto.ppf(points, shape, loc=cutoff, scale=scale)
    weights[order[-tail:]] = np.minimum(quantiles, 1.0)
    np.testing.assert_allclose(found, weights / weights.sum(), rtol=1e-9)
    if support.MAJOR < 1:  # ArviZ 1 counts the tail a little differently.
        import arviz

        theirs = np.exp(np.asarray(arviz.psislw(ratios)[0]))
        np.testing.assert_allclose(found, theirs / theirs.sum(), rtol=1e-9)


def test_khat_of_ratios_without_a_tail() -> None:
    ratios = np.random.default_rng(0).normal(size=1000)
    equal = np.concatenate([np.full(500, -40.0), np.zeros(500)])
    for values, rounding, expected in (
        (1e-9 * ratios, 1e-8, -math.inf),  # equal but for rounding
        (100.0 * ratios, 1e4, math.inf),  # rounding hides the tail
        (0.1 * ratios, 0.0, -math.inf),  # no weight is more than e times another
        (equal, 1e-12, -math.inf),  # the largest are equal
    ):
        assert pareto_khat(LogRatios(values, rounding)) == ParetoKHat(expected, 1000)


def test_threshold_and_message_follow_the_number_of_draws() -> None:
    assert ParetoKHat(0.6, 100).threshold == 0.5
    assert ParetoKHat(0.6, 4000).threshold == 0.7
    assert [ParetoKHat(0.6, number).reliable for number in (100, 4000)] == [False, True]
    assert "below 0.70" in ParetoKHat(0.6, 4000).message
    assert "too few draws" in ParetoKHat(0.6, 100).message
    assert "unreliable" in ParetoKHat(0.8, 4000).message
    assert "no finite mean" in ParetoKHat(math.inf, 4000).message
    assert not ParetoKHat(math.nan, 4000).reliable
