"""Permutations that are looked up place by place: each row once, and no order likelier."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from scipy import stats

from numpyro_ext.gradients.permutation import draw_order, permuted

#: Below this a test of uniformity fails.
LEAST_P_VALUE = 1e-4


@pytest.mark.parametrize("size", [1, 2, 3, 5, 12, 100, 4097, 99_991])
def test_every_row_comes_once(size: int) -> None:
    rows = permuted(draw_order(random.key(size)), jnp.arange(size), size)
    assert rows.dtype == jnp.int32
    np.testing.assert_array_equal(np.sort(rows), np.arange(size))


def many(size: int, number: int) -> np.ndarray:
    """Whole permutations (number, size), of independent orders."""
    orders = draw_order(random.key(1), (number,))
    return np.asarray(jax.jit(lambda o: permuted(o, jnp.arange(size), size))(orders))


@pytest.mark.parametrize("size", [3, 4, 5])
def test_all_permutations_are_equally_likely(size: int) -> None:
    drawn = many(size, 200_000)
    counts = np.zeros(math.factorial(size))
    powers = size ** np.arange(size)
    codes = {int(np.dot(p, powers)): i for i, p in enumerate(itertools.permutations(range(size)))}
    found, number = np.unique(drawn @ powers, return_counts=True)
    for code, count in zip(found, number, strict=True):
        counts[codes[int(code)]] = count
    assert stats.chisquare(counts).pvalue > LEAST_P_VALUE


@pytest.mark.parametrize("size", [12, 20, pytest.param(101, marks=pytest.mark.slow)])
def test_rows_of_two_places_are_equally_likely_pairs(size: int) -> None:
    drawn = many(size, 100_000)
    # Places side by side, in one row or column of the layout, and far apart.
    for first, second in ((0, 1), (0, size // 2), (3, size - 1)):
        counts = np.zeros((size, size))
        np.add.at(counts, (drawn[:, first], drawn[:, second]), 1)
        assert not counts.diagonal().any()
        assert stats.chisquare(counts[~np.eye(size, dtype=bool)]).pvalue > LEAST_P_VALUE


def test_orders_are_independent_and_places_of_any_shape() -> None:
    orders = draw_order(random.key(0), (3,))
    places = jnp.array([[4, 0], [7, 7]])
    found = permuted(orders, places, 50)
    assert found.shape == (3, 2, 2)
    for order, rows in zip(orders, found, strict=True):
        np.testing.assert_array_equal(rows, permuted(order, places, 50))
    assert len({tuple(np.ravel(rows)) for rows in found}) == 3
    # Keys of the older kind too.
    assert draw_order(random.PRNGKey(0), (3,)).shape == orders.shape
