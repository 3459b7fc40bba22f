"""Microcanonical moves and their tuning in NumPy, against equations and known answers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.special import digamma, polygamma

from ppl_ext.microcanonical.chains import Microcanonical
from ppl_ext.microcanonical.dynamics import (
    DIVERGED,
    Point,
    forgetting,
    leapfrog,
    metropolis,
    refreshed,
    turned,
    with_spare,
)
from ppl_ext.microcanonical.functions import Eager
from ppl_ext.microcanonical.tuning import (
    HEAT,
    LONGER,
    Moments,
    Noise,
    Schedule,
    StepLength,
    autocorrelation_time,
    cleared,
    forgetful_length,
    heat_of,
    scaled,
)

Evaluate = Any
NUMPY = Eager(np)


def unit(values: np.ndarray) -> np.ndarray:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def normal(mean: Any, std: Any) -> Evaluate:
    def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        white = (z - mean) / std
        return -0.5 * (white**2).sum(-1), -white / std

    return evaluate


def log_gamma(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of numbers with the Gamma distribution of shape 2: a long tail to the left."""
    return (2.0 * z - np.exp(z)).sum(-1), 2.0 - np.exp(z)


def run(
    evaluate: Evaluate,
    dim: int,
    *,
    chains: int,
    total: int,
    draws: int,
    start: Any = None,
    seed: int = 0,
    **options: Any,
) -> tuple[np.ndarray, Any]:
    """Draws (S, C, D) after a warm-up, and what the chains carry at the end."""
    settings = {"variance": 5e-4, "adjusted": False, "epsilon": 1e-16, **options}
    moves, generator = Microcanonical(dim, NUMPY, **settings), np.random.default_rng(seed)
    z = generator.uniform(-2.0, 2.0, (chains, dim)) if start is None else start

    def noise(number: int) -> np.ndarray:
        return generator.normal(size=(chains, number))

    dynamics, found = moves.first(z, noise(moves.whole), noise(moves.spare), total, evaluate), []
    for number in range(total + draws):
        log_uniform = np.log(generator.random(chains))
        share = np.asarray(generator.random())
        of_move = (number, total, partial(noise, moves.whole), log_uniform, share, evaluate)
        z, dynamics, _ = moves.move(dynamics, z, *of_move)
        found += [z] if number >= total else []
    return np.array(found), dynamics


@pytest.mark.parametrize("dim", [2, 7])
def test_a_turn_solves_its_equation(dim: int) -> None:
    """u' = (g - (g·u) u) / (D - 1), along which the kinetic energy grows by g·u."""
    generator = np.random.default_rng(0)
    u, g = unit(generator.normal(size=(4, dim))), 3.0 * generator.normal(size=(4, dim))

    def slope(u: np.ndarray) -> np.ndarray:
        return (g - (g * u).sum(-1, keepdims=True) * u) / (dim - 1)

    time, steps = 0.8, 400
    step, expected, kinetic = time / steps, u, np.zeros(4)
    for _ in range(steps):
        before = (g * expected).sum(-1)
        one = slope(expected)
        middle = expected + 0.5 * step * one
        two = slope(middle)
        three = slope(expected + 0.5 * step * two)
        half = (g * (expected + 0.5 * step * two)).sum(-1)
        four = slope(expected + step * three)
        expected = expected + step / 6.0 * (one + 2.0 * two + 2.0 * three + four)
        kinetic += step / 6.0 * (before + 4.0 * half + (g * expected).sum(-1))
    found, gained = turned(u, g, time, NUMPY)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    np.testing.assert_allclose(gained, kinetic, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1), 1.0, rtol=1e-12)


def test_a_long_turn_ends_along_the_score() -> None:
    generator = np.random.default_rng(0)
    u, g = unit(generator.normal(size=(3, 5))), generator.normal(size=(3, 5))
    found, gained = turned(u, g, 1e6, NUMPY)
    np.testing.assert_allclose(found, unit(g), atol=1e-12)
    assert np.all(np.isfinite(gained))
    found, gained = turned(u, 0.0 * g, 1.0, NUMPY)
    np.testing.assert_array_equal(found, u)
    np.testing.assert_array_equal(gained, 0.0)


