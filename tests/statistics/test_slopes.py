"""Whether scores are slopes of a log density, by its differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ModelCheckError
from ppl_ext.witnesses.slopes import check_slopes, false_slopes

Z = np.random.default_rng(0).normal(size=(50, 4))
EPSILON = float(np.finfo(np.float32).eps)


def missed(values: Any, scores: Any, epsilon: float = EPSILON) -> float | None:
    """What slopes miss of a density that these functions give, with its score."""

    def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return values(z), scores(z)

    return false_slopes(evaluate, Z, *evaluate(Z), epsilon, np.random.default_rng(1))


def of_normal(z: np.ndarray) -> np.ndarray:
    return -0.5 * np.square(z).sum(1)


def test_slopes_of_normals_bends_and_corners_are_slopes() -> None:
    assert missed(of_normal, lambda z: -z) is None
    assert missed(lambda z: -np.abs(z).sum(1), lambda z: -np.sign(z)) is None
    assert missed(lambda z: -(z**4).sum(1), lambda z: -4.0 * z**3) is None
    # Waves that are shorter than the first step: the second tells.
    waves = 200.0
    assert missed(lambda z: np.sin(waves * z).sum(1), lambda z: waves * np.cos(waves * z)) is None


@pytest.mark.parametrize("share", [0.0, 0.2, 3.0, -1.0])
def test_slopes_that_lack_a_part_or_have_another_sign_are_none(share: float) -> None:
    found = missed(of_normal, lambda z: -share * z)
    assert found is not None
    expected = {0.0: 1.0, 0.2: 0.8, 3.0: 2.0 / 3.0, -1.0: 2.0}[share]
    np.testing.assert_allclose(found, expected, atol=0.1)


def test_rounding_is_not_taken_for_a_slope() -> None:
    rng = np.random.default_rng(2)
    noise = 1e6 * EPSILON
    rounded = lambda z: 1e6 + noise * rng.normal(size=len(z))  # noqa: E731
    assert missed(rounded, lambda z: np.zeros_like(z)) is None


def test_few_finite_draws_tell_nothing() -> None:
    few = lambda z: np.where(np.arange(len(z)) < 3, 0.0, np.nan)  # noqa: E731
    assert missed(few, lambda z: np.ones_like(z)) is None


def test_places_where_searches_start_tell_of_a_part_of_the_slope() -> None:
    def checked(values: Any, scores: Any, epsilon: float = EPSILON) -> int:
        """Evaluations that it takes."""
        spent = 0

        def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            nonlocal spent
            spent += len(z)
            return values(z), scores(z)

        check_slopes(evaluate, 4, epsilon)
        return spent

    assert checked(of_normal, lambda z: -z) == 32
    with pytest.raises(ModelCheckError, match="at random places: they miss 2[0-9]% of them"):
        checked(of_normal, lambda z: -0.75 * z)
    # Change points, which no score sees: there are some within a long step, and hardly one within a
    # short one.
    jumps = lambda z: of_normal(z) + 1e-2 * np.floor(500.0 * z).sum(1)  # noqa: E731
    assert checked(jumps, lambda z: -z, 1e-16) > 32
    # With so many that each step passes hundreds, their sum is like a slope, but not a steady one.
    rng = np.random.default_rng(3)
    places, heights = np.sort(rng.uniform(-3.0, 3.0, 10**5)), rng.normal(1e-4, 1e-3, 10**5 + 1)
    sums = np.cumsum(heights)
    many = lambda z: of_normal(z) + sums[np.searchsorted(places, z)].sum(1)  # noqa: E731
    assert checked(many, lambda z: -z, 1e-16) > 32
