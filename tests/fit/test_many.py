"""``fit_many``: data sets of one shape, each with a fit of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from ppl_ext.fit.fit import Fit
from ppl_ext.fit.many import Fits, calls_of
from ppl_ext.fit.problem.programs import Programs
from ppl_ext.fit.verdict.verdict import Verdict

X = np.linspace(0.5, 2.0, 12)
#: Three data sets of slopes -1, 0 and 2 as columns.
Y = np.outer(X, [-1.0, 0.0, 2.0]) + 0.5 * np.random.default_rng(0).normal(size=(12, 3))


def slope(backend: Any) -> Any:
    host, dist, array = backend.host, backend.dist, backend.array

    def model(x: Any, y: Any) -> None:
        slope = host.sample("slope", dist.Normal(array(0.0), array(10.0)))
        with host.plate("rows", len(x)):
            host.sample("y", dist.Normal(slope * x, array(0.5)), obs=y)

    return model


def test_each_data_set_has_its_own_posterior(backend: Any) -> None:
    many, options = backend.public.fit_many, {"axis": {"y": 1}, "progress_bar": False}
    model, args = slope(backend), (backend.array(X), backend.array(Y))
    found = many(model, *args, **options) if backend.is_pyro else many(
        backend.key(), model, *args, **options
    )  # fmt: skip
    assert len(found) == 3 and all(each.level == "exact" for each in found.verdicts)
    draws = found.draws["slope"]
    assert draws.shape[0] == 3 and draws.shape[1] >= 400
    precision = 0.01 + (X**2).sum() / 0.25
    means, deviation = X @ Y / 0.25 / precision, precision**-0.5
    # Four errors of 400 effective draws.
    np.testing.assert_allclose(draws.mean(1), means, atol=4.0 * deviation / 20.0)
    np.testing.assert_allclose(draws.std(1), deviation, rtol=4.0 / 800.0**0.5)
    # What is compiled is shared, and random numbers are not.
    targets = {id(each.target) for each in found.fits}
    assert len(targets) == 1
    noise = (draws - draws.mean(1, keepdims=True)) / deviation
    assert abs(np.corrcoef(noise)[0, 1]) < 0.5
    # Evidence is that of each data set.
    covariance = 100.0 * np.outer(X, X) + 0.25 * np.eye(12)
    for column, evidence in zip(Y.T, found.log_evidences, strict=True):
        known = -0.5 * (
            column @ np.linalg.solve(covariance, column)
            + np.linalg.slogdet(2.0 * np.pi * covariance).logabsdet
        )
        assert abs(evidence.value - known) < 4.0 * evidence.error < 0.2


def test_groups_of_other_sizes_are_written_by_their_own_data(backend: Any) -> None:
    """The second data set's rows are of the groups that the first one has none of, and back."""
    host, dist, array = backend.host, backend.dist, backend.array
    generator = np.random.default_rng(0)
    groups = np.stack([np.repeat(np.arange(6), sizes) for sizes in ([80] * 3 + [1] * 3,) * 2])
    groups[1] = 5 - groups[0]
    y = 0.5 * generator.normal(size=6)[groups] + generator.normal(size=groups.shape)

    def model(group: Any, y: Any) -> None:
        mean = host.sample("mean", dist.Normal(array(0.0), array(2.0)))
        scale = host.sample("scale", dist.HalfNormal(array(1.0)))
        with host.plate("groups", 6):
            effect = host.sample("effect", dist.Normal(mean, scale))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(effect[group], array(1.0)), obs=y)

    key = () if backend.is_pyro else (backend.key(),)
    found = backend.public.fit_many(
        *key, model, array(groups), array(y), budget=6_000, progress_bar=False
    )
    for each, sizes in zip(found.fits, ([80] * 3 + [1] * 3, [1] * 3 + [80] * 3), strict=True):
        told = each.climbed.problem.entry_data["effect"]
        np.testing.assert_allclose(told[0], sizes, rtol=0.02)