def point_at(evaluate: Evaluate, chains: int, dim: int) -> Point:
    generator = np.random.default_rng(1)
    z = generator.normal(size=(chains, dim))
    return Point(z, unit(generator.normal(size=z.shape)), *evaluate(z))


def test_a_step_can_be_taken_back() -> None:
    evaluate, scale = normal(1.0, np.array([0.5, 1.0, 3.0])), np.array([0.7, 1.0, 2.0])
    first = point_at(evaluate, 6, 3)
    first = first._replace(score=scale * first.score)
    there, error = leapfrog(first, evaluate, 0.4, scale, NUMPY)
    assert np.abs(there.position - first.position).min() > 1e-3
    back, regained = leapfrog(
        there._replace(direction=-there.direction), evaluate, 0.4, scale, NUMPY
    )
    np.testing.assert_allclose(back.position, first.position, atol=1e-12)
    np.testing.assert_allclose(back.direction, -first.direction, atol=1e-12)
    np.testing.assert_allclose(regained, -error, atol=1e-12)


def test_the_error_of_a_step_is_of_third_order() -> None:
    """Its sign too: without the kinetic part, or with another sign, it would be of first order."""
    first = point_at(log_gamma, 50, 4)
    errors = [
        np.abs(leapfrog(first, log_gamma, step, np.ones(1), NUMPY)[1]).mean()
        for step in (0.08, 0.04, 0.02)
    ]
    assert errors[0] / errors[1] == pytest.approx(8.0, rel=0.15)
    assert errors[1] / errors[2] == pytest.approx(8.0, rel=0.15)


def test_a_direction_is_forgotten_over_its_length() -> None:
    """After the length L it points along itself by exp(-1), in many dimensions."""
    generator, dim, length, step = np.random.default_rng(0), 2_000, 6.0, 0.5
    first = u = unit(generator.normal(size=(40, dim)))
    amount = forgetting(np.asarray(step), np.asarray(length), dim, np)
    for _ in range(round(length / step)):
        u = refreshed(u, generator.normal(size=u.shape), amount, NUMPY)
    np.testing.assert_allclose(np.linalg.norm(u, axis=-1), 1.0)
    # Of 40 numbers with a standard deviation of 1 / sqrt(D) each.
    along = (u * first).sum(-1).mean()
    assert along == pytest.approx(np.exp(-1.0), abs=4.0 / np.sqrt(40 * dim))


def test_moves_are_taken_by_their_error() -> None:
    before = point_at(log_gamma, 5, 3)
    after = Point(*(each + 1.0 for each in before))
    error = np.array([-1.0, 0.7, 0.7, np.nan, DIVERGED])
    log_uniform = np.log(np.array([0.999, np.exp(-0.71), np.exp(-0.69), 1e-9, 1e-9]))
    found, accepted, diverged, chance = metropolis(before, after, error, log_uniform, NUMPY)
    np.testing.assert_array_equal(accepted, [True, True, False, False, False])
    np.testing.assert_array_equal(diverged, [False, False, False, True, True])
    np.testing.assert_allclose(chance, [1.0, np.exp(-0.7), np.exp(-0.7), 0.0, 0.0])
    np.testing.assert_array_equal(found.position[:2], after.position[:2])
    np.testing.assert_array_equal(found.position[2:], before.position[2:])
    np.testing.assert_array_equal(found.direction[2:], -before.direction[2:])
    # Without uniform numbers all are taken that have not diverged.
    taken = metropolis(before, after, error, None, NUMPY)[1]
    np.testing.assert_array_equal(taken, ~diverged)


def test_a_spare_coordinate_is_standard_normal() -> None:
    z = np.array([[0.3, -1.5]])
    value, score = with_spare(normal(1.0, 2.0), 1, np)(z)
    own, slope = normal(1.0, 2.0)(z[:, :1])
    np.testing.assert_allclose(value, own - 0.5 * 1.5**2)
    np.testing.assert_allclose(score, np.concatenate([slope, [[1.5]]], -1))


