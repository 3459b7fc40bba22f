"""Effective numbers of draws: autoregressions, whose number is known, and ArviZ as the oracle."""

from __future__ import annotations

import arviz
import numpy as np
import pytest
from jaxtyping import Float

from ppl_ext.statistics.effective import distinct_number, effective_number
from ppl_ext.statistics.pareto import pareto_shape


def autoregression(
    correlation: float, number: int, chains: int, seed: int = 0
) -> Float[np.ndarray, "N M 1"]:
    """Chains whose neighbouring draws have this correlation, from their stationary distribution."""
    noise = np.random.default_rng(seed).normal(size=(number, chains))
    draws = noise.copy()
    for step in range(1, number):
        draws[step] = correlation * draws[step - 1] + np.sqrt(1 - correlation**2) * noise[step]
    return draws[:, :, None]


@pytest.mark.parametrize("correlation", [-0.9, -0.5, 0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize(("number", "chains"), [(200, 4), (201, 1), (50, 2), (1000, 3), (7, 3)])
def test_equal_to_arviz(correlation: float, number: int, chains: int) -> None:
    draws = autoregression(correlation, number, chains)
    expected = float(arviz.ess(draws[:, :, 0].T, method="mean"))
    assert effective_number(draws)[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("correlation", [-0.5, 0.0, 0.5])
def test_the_number_of_an_autoregression(correlation: float) -> None:
    """N M (1 - rho) / (1 + rho), which is more than N M where neighbours avoid each other."""
    found = [effective_number(autoregression(correlation, 400, 4, seed))[0] for seed in range(40)]
    exact = 1600 * (1 - correlation) / (1 + correlation)
    # The estimate cuts the sum over lags where it is noise, which costs a few per cent.
    assert np.mean(found) == pytest.approx(exact, rel=0.08)


def test_chains_apart_are_worth_little() -> None:
    draws = autoregression(0.0, 400, 4)
    assert effective_number(draws + 10.0 * np.arange(4)[:, None])[0] < 8.0
    moving = draws + np.linspace(0.0, 10.0, 400)[:, None, None]
    assert effective_number(moving)[0] < 20.0


def test_what_does_not_vary_or_is_short() -> None:
    assert effective_number(np.full((100, 2, 1), 0.1))[0] == 200.0
    assert effective_number(np.zeros((1, 5, 2))).tolist() == [5.0, 5.0]
    assert distinct_number(np.repeat(autoregression(0.0, 50, 1)[:, 0], 4, axis=0)) == 50.0


def test_equal_draws_far_from_zero_are_seen_where_their_precision_tells_them_apart() -> None:
    """In single precision ten grains lie between neighbours of 500 draws around 20,000."""
    drawn = 20_000.0 + np.random.default_rng(3).normal(size=(500, 1))
    repeated = np.repeat(drawn, 4, axis=0)
    assert distinct_number(repeated) == 500.0
    assert distinct_number(repeated.astype(np.float32).astype(float)) == 2_000.0


@pytest.mark.parametrize("shape", [-0.3, 0.2, 0.6, 1.0])
def test_shapes_of_pareto_tails(shape: float) -> None:
    points = (np.arange(2000) + 0.5) / 2000
    excesses = np.sort(np.expm1(-shape * np.log1p(-points)) / shape)
    # The prior draws the shape towards 0.5 with the weight of ten numbers.
    assert pareto_shape(excesses) == pytest.approx(shape, abs=0.02)
