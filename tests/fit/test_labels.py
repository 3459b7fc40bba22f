"""Modes that differ by an exchange of labels."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from ppl_ext.fit.verdict.labels import DRAWS, Orders, exchanged, orders


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

    def counted(draws: dict[str, np.ndarray], places: dict[str, Any]) -> tuple[int, int]:
        found = orders(draws, places)
        # Without a density all orders are taken for alike.
        assert found.missing == pytest.approx(1.0 - found.seen / found.possible) and found.alike
        return found.seen, found.possible

    assert counted({"x": every}, all_three) == (4, 6)
    assert counted({"x": np.repeat(every, 3, axis=0)}, all_three) == (4, 6)
    # Only of those that change places.
    assert counted({"x": every}, {"x": (0, 1)}) == (2, 2)
    # Of two sites the simplest tells, and of a matrix its rows.
    both = {"m": np.zeros((4, 2, 5)), "x": every[:, :2]}
    assert counted(both, {"m": (0, 1), "x": (0, 1)}) == (2, 2)
    assert counted({"x": np.stack([every, every], axis=2)}, all_three) == (4, 6)
    assert counted({"a": every[:, 0], "b": every[:, 1]}, {"a": (0,), "b": (0,)}) == (2, 2)


#: Prior means of three labels whose likelihood is the same in every order.
ANCHORS = np.array([-1.0, 0.0, 1.0])


def anchored(draws: np.ndarray) -> np.ndarray:
    """Log density (S,) of three labels that anchors tell apart, up to what all orders share."""
    return -0.5 * np.square(draws - ANCHORS).sum(-1)


def anchored_draws(number: int) -> np.ndarray:
    """Exact draws: one place for each of three, in orders of the right shares."""
    generator = np.random.default_rng(5)
    places = np.array([-2.0, 0.0, 2.0])
    every = np.array([places[list(order)] for order in itertools.permutations(range(3))])
    shares = np.exp(anchored(every))
    which = generator.choice(6, number, p=shares / shares.sum())
    return every[which]


def test_missing_orders_have_the_share_that_the_density_tells() -> None:
    """Six orders with shares 0.72, 0.13 twice, 0.01 twice and 3e-4; some are taken away."""
    draws = anchored_draws(20_000)
    every = np.array(list(itertools.permutations([-2.0, 0.0, 2.0])))
    shares = np.exp(anchored(every))
    shares /= shares.sum()
    places = {"x": (0, 1, 2)}

    def found(kept: np.ndarray) -> Orders:
        own = draws[[any((row == each).all() for each in kept) for row in draws]]
        return orders({"x": own}, places, lambda values: anchored(values["x"]))

    by_share = np.argsort(shares)[::-1]
    for number in (1, 3, 5, 6):
        told = found(every[by_share[:number]])
        missing = shares[by_share[number:]].sum()
        assert (told.seen, told.possible, told.alike) == (number, 6, False)
        # Of 500 permuted draws each order has about 83.
        assert told.missing == pytest.approx(missing, rel=0.3, abs=1e-6)


def test_entries_of_scalar_sites_and_rows_are_exchanged_with_the_labels() -> None:
    draws = anchored_draws(2_000)[:500]
    draws = draws[(np.diff(draws, axis=1) > 0.0).all(1)]

    def of_sites(values: Any) -> np.ndarray:
        return anchored(np.stack([values[name] for name in "abc"], axis=1))

    scalars = {name: draws[:, k] for k, name in enumerate("abc")}
    one = orders(scalars, dict.fromkeys("abc", (0,)), of_sites)
    # Rows go with their label: a density of both at once knows of it.
    rows = {"x": draws, "m": np.stack([draws, draws], axis=2)}
    two = orders(
        rows,
        {"x": (0, 1, 2), "m": (0, 1, 2)},
        lambda v: np.where((v["m"] == v["x"][..., None]).all((1, 2)), anchored(v["x"]), -np.inf),
    )
    assert one == two and one.missing == pytest.approx(0.28, rel=0.3) and one.seen == 1


def test_labels_that_are_alike_are_said_to_be_and_those_without_a_density_are_too() -> None:
    draws = {"x": np.tile([1.0, 2.0, 3.0], (600, 1))}
    told = orders(draws, {"x": (0, 1, 2)}, lambda values: np.zeros(len(values["x"])))
    assert told.alike and told.missing == pytest.approx(5 / 6, abs=0.02)

    def refuses(values: Any) -> np.ndarray:
        raise ArgumentError("ordered")

    assert orders(draws, {"x": (0, 1, 2)}, refuses) == Orders(1, 6, 5 / 6)


def test_orders_of_hundreds_of_labels_are_more_than_are_counted() -> None:
    """171 factorial is larger than any number of double precision."""
    draws = {"x": np.tile(np.arange(300.0), (600, 1))}
    told = orders(draws, {"x": tuple(range(300))}, lambda values: np.zeros(len(values["x"])))
    assert told.alike and told.seen == 1 and told.missing == pytest.approx(1.0)
    with_order = orders(
        draws, {"x": tuple(range(300))}, lambda v: -1e3 * (np.diff(v["x"]) < 0.0).sum(1)
    )
    assert with_order.missing == pytest.approx(0.0, abs=1e-6) and not with_order.alike


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