def test_moments_of_what_comes_in_pieces() -> None:
    values = 100.0 + np.random.default_rng(0).normal(size=(30, 4, 3))
    moments = Moments(np.zeros(()), np.zeros(3), np.zeros(3))
    for each in values:
        moments = moments.after(each)
    np.testing.assert_allclose(moments.mean, values.mean((0, 1)))
    np.testing.assert_allclose(moments.variance, values.reshape(-1, 3).var(0, ddof=1))
    assert cleared(moments, np).after(values[0]).number == 4


def test_a_scale_is_drawn_towards_that_of_all() -> None:
    scale, variance = np.array([1.0, 2.0]), np.array([9.0, 4.0])
    np.testing.assert_allclose(scaled(scale, variance, 1e9, np), [3.0, 2.0], rtol=1e-6)
    np.testing.assert_allclose(scaled(scale, variance, 0.0, np), np.sqrt(5.0) * scale)
    # Nothing is known of a coordinate that has not moved, or whose variance is not finite.
    kept = scaled(scale, np.array([np.nan, np.nan]), 10.0, np)
    np.testing.assert_array_equal(kept, scale)


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9])
def test_the_autocorrelation_time_of_a_known_sequence(kept: float) -> None:
    """x' = ρ x + noise has (1 + ρ) / (1 - ρ).

    Of T C K numbers and lags up to about 5 τ, the standard error is a share sqrt(20 τ / T C K).
    """
    generator = np.random.default_rng(0)
    x = np.zeros((1_500, 5, 8))
    x[0] = generator.normal(size=x[0].shape)
    for t in range(1, len(x)):
        x[t] = kept * x[t - 1] + np.sqrt(1.0 - kept**2) * generator.normal(size=x[0].shape)
    expected = (1.0 + kept) / (1.0 - kept)
    found = autocorrelation_time(np.linspace(1.0, 5.0, 8) * x, np)
    assert found == pytest.approx(expected, rel=4.0 * np.sqrt(20.0 * expected / x.size))


@pytest.mark.parametrize("slower", [2.0, 20.0])
def test_a_short_window_does_not_shorten_the_length(slower: float) -> None:
    """Sequences that are slower than the window seem to be a sixth to a quarter as slow as it."""
    generator, window = np.random.default_rng(0), 200
    kept, x = np.exp(-1.0 / (slower * window)), np.zeros((window, 16, 8))
    x[0] = generator.normal(size=x[0].shape)
    for t in range(1, window):
        x[t] = kept * x[t - 1] + np.sqrt(1.0 - kept**2) * generator.normal(size=x[0].shape)
    time, natural = autocorrelation_time(x, np), 8.0
    assert time < window / 3.0
    assert forgetful_length(0.01, time, window, natural, np) == LONGER * natural
    # One that the window shows may make it longer, and does not make it shorter.
    assert forgetful_length(0.01, 10.0, window, natural, np) == natural
    assert forgetful_length(4.0, 10.0, window, natural, np) == pytest.approx(16.0)


def test_the_step_has_the_variance_that_is_asked_for() -> None:
    """Of errors with the variance k ε^6: from a step that is a hundred times too short."""
    generator, dim, rate = np.random.default_rng(0), 10, 3.0
    value = (5e-4 * dim / rate) ** (1.0 / 6.0)
    zero = np.zeros(())
    step = StepLength(np.asarray(0.01 * value), zero, zero)
    quiet = np.zeros(8, bool)
    for _ in range(400):
        error = np.sqrt(rate) * step.value**3 * generator.normal(size=8)
        step = step.after(error, quiet, np.zeros(8), dim, 5e-4, 1e-16, np)
    assert step.value == pytest.approx(value, rel=0.05)
    shorter = step.after(np.full(8, np.nan), ~quiet, np.zeros(8), dim, 5e-4, 1e-16, np)
    assert 0.45 < shorter.value / value < 0.95


def test_rounding_is_no_error_of_a_step() -> None:
    """Of a log density of -10^7 in single precision, which rounds to whole nats."""
    generator, dim = np.random.default_rng(0), 4
    zero = np.zeros(())
    step = StepLength(np.asarray(0.1), zero, zero)
    value = np.full(8, -1e7)
    for _ in range(300):
        error = np.sqrt(0.01) * step.value**3 * generator.normal(size=8)
        error = error + generator.uniform(-1.0, 1.0, size=8)
        step = step.after(error, np.zeros(8, bool), value, dim, 5e-4, 1.2e-7, np)
    assert step.value > 0.1


