"""Normals given hyperparameters, on NumPy's problems whose densities quadrature tells."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from ppl_ext.chains.given import Given, row_of
from ppl_ext.chains.proposal import Proposal, drawn_from
from ppl_ext.fit.ladder.given_hyperparameters import (
    _density,
    _lost,
    _Seen,
    given_hyperparameters,
    has_room,
    places_of,
)
from ppl_ext.fit.ladder.hyperparameters import hyperparameters
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


def found_of(density: Any, mode: Mode, which: list[int]) -> tuple[Proposal, np.ndarray] | None:
    return given_hyperparameters(density, mode, which, EPSILON, np.random.default_rng(2))


def test_draws_have_all_of_a_scale_and_its_low_tail() -> None:
    """Given the scale all else is Normal here: what is left of weights is what is interpolated."""
    dim = 2 + len(Y)
    mode = start_of(groups, dim)
    counts: list[int] = []

    def counted(z: np.ndarray) -> Any:
        counts.append(len(z))
        return groups(z)

    found = found_of(counted, mode, [0])
    assert found is not None
    proposal, metric = found
    assert proposal.given is not None
    # One round of four places beside the first three is enough: others are standard Normal.
    assert len(proposal.given.places) == 7
    # Two evaluations at a place for each coordinate beside the scale, one there and one after.
    # Beside it the density is looked at once, six points at a time.
    assert sum(counts) == 7 * (2 * (dim - 1) + 2) + 48
    positions, weights, ratios = weighted(proposal, groups)
    assert weighted_number(weights) > 0.75 * len(weights)
    assert pareto_khat(LogRatios(ratios, 0.0)).khat < 0.5
    # The weights' mean is the evidence: the log density is normalised over all but the data.
    shares, evidence = shares_of_u()
    assert logsumexp(ratios) - math.log(len(ratios)) == pytest.approx(evidence, abs=0.03)
    below = np.interp(positions[:, 0], LOGS, shares)
    for share in (0.01, 0.05, 0.5, 0.95):
        error = 4.0 * math.sqrt(share * (1.0 - share) / (0.75 * len(weights)))
        assert weights @ (below < share) == pytest.approx(share, abs=error)
    # The metric is a root of the covariance of the draws that weights leave.
    center = weights @ positions
    covariance = (weights[:, None] * (positions - center)).T @ (positions - center)
    spread = np.sqrt(np.diag(metric @ metric.T) / np.diag(covariance))
    assert (0.8 < spread).all() and (spread < 1.25).all()


def test_a_slow_tail_has_as_many_draws_as_the_density() -> None:
    """u is the log of an exponential, with a density that falls as e^u on the left."""

    def slow(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u, x = z[:, 0], z[:, 1]
        return u - np.exp(u) - 0.5 * x**2, np.column_stack([1.0 - np.exp(u), -x])

    found = found_of(slow, Mode(np.zeros(2), np.eye(2), 0.0, 0.0), [0])
    assert found is not None
    drawn = found[0].draw(40_000, np.random.default_rng(3))[:, 0]
    for share in (1e-3, 1e-2, 1e-1):
        own = np.mean(drawn < math.log(-math.log1p(-share)))
        # Wide ones and those with heavy tails beside the mixture have more far out.
        assert 0.8 * share < own < 1.5 * share + 0.05, (share, own)


def test_means_and_widths_of_others_follow_the_scale() -> None:
    """x ~ Normal(u^2 / 2, 0.1 e^(u / 2)) beside u."""

    def curved(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u, off = z[:, 0], z[:, 1] - 0.5 * z[:, 0] ** 2
        precision = 100.0 * np.exp(-u)
        values = -0.5 * u**2 - 0.5 * u - 0.5 * precision * off**2
        of_u = -u - 0.5 + 0.5 * precision * off**2 + precision * off * u
        return values, np.column_stack([of_u, -precision * off])

    found = found_of(curved, Mode(np.zeros(2), np.diag([1.0, 0.1]), 0.0, 0.0), [0])
    assert found is not None and found[0].given is not None
    given, u = found[0].given, np.linspace(-2.0, 2.0, 11)
    z = np.column_stack([u, 0.5 * u**2 + 0.1 * np.exp(0.5 * u)])
    straight, log_determinants = given.straight(z)
    # One standard deviation from the mean, at places and between them.
    assert straight[:, 1] == pytest.approx(np.ones(len(u)), abs=0.2)
    assert log_determinants == pytest.approx(math.log(10.0) - 0.5 * u, abs=0.05)
    _, weights, ratios = weighted(found[0], curved)
    assert weighted_number(weights) > 0.7 * len(weights)
    # Mass: that of the two Normals.
    mass = math.log(2.0 * math.pi) + math.log(0.1)
    assert logsumexp(ratios) - math.log(len(ratios)) == pytest.approx(mass, abs=0.04)


def test_normals_lie_where_the_others_are_highest() -> None:
    """x^4 beside a pull that grows with u: one Newton step does not end there."""

    def bent(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u, x = z[:, 0], z[:, 1]
        pull = np.exp(1.5 * u)
        values = -0.5 * u**2 - 0.25 * x**4 - 0.05 * x**2 + pull * x - 0.75 * pull ** (4.0 / 3.0)
        of_u = -u + 1.5 * (pull * x - pull ** (4.0 / 3.0))
        return values, np.column_stack([of_u, -(x**3) - 0.1 * x + pull])

    found = found_of(bent, Mode(np.array([0.0, 3.0]), np.eye(2), 0.0, 0.0), [0])
    assert found is not None and found[0].given is not None
    means = found[0].given.at(found[0].given.places)
    widths = 1.0 / np.sqrt(3.0 * means[:, 1] ** 2 + 0.1)
    left = np.abs(bent(means)[1][:, 1]) * widths
    assert left.max() < 0.35, left


def test_two_scales_have_draws_of_both() -> None:
    """Two sets of groups side by side: their densities are products."""

    def both(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        one, two = groups(z[:, own]), groups(z[:, ~own])
        scores = np.empty_like(z)
        scores[:, own], scores[:, ~own] = one[1], two[1]
        return one[0] + two[0], scores

    dim = 2 * (2 + len(Y))
    own = np.arange(dim) % 2 == 0
    found = found_of(both, start_of(both, dim), [0, 1])
    assert found is not None
    positions, weights, _ = weighted(found[0], both)
    assert weighted_number(weights) > 0.5 * len(weights)
    shares, _ = shares_of_u()
    for scale in (0, 1):
        below = np.interp(positions[:, scale], LOGS, shares)
        assert weights @ (below < 0.05) == pytest.approx(0.05, abs=0.02)


def test_a_map_given_hyperparameters_goes_back_and_has_its_determinant() -> None:
    generator = np.random.default_rng(0)
    factors = np.tril(0.3 * generator.normal(size=(9, 3, 3)), -1) + np.eye(3)
    given = Given(
        np.array([0, 3]),
        np.array([0.5, -1.0]),
        np.array([[2.0, 0.0], [0.5, 1.5]]),
        generator.normal(size=3),
        np.tril(generator.normal(size=(3, 3)), -1) + np.diag([1.0, 2.0, 0.5]),
        generator.normal(size=(9, 2)),
        generator.normal(size=(9, 3)),
        row_of(factors * np.exp(0.2 * generator.normal(size=(9, 1, 1)))),
    )
    # At places the map is that of their Normals.
    there = given.at(given.places)
    straight, _ = given.straight(there)
    np.testing.assert_allclose(straight[:, given.others], 0.0, atol=1e-9)
    np.testing.assert_allclose(given.placed(there), given.places, atol=1e-12)
    x = generator.normal(size=(4, 5))
    straight, log_determinants = given.straight(x)
    np.testing.assert_allclose(given.curved(straight), x, rtol=1e-9)
    for row, log_determinant in zip(x, log_determinants, strict=True):
        moves = 1e-6 * np.eye(5)
        jacobian = (given.straight(row + moves)[0] - given.straight(row - moves)[0]) / 2e-6
        _, expected = np.linalg.slogdet(jacobian)
        assert log_determinant == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("low", [0.0, -2.5])
def test_what_widths_of_entries_depend_on_is_a_hyperparameter(low: float) -> None:
    """Noise with scale e^v beside a location m: the precision of entries depends on v alone.

    Where the scale e^u is small at the mode it hardly does there, and does where u is larger.
    """
    data = np.random.default_rng(0).normal(size=(6, 4))

    def measured(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u, v, m, effects = z[:, 0], z[:, 1], z[:, 2], z[:, 3:]
        scales, precision = np.exp(u)[:, None], np.exp(-2.0 * v)
        off = (data - (m[:, None] + scales * effects)[..., None]) * precision[:, None, None]
        squares = (off**2).sum((1, 2)) / precision
        values = -0.5 * squares - data.size * v - 0.5 * (effects**2).sum(1) - 0.5 * m**2
        values += -0.5 * (u - low) ** 2 - 0.5 * v**2
        of_effects = off.sum(2) * scales - effects
        of_u = (off.sum(2) * scales * effects).sum(1) - (u - low)
        scores = [of_u, squares - data.size - v, off.sum((1, 2)) - m]
        return values, np.column_stack([*scores, of_effects])

    mode = start_of(measured, 9)
    entries = np.array([0.0] * 3 + [1.0] * 6)
    for seed in range(5):
        generator = np.random.default_rng(seed)
        assert hyperparameters(measured, mode, (0,), entries, EPSILON, generator) == [0, 1]


def test_many_small_changes_of_widths_make_a_hyperparameter() -> None:
    """By the trace: precisions e^(v / 10) of six entries move the mean of v by 0.3 deviations."""

    def even(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        precisions = np.exp(0.1 * z[:, 1])
        squares = (z[:, 2:] ** 2).sum(1)
        values = -0.5 * (z[:, :2] ** 2).sum(1) - 0.5 * precisions * squares
        scores = np.column_stack([-z[:, :2], -precisions[:, None] * z[:, 2:]])
        scores[:, 1] -= 0.05 * precisions * squares
        return values, scores

    mode, entries = Mode(np.zeros(8), np.eye(8), 0.0, 0.0), np.array([0.0] * 2 + [1.0] * 6)
    found = hyperparameters(even, mode, (0,), entries, EPSILON, np.random.default_rng(0))
    assert found == [0, 1]


def told(density: Any, mode: Mode, seed: int = 0) -> list[int]:
    """Hyperparameters of a density of which nothing is known."""
    nothing = np.zeros(len(mode.mean))
    return hyperparameters(density, mode, (), nothing, EPSILON, np.random.default_rng(seed))


def bent_and_widened(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The second has mean 0.4 (u² - 1), the last two deviation e^(v / 2); u and v are standard."""
    u, v, last, precision = z[:, 0], z[:, 2], z[:, 3:], np.exp(-z[:, 2])
    off, squares = z[:, 1] - 0.4 * (u**2 - 1.0), precision * (last**2).sum(1)
    values = -0.5 * (u**2 + v**2 + squares + off**2) - v
    scores = [-u + 0.8 * u * off, -off, -v - 1.0 + 0.5 * squares]
    return values, np.column_stack([*scores, -precision[:, None] * last])


