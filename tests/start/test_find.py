"""The search for a start, on densities whose answer is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ppl_ext.start.find import find, improved, judged
from ppl_ext.start.local_normal import local_factor
from ppl_ext.start.paths import ITERATIONS, side_by_side
from ppl_ext.start.search import WIDTH, InPieces
from ppl_ext.start.start import Mode, Start

EPSILON = float(np.finfo(np.float64).eps)
SINGLE = float(np.finfo(np.float32).eps)


class Normal:
    """A Normal's log density without its constant, in double or single precision."""

    def __init__(self, mean: Any, covariance: Any, *, single: bool = False) -> None:
        self.mean, self.covariance = np.asarray(mean, float), np.asarray(covariance, float)
        self.precision, self.single = np.linalg.inv(self.covariance), single

    def __call__(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        dtype = np.float32 if self.single else np.float64
        difference = z.astype(dtype) - self.mean.astype(dtype)
        scores = -difference @ self.precision.astype(dtype)
        values = 0.5 * (difference * scores).sum(-1)
        return values.astype(np.float64), scores.astype(np.float64)


def around_zero(dim: int, seed: int = 0) -> Callable[[int], np.ndarray]:
    generator = np.random.default_rng([3, seed])
    return lambda number: generator.uniform(-1.0, 1.0, (number, dim))


def found(density: Any, dim: int, epsilon: float = EPSILON, seed: int = 0) -> Start:
    return find(density, around_zero(dim, seed), np.random.default_rng(seed), epsilon)


@pytest.mark.parametrize("diagonal", [False, True])
def test_the_mass_of_a_normal_is_exact(diagonal: bool) -> None:
    """A normalised density has mass 1, whatever its volume: the Normal's own ratios are equal."""
    scales = np.array([0.01, 2.0, 30.0])
    root = np.diag(scales) if diagonal else scales[:, None] * np.tril(np.full((3, 3), 0.7))
    noise = np.random.default_rng(0).normal(size=(20, 3))
    mode = Mode(np.ones(3), scales if diagonal else root, 0.0, 0.0)
    normal = stats.multivariate_normal(np.ones(3), root @ root.T)
    found = judged(mode, np.log(0.3) + normal.logpdf(mode.at(noise)), noise)
    assert found.log_mass == pytest.approx(np.log(0.3), abs=1e-6)
    assert found.spread < 1e-6


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0), (1e-3, 1.0, 3e3), (0.02, 0.5, 40.0)])
def test_normals_are_found_whatever_their_scales(scales: tuple[float, ...], single: bool) -> None:
    """Scales over six decades, correlated, in both precisions."""
    root = np.diag(scales) @ np.linalg.cholesky([[1.0, 0.6, -0.3], [0.6, 1.0, 0.2], [-0.3, 0.2, 1]])
    mean = np.array([0.3, -2.0, 1.5]) * scales
    start = found(Normal(mean, root @ root.T, single=single), 3, SINGLE if single else EPSILON)
    assert len(start.modes) == 1
    # What single precision can tell of a mean that rounding hides.
    error = np.linalg.solve(root, start.mean - mean)
    assert np.abs(error).max() < (0.5 if single else 0.1)
    ratio = np.linalg.solve(root, start.factor)
    np.testing.assert_allclose(ratio @ ratio.T, np.eye(3), atol=0.1 if single else 1e-3)
    assert np.allclose(np.triu(start.factor, 1), 0.0) and (np.diag(start.factor) > 0.0).all()
    # The Normal's own mass is known.
    expected = 1.5 * math.log(2 * math.pi) + np.log(np.diag(root)).sum()
    assert start.modes[0].log_mass == pytest.approx(expected, abs=0.2)


def test_evaluations_are_counted_and_few() -> None:
    density, calls = Normal(np.zeros(5), np.eye(5)), []

    def counting(z: np.ndarray) -> Any:
        calls.append(len(z))
        return density(z)

    start = found(counting, 5)
    assert start.evaluations == sum(calls) < 120


def test_separate_modes_keep_their_masses() -> None:
    """Two Normals far apart, of weights 0.8 and 0.2; the lighter one has the higher density."""
    means, scales, weights = (
        np.array([[-4.0, 0], [4, 0]]),
        np.array([1.0, 0.3]),
        np.array([0.8, 0.2]),
    )

    def density(z: np.ndarray) -> Any:
        difference = z[:, None] - means
        logs = np.log(weights) - 2 * np.log(scales)
        logs = logs - 0.5 * (difference**2).sum(-1) / scales**2
        top = logs.max(-1, keepdims=True)
        shares = np.exp(logs - top)
        values = top[:, 0] + np.log(shares.sum(-1))
        shares /= shares.sum(-1, keepdims=True)
        return values, -(shares[..., None] * difference / scales[:, None] ** 2).sum(1)

    generator = np.random.default_rng(0)
    points = means[[0, 1, 0, 1]] + generator.uniform(-1.0, 1.0, (4, 2))
    start = find(density, lambda number: points[:number], generator, EPSILON)
    assert len(start.modes) == 2
    np.testing.assert_allclose(start.weights, weights, atol=0.01)
    np.testing.assert_allclose(start.mean, means[0], atol=0.05)
    draws = start.draw(100, 1)
    assert (draws[:, 0] < 0).sum() == 80