def test_a_schedule_is_whole_for_every_warm_up() -> None:
    """Every place of what is kept is filled, and none is filled twice."""
    for total in (1, 2, 7, 50, 1_000, 1_333, 1_337, 5_001, 100_003):
        schedule = Schedule(total)
        kept, number = schedule.remembered, schedule.seen - schedule.moving
        assert 0 <= schedule.moving <= schedule.seen <= total
        assert (kept > 0) == (number > 0)
        if kept:
            due = np.arange(0, number, schedule.every(kept))
            assert kept <= len(due) < kept + 2


@pytest.mark.parametrize("total", [1, 2, 5, 12, 40])
@pytest.mark.parametrize("adjusted", [False, True])
def test_short_warm_ups_leave_numbers(total: int, adjusted: bool) -> None:
    draws, dynamics = run(log_gamma, 3, chains=2, total=total, draws=3, adjusted=adjusted)
    assert np.isfinite(draws).all()
    assert dynamics.step.value > 0.0
    assert dynamics.length > 0.0
    assert np.all(dynamics.scale > 0.0)


def test_the_bias_falls_with_the_square_of_the_step() -> None:
    """Variances of a Normal in ten dimensions are too large by 4 times as much at twice the step.

    The draws are worth some 300,000 independent ones, so that a variance is known to 0.3 %.
    """
    dim, chains = 10, 1_500
    start = np.random.default_rng(1).normal(size=(chains, dim))
    found = []
    for step in (4.0, 2.0):
        options = {"step_size": step, "length": 3.0}
        draws, dynamics = run(
            normal(0.0, 1.0), dim, chains=chains, total=0, draws=140, start=start, **options
        )
        found.append((draws[20:] ** 2).mean() - 1.0)
        assert dynamics.step.value == step
    assert 0.08 < found[0] < 0.3
    # The smaller one is known to 7 %, and the next order of the step adds its part.
    assert found[0] / found[1] == pytest.approx(4.0, rel=0.35)


def effective(draws: np.ndarray) -> np.ndarray:
    from numpyro.diagnostics import effective_sample_size

    return np.asarray(effective_sample_size(np.swapaxes(draws, 0, 1)))


def require(draws: np.ndarray, mean: float, variance: float, bias: float) -> None:
    """Moments of draws within four standard errors and a bias, relative to a standard deviation."""
    centred = draws - mean
    error = 4.0 * np.sqrt(variance / effective(centred))
    assert np.all(np.abs(centred.mean((0, 1))) < error + 0.5 * bias * np.sqrt(variance))
    squares = centred**2
    error = 4.0 * np.sqrt(squares.var((0, 1)) / effective(squares))
    assert np.all(np.abs(squares.mean((0, 1)) - variance) < error + bias * variance)


@pytest.mark.parametrize("dim", [1, 10])
def test_adjusted_chains_have_no_bias(dim: int) -> None:
    """Of a density with a long tail, and chains that start far from it."""
    draws, dynamics = run(
        log_gamma,
        dim,
        chains=64,
        total=200,
        draws=150,
        adjusted=True,
        start=np.full((64, dim), 4.0),
    )
    require(draws, digamma(2.0), polygamma(1, 2.0), 0.0)
    assert np.sqrt(dynamics.squares / dynamics.moves).mean() == pytest.approx(0.9, abs=0.06)


@pytest.mark.parametrize("dim", [1, 10, 100])
def test_tuned_chains_have_the_bias_that_is_stated(dim: int) -> None:
    draws, dynamics = run(log_gamma, dim, chains=64, total=300, draws=200)
    require(draws, digamma(2.0), polygamma(1, 2.0), 0.05 if dim > 2 else 0.12)
    variance = dynamics.squares.mean() / dynamics.moves / max(dim, 2)
    assert 2e-4 < variance < 1.5e-3