def log_gammas(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of independent Gamma(1, 1) variables."""
    return (z - np.exp(z)).sum(1), 1.0 - np.exp(z)


@pytest.mark.parametrize("seed", range(5))
def test_scales_of_effects_that_a_program_has_non_centred_are_found(seed: int) -> None:
    assert 0 in told(groups, start_of(groups, 7), seed)


@pytest.mark.parametrize("seed", range(5))
def test_coordinates_along_which_others_curve_or_widen_are_found(seed: int) -> None:
    assert told(bent_and_widened, start_of(bent_and_widened, 5), seed) == [0, 2]


def test_a_skew_coordinate_is_found_beside_even_ones() -> None:
    def one_skew(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, scores = log_gammas(z[:, 1:2])
        even = z[:, [0, 2, 3]]
        scores = np.column_stack([-even[:, :1], scores, -even[:, 1:]])
        return values - 0.5 * (even**2).sum(1), scores

    assert told(one_skew, start_of(one_skew, 4)) == [1]


def test_a_normal_has_no_hyperparameters_and_ten_skew_coordinates_are_too_many() -> None:
    def normal(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return -0.5 * (z**2).sum(1), -z

    assert told(normal, Mode(np.zeros(6), np.eye(6), 0.0, 0.0)) == []
    assert told(log_gammas, start_of(log_gammas, 10)) == []


def test_draws_given_what_others_curve_along_have_even_weights() -> None:
    mode = start_of(bent_and_widened, 5)
    common = EPSILON, np.random.default_rng(1)
    found = given_hyperparameters(bent_and_widened, mode, [0, 2], *common)
    assert found is not None
    proposal, root = found
    _, log_ratios = drawn_from(proposal, 2_000, bent_and_widened, common[1])
    weights = np.exp(log_ratios - log_ratios.max())
    assert weighted_number(weights) > 0.75 * len(weights)
    # Of the second: 1 + 0.4² Var(u²); of the last two: E[e^v].
    variances = np.array([1.0, 1.32, 1.0, math.exp(0.5), math.exp(0.5)])
    np.testing.assert_allclose(np.square(root).sum(1), variances, rtol=0.4)


def test_a_look_counts_what_a_step_to_the_others_mean_adds() -> None:
    """Others at 1 + 2 u of precision 4, looked at where a map has them at 0.5 + 2 u."""

    def line(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u, off = z[:, 0], z[:, 1] - 1.0 - 2.0 * z[:, 0]
        return -0.5 * u**2 - 2.0 * off**2, np.column_stack([-u + 8.0 * off, -4.0 * off])

    places = np.array([[-1.0], [0.0], [2.0]])
    factor = np.array([[2.0]])
    given = Given(
        *(np.array([0]), np.zeros(1), np.eye(1), np.zeros(1), factor, places),
        means=(0.5 + 2.0 * places) @ factor,
        factors=row_of(np.ones((3, 1, 1))),
    )
    looked = _Seen(np.zeros((0, 1)), np.zeros(0), np.zeros((0, 1)))
    looked = looked.and_at(np.array([[0.5], [1.5]]), given, line)
    at, log_densities = _density(given, np.zeros(3), looked)
    assert at[3:, 0] == pytest.approx([0.5, 1.5])
    # The Normal's integral over the other, without 2 pi.
    assert log_densities[3:] == pytest.approx(-0.5 * at[3:, 0] ** 2 - math.log(2.0))


def test_there_is_no_such_proposal_where_it_would_lack_something() -> None:
    def flat(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The scale's density never falls."""
        return -0.5 * z[:, 1] ** 2, np.column_stack([np.zeros(len(z)), -z[:, 1]])

    def parted(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The other has two modes."""
        x = z[:, 1]
        values = -0.5 * z[:, 0] ** 2 + 0.5 * x**2 - 0.01 * x**4
        return values, np.column_stack([-z[:, 0], x - 0.04 * x**3])

    def narrow(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The scale lies within a twentieth of the mode's Normal."""
        precisions = np.array([400.0, 1.0])
        return -0.5 * (precisions * z**2).sum(1), -precisions * z

    mode = Mode(np.zeros(2), np.eye(2), 0.0, 0.0)
    with pytest.raises(np.linalg.LinAlgError):
        found_of(narrow, mode, [0])
    assert found_of(flat, mode, [0]) is None
    assert found_of(parted, mode, [0]) is None
    assert found_of(groups, mode, []) is None
    assert has_room(1, 100) and not has_room(1, 1_000)
    assert not has_room(6, 10) and not has_room(2, 2)


def test_draws_are_right_where_a_first_place_has_no_normal() -> None:
    """Above 1.2 the other has two modes: there are draws of what lies below."""

    def split(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u, x = z[:, 0], z[:, 1]
        excess = 1.0 / (1.0 + np.exp(-8.0 * (u - 1.2)))
        curvature = 1.0 - 2.2 * excess
        values = -0.5 * u**2 - 0.5 * curvature * x**2 - 0.1 * x**4
        of_u = -u + 8.8 * excess * (1.0 - excess) * x**2
        return values, np.column_stack([of_u, -curvature * x - 0.4 * x**3])

    found = found_of(split, Mode(np.zeros(2), np.eye(2), 0.0, 0.0), [0])
    assert found is not None and found[0].given is not None
    assert len(found[0].given.places) < places_of(1)
    drawn, weights, _ = weighted(found[0], split)
    assert weighted_number(weights) > 0.3 * len(weights)
    grid = np.stack(np.meshgrid(np.linspace(-6, 6, 601), np.linspace(-8, 8, 401)), -1)
    masses = np.exp(split(grid.reshape(-1, 2))[0]).reshape(401, 601).sum(0)
    share = masses[:301].sum() / masses.sum()
    assert weights @ (drawn[:, 0] < 0.0) == pytest.approx(share, abs=0.05)


def test_rounds_of_places_go_on_until_others_are_as_expected() -> None:
    """The other lies at 2 sin(2 u), which few places do not tell."""

    def wave(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u, off = z[:, 0], (z[:, 1] - 2.0 * np.sin(2.0 * z[:, 0])) / 0.04
        values = -0.5 * u**2 - 0.02 * off**2
        return values, np.column_stack([-u + 4.0 * np.cos(2.0 * u) * off, -off])

    mode = Mode(np.zeros(2), np.array([[1.0, 0.0], [4.0, 0.2]]), 0.0, 0.0)
    found = found_of(wave, mode, [0])
    assert found is not None and found[0].given is not None
    assert places_of(1) < len(found[0].given.places) < 60
    _, weights, _ = weighted(found[0], wave)
    assert weighted_number(weights) > 0.6 * len(weights)


def test_what_a_map_loses_is_the_divergence_of_its_normals() -> None:
    generator = np.random.default_rng(0)
    places = np.array([[-1.0], [0.0], [2.0]])
    roots = np.tril(0.3 * generator.normal(size=(3, 2, 2))) + np.eye(2)
    means = generator.normal(size=(3, 2))
    given = Given(
        *(np.array([0]), np.zeros(1), np.eye(1), np.zeros(2), np.eye(2)),
        *(places, means, row_of(roots)),
    )
    others = np.tril(0.3 * generator.normal(size=(3, 2, 2))) + np.eye(2)
    centers = generator.normal(size=(3, 2))
    lost = _lost(given, places, centers, others)
    for at, root, mean, other, center in zip(lost, roots, means, others, centers, strict=True):
        precision, off = root @ root.T, center - mean
        covariance = np.linalg.inv(other @ other.T)
        expected = np.trace(precision @ covariance) - 2.0 + off @ precision @ off
        expected -= np.linalg.slogdet(precision @ covariance)[1]
        assert at == pytest.approx(0.5 * expected)


def test_rounds_end_where_the_others_are_no_normal() -> None:
    """Beyond 1.3 to either side the other has two modes, as far as there are draws."""
    counts: list[int] = []

    def parted(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        counts.append(len(z))
        u, x = z[:, 0], z[:, 1]
        excess = 1.0 / (1.0 + np.exp(-40.0 * (np.abs(u) - 1.3)))
        curvature = 1.0 - 2.2 * excess
        values = -1e-3 * u**2 - 0.5 * curvature * x**2 - 0.1 * x**4
        of_u = -2e-3 * u + 44.0 * excess * (1.0 - excess) * np.sign(u) * x**2
        return values, np.column_stack([of_u, -curvature * x - 0.4 * x**3])

    found_of(parted, Mode(np.zeros(2), np.eye(2), 0.0, 0.0), [0])
    assert sum(counts) < 150
