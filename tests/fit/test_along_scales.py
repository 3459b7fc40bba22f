"""Mixtures along scales, on NumPy's problems whose scales have densities by quadrature."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from ppl_ext.chains.proposal import Proposal, drawn_from
from ppl_ext.fit.ladder.along_scales import (
    DEPTH,
    MOST_PARAMETERS,
    PLACES,
    SHARE,
    along_scales,
    has_grid,
)
from ppl_ext.start.find import find
from ppl_ext.start.start import Mode
from ppl_ext.statistics.effective import weighted_number
from ppl_ext.statistics.khat import LogRatios, pareto_khat

#: Of the groups: measurements, their errors, the deviation of their mean's prior, and that of the
#: log scale's.
Y, ERRORS = np.array([1.3, -0.2, 0.4, 2.0, 0.9]), np.array([0.05, 0.2, 1.0, 3.0, 0.1])
WIDE, LOG_WIDE = 2.0, 1.5
LOGS = np.linspace(-9.0, 6.0, 601)
EPSILON = 1e-16


def groups(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log density of u, m and standardised effects with mean m and scale e^u, measured once.

    Effects given m and u are standard Normal once standardised, so that what is left is the density
    of u and m: rows with variances that u makes.
    """
    u, m, effects = z[:, 0], z[:, 1], z[:, 2:]
    variances = ERRORS**2 + np.exp(2.0 * u)[:, None]
    off = Y - m[:, None]
    values = norm.logpdf(Y, m[:, None], np.sqrt(variances)).sum(1)
    values = values + norm.logpdf(m, 0.0, WIDE) + norm.logpdf(u, 0.0, LOG_WIDE)
    values = values + norm.logpdf(effects).sum(1)
    of_u = (np.exp(2.0 * u)[:, None] * (off**2 / variances - 1.0) / variances).sum(1)
    of_m = (off / variances).sum(1) - m / WIDE**2
    scores = np.column_stack([of_u - u / LOG_WIDE**2, of_m, -effects])
    return values, scores


@functools.cache
def shares_of_u() -> tuple[np.ndarray, float]:
    """Distribution function of u at ``LOGS``, and the log evidence, by quadrature."""
    terms = np.array(
        [
            multivariate_normal.logpdf(Y, cov=WIDE**2 + np.diag(ERRORS**2 + math.exp(2.0 * u)))
            + norm.logpdf(u, 0.0, LOG_WIDE)
            for u in LOGS
        ]
    )
    shares = np.cumsum(np.exp(terms - terms.max()))
    return shares / shares[-1], float(logsumexp(terms) + math.log(LOGS[1] - LOGS[0]))


def start_of(density: Any, dim: int, scale: float = 0.1) -> Mode:
    generator = np.random.default_rng(0)

    def points(number: int) -> np.ndarray:
        return scale * generator.normal(size=(number, dim))

    return find(density, points, generator, EPSILON).modes[0]


def weighted(proposal: Proposal, density: Any, number: int = 4_000) -> tuple[Any, np.ndarray, Any]:
    drawn, ratios = drawn_from(proposal, number, density, np.random.default_rng(1))
    weights = np.exp(ratios - logsumexp(ratios))
    return drawn.positions, weights, ratios


def test_the_scores_of_the_groups_are_the_slopes() -> None:
    z = np.random.default_rng(0).normal(size=(5, 2 + len(Y)))
    for move in 1e-5 * np.eye(z.shape[1]):
        slope = (groups(z + move)[0] - groups(z - move)[0]) / 2e-5
        np.testing.assert_allclose(slope, groups(z)[1] @ (move / 1e-5), rtol=1e-5, atol=1e-6)


def test_a_mixture_along_a_scale_has_all_of_it_and_its_low_tail() -> None:
    """Given the scale all else is Normal here: what is left of weights is the grid's."""
    dim = 2 + len(Y)
    mode = start_of(groups, dim)
    counts: list[int] = []

    def counted(z: np.ndarray) -> Any:
        counts.append(len(z))
        return groups(z)

    found = along_scales(counted, mode, [0], EPSILON)
    assert found is not None
    proposal, metric = found
    # Two evaluations at a place for each coordinate beside the scale, one there and one after.
    assert sum(counts) == len(proposal.modes) * (2 * (dim - 1) + 2)
    positions, weights, ratios = weighted(proposal, groups)
    assert weighted_number(weights) > 0.8 * len(weights)
    assert pareto_khat(LogRatios(ratios, 0.0)).khat < 0.3
    # The weights' mean is the evidence: the log density is normalised over all but the data.
    shares, evidence = shares_of_u()
    assert logsumexp(ratios) - math.log(len(ratios)) == pytest.approx(evidence, abs=0.03)
    below = np.interp(positions[:, 0], LOGS, shares)
    for share in (0.01, 0.05, 0.5, 0.95):
        error = 4.0 * math.sqrt(share * (1.0 - share) / (0.8 * len(weights)))
        assert weights @ (below < share) == pytest.approx(share, abs=error)
    # The metric is a root of the mixture's covariance, and the grid ends where little is left.
    center = weights @ positions
    covariance = (weights[:, None] * (positions - center)).T @ (positions - center)
    spread = np.sqrt(np.diag(metric @ metric.T) / np.diag(covariance))
    assert (0.9 < spread).all() and (spread < 1.4).all()
    ends = [min(one.mean[0] for one in proposal.modes), max(one.mean[0] for one in proposal.modes)]
    below = np.interp(ends, LOGS, shares)
    assert below[0] < math.exp(-DEPTH) and 1.0 - below[1] < math.exp(-DEPTH)