@pytest.mark.slow
@pytest.mark.parametrize("adjusted", [False, True])
@pytest.mark.parametrize(("dim", "condition"), [(2, 1.0), (2, 1e2), (2, 1e4), (30, 1.0)])
def test_correlated_normals(adjusted: bool, condition: float, dim: int) -> None:
    """Whose principal axes are not the coordinates, so that no scale of these helps."""
    generator = np.random.default_rng(3)
    basis, _ = np.linalg.qr(generator.normal(size=(dim, dim)))
    std = np.geomspace(1.0, np.sqrt(condition), dim)

    def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        white = ((z - 2.0) @ basis) / std
        return -0.5 * (white**2).sum(-1), -(white / std) @ basis.T

    # A length of the widest axis takes as many steps as it is wide.
    draws, _ = run(
        evaluate, dim, chains=32, total=1_500, draws=600 if adjusted else 6_000, adjusted=adjusted
    )
    white = ((draws - 2.0) @ basis) / std
    require(white, 0.0, 1.0, 0.0 if adjusted else 0.05 if dim > 2 else 0.12)


@pytest.mark.parametrize("adjusted", [False, True])
def test_scales_of_coordinates_are_found(adjusted: bool) -> None:
    """Standard deviations from 1 to 100: as many steps as where all are one."""
    std = np.geomspace(1.0, 100.0, 12)
    draws, dynamics = run(
        normal(3.0 * std, std), 12, chains=32, total=500, draws=150, adjusted=adjusted
    )
    np.testing.assert_allclose(dynamics.scale / std, 1.0, rtol=0.35)
    white = draws / std
    require(white, 3.0, 1.0, 0.0 if adjusted else 0.06)
    assert effective(white).min() > 800