def test_one_mode_reached_twice_is_one() -> None:
    """Paths that end on the same flat top, farther apart than a Normal's scale, have no dip."""

    def density(z: np.ndarray) -> Any:
        beyond = np.sign(z) * np.maximum(0.0, np.abs(z) - 5.0)
        return -0.5 * (beyond**2).sum(-1) - 1e-3 * (z**2).sum(-1), -beyond - 2e-3 * z

    points = np.array([[-4.0, 3.0], [4.0, 3.0], [4.0, -4.0], [-4.0, -4.0]])
    start = find(density, lambda number: points, np.random.default_rng(0), EPSILON)
    assert len(start.modes) == 1


def test_endless_paths_start_on_their_way() -> None:
    """A funnel whose density grows without bound down its neck, as hierarchical scales do."""

    @np.errstate(over="ignore")
    def density(z: np.ndarray) -> Any:
        log_scale, rest = z[:, :1], z[:, 1:]
        inner = rest * np.exp(-log_scale)
        values = -rest.shape[1] * log_scale[:, 0] - 0.5 * (inner**2).sum(-1)
        values += log_scale[:, 0] - np.log1p(np.exp(2 * log_scale[:, 0]) / 25.0)
        above = np.exp(2 * log_scale) / 25.0
        of_scale = -rest.shape[1] + (inner**2).sum(-1, keepdims=True)
        of_scale = of_scale + 1.0 - 2.0 * above / (1.0 + above)
        return values, np.concatenate([of_scale, -inner * np.exp(-log_scale)], 1)

    points = around_zero(9)(4)
    values, scores = density(points)
    paths = side_by_side(density, points, values, scores, EPSILON)
    assert not any(path.settled for path in paths)
    assert all(path.values[-1] > 50.0 for path in paths)
    # Not in the neck: the density at the paths' ends is astronomical, and there is nothing there.
    for seed in range(4):
        start = found(density, 9, seed=seed)
        assert start.mean[0] > max(path.positions[-1][0] for path in paths) + 10.0
        assert np.isfinite(start.modes[0].log_mass)


@pytest.mark.parametrize("single", [False, True])
def test_newton_steps_lead_on_from_paths_that_are_too_short(*, single: bool) -> None:
    """A Normal of correlations over four decades: paths spend their iterations before its mode."""
    dim = 60
    generator = np.random.default_rng(11)
    vectors = np.linalg.qr(generator.normal(size=(dim, dim)))[0]
    covariance = (vectors * np.geomspace(1e-2, 1e2, dim)) @ vectors.T
    scales = np.exp(generator.normal(size=dim))
    covariance = scales[:, None] * covariance * scales
    normal = Normal(3.0 * generator.normal(size=dim), covariance, single=single)
    points = around_zero(dim)(4)
    paths = side_by_side(normal, points, *normal(points), EPSILON)
    assert not any(path.settled for path in paths)
    start = found(normal, dim, SINGLE if single else EPSILON)
    off = np.linalg.solve(np.linalg.cholesky(covariance), start.mean - normal.mean)
    # One more step would gain a hundredth of a nat at most; the paths are several deviations off.
    assert np.linalg.norm(off) < 0.2 and start.modes[0].spread < 0.1
    # Paths, four estimates of the curvature at most, and little more.
    assert start.evaluations < 5 * ITERATIONS + 8 * dim + 50


def test_ends_by_rounding_are_no_modes() -> None:
    """Eight schools, centred, in single precision: paths down the funnel end by rounding."""
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)
    error = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32)

    def density(z: np.ndarray) -> Any:
        with np.errstate(all="ignore"):
            z = z.astype(np.float32)
            mu, log_tau, theta = z[:, :1], z[:, 1:2], z[:, 2:]
            tau = np.exp(log_tau)
            away, off = (theta - mu) / tau, (y - theta) / error
            heavy = (tau / 5) ** 2
            values = -(mu[:, 0] ** 2) / 50 - np.log1p(heavy[:, 0]) - 7 * log_tau[:, 0]
            values -= 0.5 * (away**2 + off**2).sum(1)
            by_mu = -mu / 25 + (away / tau).sum(1, keepdims=True)
            by_tau = (away**2).sum(1, keepdims=True) - 7 - 2 * heavy / (1 + heavy)
            scores = np.concatenate([by_mu, by_tau, off / error - away / tau], 1)
        return values.astype(np.float64), scores.astype(np.float64)

    for seed in range(6):
        generator = np.random.default_rng(seed)
        points = generator.uniform(-1.0, 1.0, (4, 10))
        start = find(density, lambda number, points=points: points, generator, 1.2e-7)
        # The paths end at -16 to -21.
        assert start.mean[1] > -3.0 and start.modes[0].spread < 2.5