def test_draws_are_as_many_of_each_as_the_least_has() -> None:
    verdict = Verdict("exact", ())
    one, other = np.arange(6.0), np.arange(4.0)
    found = Fits((Fit({"x": one}, verdict, 1), Fit({"x": other}, verdict, 1)))
    np.testing.assert_array_equal(found.draws["x"], [[0.0, 1.0, 3.0, 4.0], other])
    assert repr(found) == "Fits(2 data sets, 2 trusted)" and found[1].draws["x"] is other


def test_many_fits_in_a_notebook_show_those_first_that_need_a_look() -> None:
    good, bad = Verdict("exact", ()), Verdict("not trusted", ("Chains <disagree>.",))
    fits = tuple(Fit({"x": np.arange(4.0)}, good, 1) for _ in range(30))
    page = Fits((*fits, Fit({"x": np.arange(4.0)}, bad, 1)))._repr_html_()
    assert "Fits(31 data sets, 30 trusted)" in page and "and 11 others" in page
    first = page.index("<td"), page.index("not trusted"), page.index("exact")
    assert first == tuple(sorted(first)) and "Chains &lt;disagree&gt;." in page


def test_arguments_by_data_set() -> None:
    def model(x: Any, y: Any = None, scale: float = 1.0) -> None: ...

    def as_array(value: Any) -> Any:
        return value if isinstance(value, np.ndarray) else None

    (first, _), (_, _) = calls_of(model, (np.eye(2),), {"y": np.ones((2, 3))}, 0, as_array)
    np.testing.assert_array_equal(first[0], [1.0, 0.0])
    assert first[1].shape == (3,)
    calls = calls_of(model, (np.eye(2),), {"y": np.ones((2, 3))}, {"y": 1}, as_array)
    assert len(calls) == 3 and calls[2][0][0].shape == (2, 2)
    for axis, words in (
        (-1, "Expected axis to be an int >= 0"),
        ({"y": 2}, "argument 'y' to be an array with data sets along axis 2, found shape"),
        ({"scale": 0}, "argument 'scale' to be an array .* found none of that name"),
        ({"x": 0, "y": 1}, "one number of data sets, found {'x': 2, 'y': 3}"),
        ({}, "one number of data sets, found no arrays"),
    ):
        with pytest.raises(ArgumentError, match=words):
            calls_of(model, (np.eye(2),), {"y": np.ones((2, 3))}, axis, as_array)


def test_dictionaries_hold_data_sets_as_other_arguments_do() -> None:
    """An array in one that stayed whole would be broadcast over the data sets."""

    def model(rows: Any, y: Any, n: int = 3) -> None: ...

    def as_array(value: Any) -> Any:
        return value if isinstance(value, np.ndarray) else None

    x, y, weights = np.arange(6.0).reshape(2, 3), np.ones((2, 3)), np.arange(3.0)
    *_, (args, _) = calls_of(model, ({"x": x, "more": {"n": 3, "z": -x}}, y), {}, 0, as_array)
    np.testing.assert_array_equal(args[0]["x"], x[1])
    np.testing.assert_array_equal(args[0]["more"]["z"], -x[1])
    assert args[0]["more"]["n"] == 3 and args[1].shape == (3,)
    of_all = {"x": x.T, "weights": weights}
    places = {"rows['x']": 1, "y": 0}
    *_, (args, _) = calls_of(model, (of_all, y), {}, places, as_array)
    np.testing.assert_array_equal(args[0]["x"], x[1])
    assert args[0]["weights"] is weights
    *_, (args, _) = calls_of(model, (of_all, y), {}, {"y": 0}, as_array)
    assert args[0] is of_all
    *_, (args, _) = calls_of(model, ({"x": x}, y), {}, {"rows": 0}, as_array)
    assert args[0]["x"].shape == (3,) and args[1] is y
    with pytest.raises(ArgumentError, match=r"found \{\"rows\['x'\]\": 3, .*'y': 2\}"):
        calls_of(model, (of_all, y), {}, 0, as_array)
    with pytest.raises(ArgumentError, match=r"argument 'rows\['x'\]' in one array, found a list"):
        calls_of(model, ({"x": [x, x]}, y), {}, 0, as_array)


def test_parts_of_a_program_are_made_once() -> None:
    once, made = Programs(), []
    for name in ("a", "b", "a"):
        assert once(name, lambda name=name: made.append(name) or name) == name  # type: ignore[misc]
    assert made == ["a", "b"]