class Rows:
    """Scores of minibatches of a regression; all evaluations of one move have the same rows."""

    def __init__(self, dim: int, number: int, size: int) -> None:
        self.generator = np.random.default_rng(3)
        self.number, self.size = number, size
        self.x = self.generator.normal(size=(number, dim)) * np.geomspace(1.0, 0.2, dim)
        self.y = self.x @ self.generator.normal(size=dim) + self.generator.normal(size=number)
        self.precision = np.eye(dim) + self.x.T @ self.x
        self.mean = np.linalg.solve(self.precision, self.x.T @ self.y)
        self.std = np.sqrt(np.diag(np.linalg.inv(self.precision)))

    def following(self, chains: int) -> None:
        self.rows = self.generator.integers(0, self.number, (chains, self.size))

    def __call__(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, share = self.x[self.rows], self.number / self.size
        rest = self.y[self.rows] - np.einsum("cbd,cd->cb", x, z)
        log_density = -0.5 * (z**2).sum(1) - 0.5 * share * (rest**2).sum(1)
        return log_density, share * np.einsum("cbd,cb->cd", x, rest) - z


def test_minibatches_leave_the_posterior() -> None:
    """Rows are a fiftieth; steps are tuned by the rows of each, whose error is the step's."""
    dim, chains, total, draws = 10, 16, 1_500, 3_000
    target, generator = Rows(dim, 1_000, 20), np.random.default_rng(0)
    moves = Microcanonical(dim, NUMPY, 5e-4, False, 1e-16, noisy=True)

    def noise() -> np.ndarray:
        return generator.normal(size=(chains, dim))

    target.following(chains)
    z, found = target.mean + 2.0 * target.std * noise(), []
    dynamics = moves.first(z, noise(), np.zeros((chains, 0)), total, target)
    for number in range(total + draws):
        target.following(chains)
        chance, share = np.log(generator.random(chains)), np.asarray(generator.random())
        z, dynamics, diverged = moves.move(dynamics, z, number, total, noise, chance, share, target)
        assert not diverged.any()
        found += [z] if number >= total else []
    white = (np.array(found).reshape(-1, dim) - target.mean) / target.std
    # Some 500 effective draws; steps alone make variances 4 % too large, and noise some more.
    np.testing.assert_allclose(white.mean(0), 0.0, atol=0.2)
    np.testing.assert_allclose(white.var(0), 1.06, atol=0.22)
    # Two scores in the warm-up and in a twentieth of the steps after it, one of all others.
    assert dynamics.moves == draws / 20
    assert dynamics.evaluations == 1 + 2 * total + draws + draws / 20
    variance = (dynamics.squares / dynamics.moves).mean() / dim
    assert 1e-4 < variance < 2e-3
    assert dynamics.step.value > 0.1
    assert 0.0 < moves.heat(dynamics) <= HEAT


def test_noise_bounds_the_step() -> None:
    """Of one direction, which a scale for each coordinate does not see."""
    dim, chains, total, generator = 20, 4, 600, np.random.default_rng(0)
    along = np.ones(dim) / np.sqrt(dim)
    push = np.zeros(chains)

    def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value = -0.5 * (z**2).sum(1) + push * (z @ along)
        return value, push[:, None] * along - z

    steps = {}
    for strength, allowed in ((0.0, 1.0), (20.0, 1.0), (20.0, 0.25)):
        moves = Microcanonical(dim, NUMPY, 5e-4, False, 1e-16, noisy=True, heat_allowed=allowed)

        def noise() -> np.ndarray:
            return generator.normal(size=(chains, dim))

        z = noise()
        dynamics = moves.first(z, noise(), np.zeros((chains, 0)), total, evaluate)
        for number in range(total):
            push = strength * generator.normal(size=chains)
            chance, share = np.log(generator.random(chains)), np.asarray(generator.random())
            z, dynamics, _ = moves.move(dynamics, z, number, total, noise, chance, share, evaluate)
        assert moves.heat(dynamics) <= 1.001 * allowed
        steps[strength, allowed] = float(dynamics.step.value * dynamics.scale.mean())
    assert steps[20.0, 1.0] < 0.5 * steps[0.0, 1.0]
    assert steps[20.0, 0.25] == pytest.approx(0.25 * steps[20.0, 1.0], rel=0.25)


@pytest.mark.parametrize("chains", [1, 6])
def test_noise_is_known_from_differences(chains: int) -> None:
    """tr(V²) / tr(V) - tr(V) / D of a covariance that is known."""
    generator, dim, moves = np.random.default_rng(1), 8, 6_000
    std = np.geomspace(3.0, 0.3, dim)
    zero = np.zeros(())
    found = Noise(zero, zero, zero, zero, np.zeros(dim), np.zeros((chains, dim)))
    before = std * generator.normal(size=(chains, dim))
    for number in range(moves):
        now = std * generator.normal(size=(chains, dim))
        found = found.after(now - before, number, NUMPY)
        before = now
    expected = (std**4).sum() / (std**2).sum() - (std**2).mean()
    assert float(found.excess(dim, np)) == pytest.approx(expected, rel=0.2)
    np.testing.assert_allclose(found.coordinates / found.number, 2.0 * std**2, rtol=0.15)
    # What is beyond the mean comes down to it, and what is far below stays.
    quiet = found.quieted(np.ones(dim), np.ones(dim), np)
    expected = 1.0 / np.sqrt(1.0 + std**2 / (1.0 + (std**2).mean()))
    np.testing.assert_allclose(quiet, expected, rtol=0.05)
    # A difference that is not finite says nothing.
    broken = found.after(np.full((chains, dim), np.nan), 2, NUMPY)
    assert broken.number == found.number
    assert np.isfinite(broken.squares)
    assert Noise(zero, zero, zero, zero, zero, zero[None, None]).excess(2, np) == 0.0


def test_heat_of_noise_that_is_known() -> None:
    assert heat_of(0.2, 3.0, 10.0, 4) == pytest.approx(0.2 * 3.0 * 10.0 / (2.0 * 3.0))


def test_a_step_that_is_cut_to_almost_nothing_grows_again_in_single_precision() -> None:
    """As the noise of minibatches cuts it far from the mass: ε^6 is no number there."""
    generator, zero, quiet = np.random.default_rng(0), np.zeros((), np.float32), np.zeros(8, bool)
    step = StepLength(np.float32(1e-3), zero, zero)
    for number in range(130):
        error = (np.sqrt(3.0) * float(step.value) ** 3 * generator.normal(size=8)).astype("f")
        step = step.after(error, quiet, np.zeros(8, np.float32), 10, 5e-4, 1.2e-7, np)
        if number < 100:
            step = step.at_most(np.float32(1e-9), np)
            assert step.value <= 1e-9
    assert 1e-8 < step.value < 1.0 and np.isfinite(step.rate)
