"""Modes that differ by an exchange of labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.fit.labels import DRAWS, exchanged, orders


def mode(seed: int, **centres: Any) -> dict[str, np.ndarray]:
    """Draws of sites around these values, with a standard deviation of a tenth."""
    generator = np.random.default_rng(seed)
    return {
        name: np.asarray(centre) + 0.1 * generator.normal(size=(DRAWS, *np.shape(centre)))
        for name, centre in centres.items()
    }


FIRST = {"mean": [[0.0, 1.0], [5.0, 6.0]], "weight": [0.3, 0.7], "prior": 2.0}


@pytest.mark.parametrize(
    ("changed", "sites"),
    [
        (
            {"mean": [[5.0, 6.0], [0.0, 1.0]], "weight": [0.7, 0.3]},
            {"mean": (0, 1), "weight": (0, 1)},
        ),
        ({"mean": [[5.0, 6.0], [0.0, 1.0]]}, {"mean": (0, 1)}),
        # Another mode of its own: other values, or no exchange at all.
        ({"mean": [[5.0, 7.0], [0.0, 1.0]]}, {}),
        ({"mean": [[-5.0, -6.0], [0.0, -1.0]]}, {}),
        ({"mean": [[5.0, 6.0], [0.0, 1.0]], "prior": 3.0}, {}),
        ({}, {}),
    ],
)
def test_sites_whose_entries_change_places_are_named(
    changed: dict[str, Any], sites: dict[str, tuple[int, ...]]
) -> None:
    assert exchanged([mode(0, **FIRST), mode(1, **{**FIRST, **changed})]) == sites


def test_orders_of_labels_are_counted() -> None:
    every = np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 3.0], [1.0, 3.0, 2.0], [3.0, 2.0, 1.0]])
    all_three = {"x": (0, 1, 2)}
    assert orders({"x": every}, all_three) == (4, 6)
    assert orders({"x": np.repeat(every, 3, axis=0)}, all_three) == (4, 6)
    # Only of those that change places.
    assert orders({"x": every}, {"x": (0, 1)}) == (2, 2)
    # Of two sites the simplest tells, and of a matrix its rows.
    both = {"m": np.zeros((4, 2, 5)), "x": every[:, :2]}
    assert orders(both, {"m": (0, 1), "x": (0, 1)}) == (2, 2)
    assert orders({"x": np.stack([every, every], axis=2)}, all_three) == (4, 6)
    assert orders({"a": every[:, 0], "b": every[:, 1]}, {"a": (0,), "b": (0,)}) == (2, 2)


def test_entries_that_stay_have_no_labels() -> None:
    modes = [mode(0, x=[5.0, 0.0, 0.0, 0.0]), mode(1, x=[0.0, 5.0, 0.0, 0.0])]
    assert exchanged(modes) == {"x": (0, 1)}


def test_scalar_sites_may_change_places_with_each_other() -> None:
    assert exchanged([mode(0, a=0.0, b=4.0, c=9.0), mode(1, a=4.0, b=0.0, c=9.0)]) == {
        "a": (0,),
        "b": (0,),
    }
    assert exchanged([mode(0, a=0.0, b=4.0), mode(1, a=4.0, b=1.0)]) == {}


def test_values_as_uncertain_as_each_other_are_told_from_others() -> None:
    narrow, wide = np.array([0.0, 5.0]), np.array([5.0, 0.0])
    noise = np.random.default_rng(0).normal(size=(DRAWS, 2))
    first = {"x": narrow + noise * [0.1, 0.5]}
    assert exchanged([first, {"x": wide + noise * [0.5, 0.1]}]) == {"x": (0, 1)}
    assert exchanged([first, {"x": wide + noise * [0.1, 0.5]}]) == {}