def test_steps_improve_a_bad_normal_to_the_best_one() -> None:
    """From a Normal that is shifted and too wide: the bound's optimum is the density itself."""
    covariance = np.array([[1.0, 0.7], [0.7, 2.0]])
    density = Normal([3.0, -1.0], covariance)
    noise = np.random.default_rng(1).normal(size=(16, 2))
    bad = Mode(np.array([0.0, 0.5]), 3.0 * np.eye(2), 0.0, 0.0)
    bad = judged(bad, density(bad.at(noise))[0], noise)
    better = improved(density, bad, np.random.default_rng(2))
    assert better.log_mass > bad.log_mass
    np.testing.assert_allclose(better.mean, density.mean, atol=0.3)
    np.testing.assert_allclose(better.factor @ better.factor.T, covariance, rtol=0.4, atol=0.3)


def test_curvature_of_any_sign_and_none() -> None:
    """Negative curvature counts by its size; a flat direction is wide, and nothing is NaN."""

    def saddle(z: np.ndarray) -> Any:
        scores = z * np.array([-4.0, 9.0, 0.0])
        return 0.5 * (z * scores).sum(-1), scores

    factor = local_factor(saddle, np.zeros(3), np.eye(3), EPSILON)
    assert factor is not None
    deviations = np.linalg.norm(factor, axis=1)
    np.testing.assert_allclose(deviations[:2], [0.5, 1 / 3], rtol=1e-3)
    assert np.isfinite(deviations[2]) and deviations[2] > 100.0


@pytest.mark.parametrize("seed", range(20))
def test_directions_of_very_unequal_width_have_a_factor(seed: int) -> None:
    """As in the neck of a funnel, whose covariance is often indefinite by rounding."""
    narrow = np.random.default_rng(seed).normal(size=(3, 2))
    precision = 1e20 * narrow @ narrow.T

    def neck(z: np.ndarray) -> Any:
        return -0.5 * np.einsum("ni,ij,nj->n", z, precision, z), -z @ precision

    factor = local_factor(neck, np.zeros(3), np.eye(3), EPSILON)
    assert factor is not None
    assert np.isfinite(factor).all() and (np.diag(factor) > 0.0).all()
    np.testing.assert_array_equal(factor, np.tril(factor))


def test_walls_of_the_density_are_walked_around() -> None:
    """Positions without a finite density turn the line search back."""

    def log_gamma(z: np.ndarray) -> Any:
        # A Gamma(3, 1) written without its transform: no density below 0.
        with np.errstate(all="ignore"):
            values = np.where(z[:, 0] > 0, 2.0 * np.log(z[:, 0]) - z[:, 0], np.nan)
            scores = np.where(z > 0, 2.0 / z - 1.0, np.nan)
        return values, scores

    points = np.full((4, 1), 0.01)
    start = find(log_gamma, lambda number: points, np.random.default_rng(0), EPSILON)
    assert start.mean[0] == pytest.approx(2.0, abs=0.9)


def test_long_vectors_take_the_diagonal() -> None:
    scales = np.geomspace(0.5, 2.0, 700)

    def density(z: np.ndarray) -> Any:
        scores = -z / scales**2
        return 0.5 * (z * scores).sum(-1), scores

    start = found(density, 700)
    assert start.factor.shape == (700,) and start.draw(3).shape == (3, 700)
    np.testing.assert_allclose(start.factor, scales, rtol=1e-6)
    assert start.evaluations < 400


def test_pieces_have_one_size_and_change_nothing() -> None:
    density, sizes, numbers = Normal(np.zeros(2), np.eye(2)), set(), []

    def piece(z: np.ndarray, before: int) -> Any:
        sizes.add(len(z))
        numbers.append(before)
        return density(z)

    z = np.random.default_rng(0).normal(size=(19, 2))
    evaluate = InPieces(piece, calls=3)
    values, scores = evaluate(z)
    np.testing.assert_array_equal(scores, density(z)[1])
    np.testing.assert_array_equal(values, density(z)[0])
    assert sizes == {WIDTH} and numbers == [3, 4] and evaluate.calls == 5