def test_a_slow_tail_has_as_much_of_the_mixture_as_of_the_density() -> None:
    """u is the log of an exponential, with a density that falls as e^u on the left."""

    def slow(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u, x = z[:, 0], z[:, 1]
        return u - np.exp(u) - 0.5 * x**2, np.column_stack([1.0 - np.exp(u), -x])

    found = along_scales(slow, Mode(np.zeros(2), np.eye(2), 0.0, 0.0), [0], EPSILON)
    assert found is not None
    places, spreads = np.array([(one.mean[0], one.deviations[0]) for one in found[0].modes]).T
    # Places are in deviations of the Normal, and components wide beside their distance.
    assert set(PLACES[:3]) <= set(np.round(places, 9))
    assert spreads[places.argmin()] > spreads[0] == pytest.approx(SHARE * PLACES[1])
    for share in (1e-3, 1e-2, 1e-1):
        ends = math.log(-math.log1p(-share))
        own = found[0].weights @ norm.cdf((ends - places) / spreads)
        assert share < own < 3.0 * share, (share, own)


def test_means_of_others_follow_the_scale_within_each_component() -> None:
    """x ~ Normal(u^2 / 2, 0.1) beside u: a component that stood still would be far too wide."""

    def curved(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u, off = z[:, 0], (z[:, 1] - 0.5 * z[:, 0] ** 2) / 0.01
        values = -0.5 * u**2 - 0.005 * off**2
        return values, np.column_stack([-u + off * u, -off])

    found = along_scales(curved, Mode(np.zeros(2), np.diag([1.0, 0.1]), 0.0, 0.0), [0], EPSILON)
    assert found is not None
    for one in found[0].modes:
        # From the slope of a parabola, and its width, whatever the place.
        assert one.mean[1] == pytest.approx(0.5 * one.mean[0] ** 2, abs=1e-6)
        covariance = one.root @ one.root.T
        slope = covariance[1, 0] / covariance[0, 0]
        assert slope == pytest.approx(one.mean[0], abs=1e-6)
        assert covariance[1, 1] - slope * covariance[1, 0] == pytest.approx(0.01, rel=1e-6)


def test_components_lie_where_the_others_are_highest() -> None:
    """x^4 beside a pull that grows with u: one Newton step does not end there."""

    def bent(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u, x = z[:, 0], z[:, 1]
        pull = np.exp(1.5 * u)
        values = -0.5 * u**2 - 0.25 * x**4 - 0.05 * x**2 + pull * x - 0.75 * pull ** (4.0 / 3.0)
        of_u = -u + 1.5 * (pull * x - pull ** (4.0 / 3.0))
        return values, np.column_stack([of_u, -(x**3) - 0.1 * x + pull])

    found = along_scales(bent, Mode(np.array([0.0, 3.0]), np.eye(2), 0.0, 0.0), [0], EPSILON)
    assert found is not None
    means = np.stack([one.mean for one in found[0].modes])
    widths = 1.0 / np.sqrt(3.0 * means[:, 1] ** 2 + 0.1)
    left = np.abs(bent(means)[1][:, 1]) * widths
    assert left.max() < 0.35, left


def test_two_scales_have_a_grid_of_both() -> None:
    """Two sets of groups side by side: their densities are products."""

    def both(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        one, two = groups(z[:, own]), groups(z[:, ~own])
        scores = np.empty_like(z)
        scores[:, own], scores[:, ~own] = one[1], two[1]
        return one[0] + two[0], scores

    dim = 2 * (2 + len(Y))
    own = np.arange(dim) % 2 == 0
    mode = start_of(both, dim)
    found = along_scales(both, mode, [0, 1], EPSILON)
    assert found is not None
    positions, weights, _ = weighted(found[0], both)
    assert weighted_number(weights) > 0.3 * len(weights)
    shares, _ = shares_of_u()
    for scale in (0, 1):
        below = np.interp(positions[:, scale], LOGS, shares)
        assert weights @ (below < 0.05) == pytest.approx(0.05, abs=0.03)


def test_there_is_no_grid_where_it_would_lack_something() -> None:
    def flat(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The scale's density never falls."""
        return -0.5 * z[:, 1] ** 2, np.column_stack([np.zeros(len(z)), -z[:, 1]])

    def parted(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The other has two modes where the scale is above 2."""
        u, x = z[:, 0], z[:, 1]
        curvature = 1.0 - 0.5 * u
        values = -0.5 * u**2 - 0.5 * curvature * x**2 - 0.01 * x**4
        return values, np.column_stack([-u + 0.25 * x**2, -curvature * x - 0.04 * x**3])

    mode = Mode(np.zeros(2), np.eye(2), 0.0, 0.0)
    assert along_scales(flat, mode, [0], EPSILON) is None
    assert along_scales(parted, mode, [0], EPSILON) is None
    assert along_scales(groups, mode, [], EPSILON) is None
    assert has_grid(1, MOST_PARAMETERS[1]) and not has_grid(1, MOST_PARAMETERS[1] + 1)
    assert not has_grid(3, 10) and not has_grid(2, 2)
