"""Labels that can be exchanged: found in the density, put in order, drawn at random."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from ppl_ext.chains.hamiltonian import Chains
from ppl_ext.chains.proposal import Proposal
from ppl_ext.chains.sampler import Kernel
from ppl_ext.chains.symmetry import Exchange, Symmetry, find_symmetry, ordered_values
from ppl_ext.start.start import Mode

K = 3
DATA = np.concatenate([np.full(8, -5.0), np.full(5, 1.0), np.full(9, 6.0)])
DATA = DATA + np.random.default_rng(0).normal(size=len(DATA))
#: Sites of a mixture: weights on a simplex of three, by two coordinates, and means.
SLICES = {"weights": slice(0, 2), "mean": slice(2, 5)}
CENTRE = np.array([0.2, -0.3, -5.0, 1.0, 6.0])


def constrain(z: np.ndarray) -> dict[str, np.ndarray]:
    """By breaking a stick."""
    parts = special.expit(z[:, :2] - np.log([2.0, 1.0]))
    left = np.cumprod(1.0 - parts, axis=1)
    weights = np.stack([parts[:, 0], parts[:, 1] * left[:, 0], left[:, 1]], 1)
    return {"weights": weights, "mean": z[:, 2:]}


def unconstrain(values: Any) -> np.ndarray:
    weights = values["weights"]
    first = special.logit(weights[:, 0]) + np.log(2.0)
    second = np.log(weights[:, 1] / weights[:, 2])
    return np.concatenate([first[:, None], second[:, None], values["mean"]], 1)


def mixture(z: np.ndarray, tilt: Any = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Log density, with something that may tell labels apart; scores are not looked at."""
    values = constrain(z)
    terms = np.log(values["weights"])[:, None] + stats.norm.logpdf(
        DATA[:, None], values["mean"][:, None]
    )
    total = special.logsumexp(terms, -1).sum(-1) + np.log(values["weights"]).sum(-1)
    prior = stats.norm.logpdf(values["mean"], 0.0, 5.0).sum(-1)
    return total + prior + (tilt * values["mean"]).sum(-1), np.zeros_like(z)


def drawn_of(mode: Mode, seed: int) -> np.ndarray:
    return mode.at(np.random.default_rng(seed).normal(size=(256, len(mode.mean))))


def found(
    tilt: Any = 0.0, spread: float = 0.1, centre: Any = CENTRE, **changes: Any
) -> Symmetry | None:
    mode = Mode(centre, spread * np.diag([1.0, 1.0, 3.0, 3.0, 3.0]), 0.0, 0.0)
    maps = {"constrain": constrain, "unconstrain": unconstrain, **changes}
    return find_symmetry(
        lambda z: mixture(z, tilt),
        *maps.values(),
        SLICES,
        drawn_of(mode, 1),
        np.finfo(float).eps,
    )


def test_labels_are_found_in_all_sites_that_have_them() -> None:
    symmetry = found()
    assert symmetry is not None
    (exchange,) = symmetry.exchanges
    assert exchange.labels == (0, 1, 2)
    assert exchange.axes == (("weights", 0), ("mean", 0))
    # Weights of 0.3 do not tell components apart, means do.
    assert (exchange.site, exchange.entries, exchange.flat) == ("mean", (0, 1, 2), (2, 3, 4))


def test_of_sites_that_draws_have_in_one_order_the_one_farthest_from_another_is_taken() -> None:
    centre = np.array([1.5, 0.5, -5.0, 1.0, 6.0])
    mode = Mode(centre, 0.05 * np.diag([1.0, 1.0, 3.0, 3.0, 3.0]), 0.0, 0.0)
    assert (np.diff(constrain(drawn_of(mode, 1))["weights"]) < 0.0).all()
    symmetry = found(spread=0.05, centre=centre)
    assert symmetry is not None and symmetry.exchanges[0].site == "mean"


def test_labels_that_the_density_tells_apart_are_left() -> None:
    assert found([1e-5, 2e-5, 3e-5]) is None
    symmetry = found([1e-5, 0.0, 0.0])
    assert symmetry is not None and symmetry.exchanges[0].labels == (1, 2)


