"""Where a program has a neck, and what data tell of entries, on NumPy's problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from ppl_ext.fit.ladder.centring import EntryData, _told, entry_data, neck, neck_among, scales_of
from ppl_ext.fit.ladder.written import best_written
from ppl_ext.fit.problem.problem import Meter, Problem
from ppl_ext.fit.verdict.policy import STRAINED
from ppl_ext.start.find import find
from ppl_ext.start.start import Mode
from ppl_ext.target.noncentred import Moves, Vectors, standardised, standardised_vectors
from tests.fit_support import WITHOUT_PROGRAM

#: Of the groups: measurements and their errors, and the standard deviation of their mean's prior.
Y, ERRORS, WIDE = np.array([1.3, -0.2, 0.4, 2.0]), np.array([0.05, 0.2, 1.0, 3.0]), 2.0


def problem(
    density: Callable[[np.ndarray], Any], coordinates: Mapping[str, slice], **changes: Any
) -> Problem:
    dim = max(place.stop for place in coordinates.values())
    options: dict[str, Any] = {
        "name": "as written",
        "evaluate": density,
        "dim": dim,
        "epsilon": 1e-16,
        "starting_points": lambda number: 0.1 * np.random.default_rng(0).normal(size=(number, dim)),
        "coordinates": coordinates,
        "values": lambda z: {name: z[:, place] for name, place in coordinates.items()},
        "target": WITHOUT_PROGRAM,
        "own": SimpleNamespace(
            layout=SimpleNamespace(
                shapes={name: (place.stop - place.start,) for name, place in coordinates.items()}
            )
        ),
        "data": None,
        "digest": lambda: "",
    }
    return Problem(**{**options, **changes})


@pytest.mark.parametrize(("error", "is_narrow"), [(1.0, True), (0.1, False)])
def test_a_neck_is_where_widths_follow_another_site(error: float, is_narrow: bool) -> None:
    """One effect of scale e^x and a row of it: its precision is e^-2x and that of the row."""

    def density(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        log, effect = z[:, 0], z[:, 1]
        square = effect**2 * np.exp(-2.0 * log)
        value = -log - 0.5 * square - 0.5 * ((effect - 1.0) / error) ** 2 - 0.5 * log**2 / 0.09
        scores = [
            -1.0 + square - log / 0.09,
            -effect * np.exp(-2.0 * log) - (effect - 1) / error**2,
        ]
        return value, np.stack(scores, 1)

    places = {"scale": slice(0, 1), "effect": slice(1, 2)}
    written = problem(density, places)
    mode = Mode(np.array([0.0, 0.6]), np.array([0.3, 0.3]), 0.0, 0.0)
    meter = Meter(1_000, 60.0)
    found = neck(written, ["effect"], mode, meter)
    low, high = (np.exp(-2.0 * log) + error**-2 for log in (0.9, -0.9))
    assert found == pytest.approx(high / low, rel=1e-3) and meter.evaluations == 4
    assert (found > STRAINED) == is_narrow
    # The same where draws have these quantiles.
    draws = mode.at(norm.ppf((np.arange(2_000)[:, None] + 0.5) / 2_000).repeat(2, 1))
    assert neck_among(written, ["effect"], draws, meter) == pytest.approx(found, rel=1e-2)
    assert neck(written, [], mode, meter) == neck(written, list(places), mode, meter) == 1.0


def by_differences(value: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], Any]:
    """Log densities with scores by central differences."""

    def density(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        steps = 1e-5 * np.eye(z.shape[1])
        ends = [value((z[:, None] + sign * steps).reshape(-1, z.shape[1])) for sign in (1, -1)]
        return value(z), (ends[0] - ends[1]).reshape(z.shape) / 2e-5

    return density


def groups(y: np.ndarray, errors: np.ndarray) -> tuple[Problem, Problem]:
    """Effects of mean m and scale e^u, measured once each; as written, and non-centred."""
    number = len(y)
    places = {"m": slice(0, 1), "u": slice(1, 2), "effect": slice(2, 2 + number)}

    def effects(z: np.ndarray) -> np.ndarray:
        return z[:, :1] + np.exp(z[:, 1:2]) * z[:, 2:]

    def moved(z: np.ndarray) -> np.ndarray:
        told = norm.logpdf(y, effects(z), errors) + norm.logpdf(z[:, 2:])
        return told.sum(1) + norm.logpdf(z[:, 0], 0.0, WIDE) + norm.logpdf(z[:, 1], 0.0, 1.5)

    def values(z: np.ndarray) -> dict[str, np.ndarray]:
        return {"m": z[:, :1], "u": z[:, 1:2], "effect": effects(z)}

    def there(values: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([values[name] for name in places], axis=1)

    def none(z: np.ndarray) -> dict[str, np.ndarray]:
        raise AssertionError

    own = {**places, "effect_decentered": places["effect"]}
    del own["effect"]
    other = problem(
        by_differences(moved), own, latents={"effect": "effect_decentered"}, values=values
    )
    return problem(by_differences(moved), places, maps=(none, there)), other


@pytest.mark.parametrize(
    ("y", "errors"),
    [
        (Y, ERRORS),
        (Y, np.full(4, 0.1)),
        (np.tile(Y, 3), np.repeat([0.05, 1.5], 6)),
        # The mean goes to the one group that is known where the scale is small.
        (np.append(2.0, np.tile(Y, 2)), np.append(0.05, np.full(8, 1.5))),
    ],
)
def test_what_data_tell_of_entries_is_exact_where_it_is_normal(
    y: np.ndarray, errors: np.ndarray
) -> None:
    """Wherever it is looked at: at a mode, and off it."""
    written, other = groups(y, errors)
    start = find(other.evaluate, other.starting_points, np.random.default_rng(0), 1e-16)
    mode = start.modes[0]
    for shift in (0.0, 0.3):
        meter = Meter(10_000, 60.0)
        found = entry_data(written, other, replace(mode, mean=mode.mean + shift), meter)
        expected = [errors**-2.0, y * errors**-2.0]
        np.testing.assert_allclose(found.entries["effect"], expected, rtol=0.01, atol=0.01)
        assert meter.evaluations == 2 * other.dim + 1
        scale = np.exp(mode.mean[1] + shift)
        assert found.least == pytest.approx(1.0 / (1.0 + (errors.max() / scale) ** 2), rel=0.01)


def test_entries_with_few_data_stay_non_centred() -> None:
    written, other = groups(Y, np.full(4, 10.0))
    start = find(other.evaluate, other.starting_points, np.random.default_rng(0), 1e-16)
    found = entry_data(written, other, start.modes[0], Meter(10_000, 60.0))
    # Of the entry of which they tell least: its share beside the prior's, which is 1.
    scale = np.exp(start.mean[1])
    assert found == EntryData(least=pytest.approx(1.0 / (1.0 + (10.0 / scale) ** 2), rel=0.01))
    # A covariance that is not whole tells nothing, and that is not few data.
    diagonal = replace(start.modes[0], factor=start.modes[0].deviations)
    assert np.isinf(entry_data(written, other, diagonal, Meter(10_000, 60.0)).least)


def test_scales_of_entries_are_found_by_what_moves_them() -> None:
    written, other = groups(Y, ERRORS)
    mode = Mode(np.zeros(other.dim), np.eye(other.dim), 0.0, 0.0)
    assert scales_of(written, other, mode) == {"u": [0]}
    assert scales_of(written, replace(other, latents={}), mode) == {}


def test_a_scale_may_fall_with_its_coordinate_and_be_that_of_some_entries() -> None:
    """Two effects of scale e^v0, which is small, and two of precision e^v1; m is their mean."""
    places = {"m": slice(0, 1), "v": slice(1, 3), "effect": slice(3, 7)}

    def values(z: np.ndarray) -> dict[str, np.ndarray]:
        scales = np.exp(z[:, [1, 1, 2, 2]] * [1.0, 1.0, -0.5, -0.5])
        return {"m": z[:, :1], "v": z[:, 1:3], "effect": z[:, :1] - scales * z[:, 3:]}

    def there(found: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([found[name] for name in places], axis=1)

    def none(_: np.ndarray) -> Any:
        raise AssertionError

    own = {"m": places["m"], "v": places["v"], "effect_decentered": places["effect"]}
    written = problem(none, places, maps=(none, there))
    other = problem(none, own, latents={"effect": "effect_decentered"}, values=values)
    mode = Mode(np.array([0.3, -8.0, 0.4, 0.1, -0.2, 0.3, 0.1]), np.eye(7), 0.0, 0.0)
    assert scales_of(written, other, mode) == {"v": [0, 1]}


@pytest.mark.parametrize("error", [0.05, 10.0])
def test_a_program_with_one_scale_is_not_searched_as_written(error: float) -> None:
    """Neither where data tell little of entries, nor where they tell much, as there is a grid."""
    written, other = groups(Y, np.full(4, error))

    def never(_: np.ndarray) -> Any:
        raise AssertionError

    def value(z: np.ndarray) -> np.ndarray:
        m, u, x = z[:, :1], z[:, 1:2], z[:, 2:]
        told = norm.logpdf(x, m, np.exp(u)) + norm.logpdf(Y, x, error)
        return told.sum(1) + norm.logpdf(z[:, 0], 0.0, WIDE) + norm.logpdf(z[:, 1], 0.0, 1.5)

    written = replace(written, evaluate=by_differences(value), starting_points=never)
    other = replace(other, name="non-centred")
    meter, dropped = Meter(100_000, math.inf), list[str]()
    found, _ = best_written(written, iter([other]), np.random.default_rng(0), meter, dropped)
    assert found.name == "non-centred" and found.scales == (1,) and not dropped, dropped


@pytest.mark.parametrize("scale", [1e-3, 0.4, 30.0])
def test_standardised_entries_are_standard_normal_given_their_data(scale: float) -> None:
    """Prior times data's factor is the standard Normal's density, up to the entry's own constant.

    And the prior of the entry is that of the value which it stands for.
    """
    loc, precision, pull = 0.7, 6.0, -3.0
    of_entry, width, mean, deviation = standardised(loc, scale, precision, pull)
    entries = np.linspace(-3.0, 3.0, 7)
    values = mean + deviation * entries
    prior = norm.logpdf(entries, of_entry, width)
    np.testing.assert_allclose(prior, norm.logpdf(values, loc, scale) + np.log(deviation))
    posterior = prior + pull * values - 0.5 * precision * values**2
    np.testing.assert_allclose(np.diff(posterior), np.diff(norm.logpdf(entries)), rtol=1e-6)


ON_NUMPY = Vectors(object, np, np.linalg.cholesky, np.linalg.solve)


@pytest.mark.parametrize("length", [1, 3])
def test_standardised_vectors_are_standard_normal_given_their_data(length: int) -> None:
    rng = np.random.default_rng(length)
    loc, factor = rng.normal(size=length), np.tril(rng.normal(size=(length, length)))
    np.fill_diagonal(factor, np.exp(rng.normal(size=length)))
    rows, pull = rng.normal(size=(length, length)), rng.normal(size=length)
    data = np.vstack([rows, pull])
    of_entry, root, mean, deviation = standardised_vectors(ON_NUMPY, loc, factor, data)
    precision = rows.T @ rows
    if length == 1:
        expected = standardised(loc[0], factor[0, 0], precision[0, 0], pull[0])
        found = [each.item() for each in (of_entry, root, mean, deviation)]
        np.testing.assert_allclose(found, expected)
    # The deviation is the lower factor of the covariance given both, and so is the prior's root.
    for lower in (root, deviation):
        np.testing.assert_allclose(lower, np.tril(lower), atol=1e-12)
        assert (np.diag(lower) > 0.0).all()
    both = np.linalg.inv(np.linalg.inv(factor @ factor.T) + precision)
    np.testing.assert_allclose(deviation @ deviation.T, both)
    entries = rng.normal(size=(7, length))
    values = mean + entries @ deviation.T
    prior = multivariate_normal.logpdf(entries, of_entry, root @ root.T)
    written = multivariate_normal.logpdf(values, loc, factor @ factor.T)
    np.testing.assert_allclose(prior, written + np.log(np.diag(deviation)).sum())
    told = values @ pull - 0.5 * np.einsum("ni,ij,nj->n", values, precision, values)
    standard = norm.logpdf(entries).sum(1)
    np.testing.assert_allclose(np.diff(prior + told), np.diff(standard))
    # Without data it is the non-centred way, of many vectors as of one.
    many = np.stack([loc, -loc])
    of_entry, root, mean, deviation = standardised_vectors(ON_NUMPY, many, factor, 0.0)
    np.testing.assert_array_equal(of_entry, np.zeros_like(many))
    np.testing.assert_array_equal(root, np.broadcast_to(np.eye(length), root.shape))
    np.testing.assert_array_equal(mean, many)
    np.testing.assert_allclose(deviation, np.broadcast_to(factor, deviation.shape))


def triples(rows: np.ndarray, y: np.ndarray, number: int) -> tuple[Problem, Problem]:
    """Vectors of scales e^u0, e^u1 and 0.8, two correlated by tanh(r); rows (n, 3), y (n,) each."""
    places = {"u": slice(0, 2), "r": slice(2, 3), "x": slice(3, 3 + 3 * number)}

    def effects(z: np.ndarray) -> np.ndarray:
        return 0.4 + z[:, 3:].reshape(len(z), -1, 3) @ factor(z).swapaxes(1, 2)

    def moved(z: np.ndarray) -> np.ndarray:
        told = norm.logpdf(y, effects(z) @ rows.T).sum((1, 2))
        return told + norm.logpdf(z[:, 3:]).sum(1) + norm.logpdf(z[:, :3]).sum(1)

    def values(z: np.ndarray) -> dict[str, np.ndarray]:
        return {"u": z[:, :2], "r": z[:, 2:3], "x": effects(z).reshape(len(z), -1)}

    def there(values: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([values[name] for name in places], axis=1)

    own = {"u": places["u"], "r": places["r"], "x_decentered": places["x"]}
    moves: dict[str, Any] = {"latents": {"x": "x_decentered"}, "lengths": {"x": 3}}
    other = problem(by_differences(moved), own, values=values, **moves)
    other.own.layout.shapes["x_decentered"] = (number, 3)
    return problem(by_differences(moved), places, maps=(values, there)), other


def factor(z: np.ndarray) -> np.ndarray:
    """Roots (S, 3, 3) of the covariances of triples."""
    roots, by = np.zeros((len(z), 3, 3)), np.tanh(z[:, 2])
    roots[:, 0, 0] = np.exp(z[:, 0])
    roots[:, 1, :2] = np.exp(z[:, 1:2]) * np.stack([by, np.sqrt(1.0 - by**2)], 1)
    roots[:, 2] = [0.5, -0.3, 0.5]
    return roots


def test_what_data_tell_of_vectors_is_exact_where_it_is_normal() -> None:
    rng = np.random.default_rng(0)
    rows, y = rng.normal(size=(5, 3)) * [3.0, 1.0, 2.0], rng.normal(size=(2, 5))
    written, other = triples(rows, y, 2)
    mode = Mode(0.3 * rng.normal(size=other.dim), np.eye(other.dim), 0.0, 0.0)
    found = entry_data(written, other, mode, Meter(10_000, 60.0))
    entries = found.entries["x"]
    assert entries.shape == (2, 4, 3)
    roots, precision = entries[:, :3], rows.T @ rows
    expected = np.broadcast_to(precision, (2, 3, 3))
    np.testing.assert_allclose(roots.swapaxes(1, 2) @ roots, expected, rtol=0.01, atol=0.01)
    np.testing.assert_allclose(entries[:, 3], y @ rows, rtol=0.01, atol=0.01)
    # Of the least share that which is told least of along any direction.
    (root,) = factor(mode.mean[None])
    least = np.linalg.eigvalsh(root.T @ precision @ root)[0]
    assert found.least == pytest.approx(least / (1.0 + least), rel=0.01)


@pytest.mark.parametrize("number", [2, 600])
def test_correlations_count_as_scales_where_there_is_room(number: int) -> None:
    written, other = triples(np.eye(3), np.zeros((number, 3)), number)
    mode = Mode(np.append([0.1, -0.2, 0.3], np.zeros(3 * number)), np.ones(other.dim), 0.0, 0.0)
    expected = {"u": [0, 1], **({"r": [0]} if number == 2 else {})}
    assert scales_of(written, other, mode) == expected


def test_data_tell_of_an_entry_what_entries_around_it_leave_open() -> None:
    """Two effects of scale 0.3 around one of scale 1, which is their mean, and a row of each."""
    spread, error = 0.3, 0.2
    rows = np.array([[0.0, 1.0, spread, 0.0], [0.0, 1.0, 0.0, spread]])
    covariance = np.linalg.inv(np.eye(4) + rows.T @ rows / error**2)
    precision = np.linalg.inv(covariance)
    blocks = _told(precision, [(slice(1, 2), 1), (slice(2, 4), 1)])
    found = np.concatenate([each.ravel() for each in blocks])
    of_outer, of_inner = 2.0 / (error**2 + spread**2), (spread / error) ** 2
    np.testing.assert_allclose(found, [of_outer, of_inner, of_inner])
    # Of the two as one vector what they tell together.
    _, (both,) = _told(precision, [(slice(1, 2), 1), (slice(2, 4), 2)])
    np.testing.assert_allclose(both, np.eye(2) * of_inner, atol=1e-9)


def test_moves_of_entries_keep_what_else_the_host_is_told() -> None:
    class Handler:
        def __init__(self, told: Any, shape_params: tuple[str, ...] = ()) -> None:
            self.told, self.shape_params = told, shape_params

    config: dict[str, Any] = {"x": object(), "x_base": Handler(0.0, ("df",)), "y": Handler(0.0)}
    moves = Moves({"x": "x_base_decentered", "y": "y_decentered"}, config, Handler)
    told = {"x": np.array([[0.5, 1.0], [2.0, 3.0]]), "y": np.array([0.25, 1.0])}
    found = moves.given(told)
    assert found.latents == moves.latents and found.config["x"] is config["x"]
    assert found.config["x_base"].told is told["x"]
    assert found.config["x_base"].shape_params == ("df",)
    assert found.config["y"].told is told["y"] and config["y"].told == 0.0