def test_labels_that_one_mode_has_in_any_order_are_left() -> None:
    assert found(spread=10.0) is None


def test_hundreds_of_entries_that_one_mode_has_in_any_order_are_left() -> None:
    """As groups of a hierarchy have where their scale is next to 0."""
    drawn = np.random.default_rng(3).normal(size=(64, 200))
    assert (
        find_symmetry(
            lambda z: (-0.5 * np.square(z).sum(1), -z),
            lambda z: {"x": z},
            lambda values: values["x"],
            {"x": slice(0, 200)},
            drawn,
            np.finfo(np.float32).eps,
        )
        is None
    )


def test_values_that_cannot_change_places_are_left() -> None:
    def sorted_back(values: Any) -> np.ndarray:
        # As of a site whose support is ordered vectors.
        return unconstrain({**values, "mean": np.sort(values["mean"], axis=1)})

    assert found(unconstrain=sorted_back) is None


def test_a_site_with_labels_on_two_axes_and_a_probability_of_two() -> None:
    """Moves between two states, and the probability of the first of them at the start."""
    slices = {"share": slice(0, 1), "moves": slice(1, 5)}

    def there(z: np.ndarray) -> dict[str, np.ndarray]:
        return {"share": special.expit(z[:, 0]), "moves": z[:, 1:].reshape(-1, 2, 2)}

    def back(values: Any) -> np.ndarray:
        share = special.logit(values["share"])[:, None]
        return np.concatenate([share, values["moves"].reshape(-1, 4)], 1)

    def density(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = there(z)
        start = np.stack([values["share"], 1.0 - values["share"]], 1)
        once = np.einsum("si,sij->sj", start, values["moves"])
        total = np.einsum("sj,sjk->s", once, np.cos(values["moves"]))
        return np.log(start).sum(1) - total**2, np.zeros_like(z)

    mode = Mode(np.array([1.0, 5.0, 2.0, 0.5, -4.0]), 0.1 * np.eye(5), 0.0, 0.0)
    symmetry = find_symmetry(density, there, back, slices, drawn_of(mode, 2), np.finfo(float).eps)
    assert symmetry is not None
    (exchange,) = symmetry.exchanges
    assert exchange.axes == (("moves", 0), ("moves", 1)) and exchange.halves == ("share",)
    # The diagonal tells the two apart, in values and in coordinates.
    assert exchange.entries == (0, 3) and exchange.flat == (1, 4)
    values = symmetry.constrain(symmetry.ordered(mode.mean[None]))
    np.testing.assert_allclose(values["moves"][0], [[-4.0, 0.5], [2.0, 5.0]])
    np.testing.assert_allclose(values["share"], 1.0 - special.expit(1.0))


def test_orders_go_and_come_back() -> None:
    symmetry = found()
    assert symmetry is not None
    z = CENTRE + np.random.default_rng(3).normal(size=(500, 5)) * 4.0
    ordered = symmetry.ordered(z)
    assert symmetry.is_ordered(ordered).all() and not symmetry.is_ordered(z).all()
    np.testing.assert_allclose(mixture(ordered)[0], mixture(z)[0])
    np.testing.assert_allclose(symmetry.unordered(ordered, z), z, atol=1e-9)
    values = ordered_values(symmetry.exchanges, constrain(z))
    np.testing.assert_allclose(constrain(ordered)["weights"], values["weights"])
    np.testing.assert_array_equal(values["mean"], np.sort(z[:, 2:], axis=1))
    # Weights go with their means.
    place = np.argsort(z[:, 2:], axis=1)
    np.testing.assert_array_equal(
        values["weights"], np.take_along_axis(constrain(z)["weights"], place, 1)
    )


def test_random_orders_are_all_alike() -> None:
    symmetry = found()
    assert symmetry is not None
    draws = np.tile(CENTRE, (600, 10, 1))
    shuffled = symmetry.shuffled(draws)
    orders = np.argsort(shuffled[..., 2:].reshape(-1, K), axis=1)
    counts = [(orders == each).all(1).sum() for each in itertools.permutations(range(K))]
    assert stats.chisquare(counts).pvalue > 1e-4
    # Further draws do not change the order of the first.
    np.testing.assert_array_equal(symmetry.shuffled(draws[:50]), shuffled[:50])
    np.testing.assert_allclose(mixture(shuffled[0])[0], mixture(draws[0])[0])


def test_a_normal_moves_with_its_labels() -> None:
    symmetry = found()
    assert symmetry is not None
    generator = np.random.default_rng(4)
    factor = 0.05 * np.tril(generator.uniform(0.5, 1.0, (5, 5)))
    mode = Mode(np.array([0.5, -0.4, 6.0, -5.0, 1.0]), factor, -3.0, 0.2)
    moved = symmetry.moved(mode, np.finfo(float).eps)
    z = symmetry.ordered(mode.at(generator.normal(size=(200_000, 5))))
    np.testing.assert_allclose(moved.mean, z.mean(0), atol=0.01)
    found_covariance = moved.factor @ moved.factor.T
    scale = np.sqrt(np.diag(found_covariance))
    np.testing.assert_allclose(
        np.cov(z.T) / np.outer(scale, scale),
        found_covariance / np.outer(scale, scale),
        atol=0.04,
    )
    assert moved.log_mass == mode.log_mass and moved.spread == mode.spread


def test_a_normal_as_narrow_as_positions_are_rounded_moves_with_its_labels() -> None:
    """Its factor was singular: steps of its own width led nowhere."""
    symmetry = found()
    assert symmetry is not None

    def rounded(values: Any) -> np.ndarray:
        return unconstrain(values).astype(np.float32).astype(float)

    narrow = np.diag([1.0, 1.0, 1e-6, 1e-7, 1e-8])
    mode = Mode(np.array([0.5, -0.4, 6.0, -5.0, 1.0]), narrow, 0.0, 0.0)
    moved = replace(symmetry, unconstrain=rounded).moved(mode, np.finfo(np.float32).eps)
    np.testing.assert_allclose(moved.deviations[2:], [1e-7, 1e-8, 1e-6], rtol=0.05)


#: Two labels: half of the mass where they differ, in two orders, half where they are alike.
PLACES = np.array([[0.0, 8.0], [8.0, 0.0], [20.0, 20.0]])
SHARES = np.array([0.25, 0.25, 0.5])


def alike_and_apart(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    logs = np.log(SHARES) - 0.5 * np.square(z[:, None] - PLACES).sum(-1)
    total = special.logsumexp(logs, axis=1)
    shares = np.exp(logs - total[:, None])
    return total, (shares[..., None] * (PLACES - z[:, None])).sum(1)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_jumps_know_how_many_orders_a_mode_has(first: int) -> None:
    """The mode of like labels has one order and the other two, of which one is proposed."""
    exchange = Exchange((0, 1), (("x", 0),), (), "x", (0, 1), (0, 1))
    symmetry = Symmetry((exchange,), lambda z: {"x": z}, lambda values: values["x"])
    modes = tuple(Mode(place, 1.1 * np.eye(2), 0.0, 0.0) for place in PLACES[[0, 2]])
    proposal = Proposal(modes, np.array([0.3, 0.7]))
    kernel = Kernel(
        alike_and_apart, proposal, [np.eye(2)], np.ones(1), 0.3, jumps=5, symmetry=symmetry
    )
    generator, number = np.random.default_rng(5), 3_000
    chains = Chains.at(PLACES[first] + generator.normal(size=(number, 2)), alike_and_apart)
    for _ in range(6):
        chains, *_, jumped, _ = kernel(chains, generator)
        values, scores = alike_and_apart(chains.positions)
        np.testing.assert_allclose(chains.values, values, rtol=1e-9)
        np.testing.assert_allclose(chains.scores, scores, atol=1e-9)
    assert 0.2 < jumped.mean() < 0.95
    share = float((chains.positions.min(1) > 14.0).mean())
    assert abs(share - 0.5) < 4.0 * math.sqrt(0.25 / number)
