"""Rows that ``sample(..., obs_mask=)`` leaves out: latent, with a density of their own."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from tests.fit.test_fit import fit_of, numbers

Y = np.array([0.6, 0.0, 1.7, -0.4], np.float32)
SEEN = np.array([True, False, True, True])


def model_of(backend: Any, scale: float | None = 1.0, by_hand: bool = False) -> Any:
    """Normal rows of unknown mean; of unknown scale too where ``scale`` is None."""
    host, dist = backend.host, backend.dist

    def model(y: Any, seen: Any) -> None:
        loc = host.sample("loc", dist.Normal(0.0, 2.0))
        s = host.sample("s", dist.HalfNormal(2.0)) if scale is None else scale
        with host.plate("rows", len(y)):
            if not by_hand:
                host.sample("y", dist.Normal(loc, s), obs=y, obs_mask=seen)
                return
            with backend.handlers.mask(mask=seen):
                host.sample("y_observed", dist.Normal(loc, s), obs=y)
            host.sample("y_unobserved", dist.Normal(loc, s))

    return model


def arrays(backend: Any) -> tuple[Any, Any]:
    return backend.array(Y), backend.array(SEEN)


def test_the_density_is_that_of_rows_without_a_mask(backend: Any) -> None:
    positions = backend.array(np.random.default_rng(0).normal(size=(3, 6)))
    found = []
    for by_hand in (False, True):
        target, data = backend.target(model_of(backend, None, by_hand), arrays(backend))
        assert target.layout.names == ("loc", "s", "y_unobserved")
        found.append(backend.numpy(target.log_density(positions, data)))
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.parametrize("kind", ["positive", "share", "simplex"])
def test_rows_within_bounds_have_their_own_jacobian(backend: Any, kind: str) -> None:
    """At all rows: where it is masked the unseen copy of a seen row has a flat logarithm."""
    host, dist = backend.host, backend.dist
    shares = np.array([[0.2, 0.3, 0.5]] * 4, np.float32)
    rows = {"positive": np.abs(Y) + 0.1, "share": np.abs(Y) / 2.0 + 0.05, "simplex": shares}[kind]
    ones = backend.array(np.ones(3, np.float32))

    def model(y: Any, seen: Any, by_hand: bool) -> None:
        rate = host.sample("rate", dist.Gamma(2.0, 1.0))
        of = {
            "positive": lambda: dist.Exponential(rate),
            "share": lambda: dist.Beta(rate, 1.0),
            "simplex": lambda: dist.Dirichlet(rate * ones),
        }[kind]()
        with host.plate("rows", len(y)):
            if not by_hand:
                host.sample("y", of, obs=y, obs_mask=seen)
                return
            with backend.handlers.mask(mask=seen):
                host.sample("y_observed", of, obs=y)
            host.sample("y_unobserved", of)

    found, positions = [], None
    for by_hand in (False, True):
        target, data = backend.target(model, (backend.array(rows), backend.array(SEEN), by_hand))
        if positions is None:
            drawn = np.random.default_rng(0).normal(size=(3, target.dim))
            positions = backend.array(drawn)
        found.append(backend.numpy(target.log_density(positions, data)))
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_counts_that_are_missing_are_refused_in_words_that_help(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def counts(y: Any, seen: Any, by_mask: bool) -> None:
        rate = host.sample("rate", dist.Gamma(2.0, 1.0))
        with host.plate("rows", len(y)):
            if not by_mask:
                host.sample("y", dist.Poisson(rate), obs=y, obs_mask=seen)
                return
            with backend.handlers.mask(mask=seen):  # as the message says
                host.sample("y", dist.Poisson(rate), obs=y)

    y = backend.array(np.array([3.0, 0.0, 1.0, 2.0], np.float32))
    with pytest.raises(backend.public.ModelCheckError, match="rows that are seen alone"):
        backend.target(counts, (y, backend.array(SEEN), False))
    assert backend.target(counts, (y, backend.array(SEEN), True))[0].dim == 1


def test_rows_written_non_centred_have_no_mask_either(backend: Any) -> None:
    # At location 0 and scale 1 both ways are one density.
    positions = np.random.default_rng(0).normal(size=(3, 6))
    positions[:, :2] = 0.0
    reparam = importlib.import_module(f"{backend.name}.infer.reparam").LocScaleReparam
    model = model_of(backend, None)
    way = backend.handlers.reparam(model, config={"y_unobserved": reparam(0.0)})
    target, data = backend.target(model, arrays(backend))
    other, _ = backend.target(way, arrays(backend))
    assert other.layout.names == ("loc", "s", "y_unobserved_decentered")
    both = [
        backend.numpy(each.log_density(backend.array(positions), data)) for each in (target, other)
    ]
    np.testing.assert_allclose(*both, rtol=1e-5)


@pytest.mark.parametrize("engine", ["fit", "ProximalScoreVI"])
def test_the_posterior_is_that_of_the_rows_that_are_seen(backend: Any, engine: str) -> None:
    model, args = model_of(backend), arrays(backend)
    if engine == "fit":
        fit = fit_of(backend, model, *args)
        assert fit.verdict.level == "exact"
        draws, number = numbers(backend, fit), 400
        named = backend.public.to_arviz(fit, *args)
        assert {"loc", "y_unobserved", "y"} == set(named["posterior"].data_vars)
        assert named["posterior"]["y"].dims == ("chain", "draw", "rows")
        assert set(named["observed_data"].data_vars) == {"y_observed"}
    else:
        guide = backend.autoguide.AutoMultivariateNormal(model)
        draws, number = (
            backend.fit(engine, model, guide, steps=50, args=args, draws=2000).samples,
            2000,
        )
    precision = 0.25 + SEEN.sum()
    mean, deviation = Y[SEEN].sum() / precision, precision**-0.5
    # Four errors of so many draws; a fit asks for 400.
    error = 4.0 / number**0.5
    assert abs(draws["loc"].mean() - mean) < error * deviation
    assert draws["loc"].std() == pytest.approx(deviation, rel=error)
    missing, row = draws["y_unobserved"], (1.0 + deviation**2) ** 0.5
    assert np.abs(missing.mean(0) - mean).max() < 1.3 * error * row
    np.testing.assert_allclose(missing.std(0), row, rtol=1.3 * error)


@pytest.mark.parametrize("kind", ["real", "positive", "share", "simplex", "counts"])
@pytest.mark.parametrize("hidden", [np.nan, -999.0])
def test_what_hidden_rows_hold_does_not_matter(backend: Any, kind: str, hidden: float) -> None:
    """Missing values stand in data as NaN or as a number that means it."""
    host, dist = backend.host, backend.dist
    shares = np.array([[0.2, 0.3, 0.5]] * 4, np.float32)
    rows = {
        "real": Y,
        "positive": np.abs(Y) + 0.1,
        "share": np.abs(Y) / 2.0 + 0.05,
        "simplex": shares,
        "counts": np.array([1.0, 0.0, 1.0, 1.0], np.float32),
    }[kind]
    ones = backend.array(np.ones(3, np.float32))

    def model(y: Any, seen: Any) -> None:
        rate = host.sample("rate", dist.Beta(2.0, 2.0))
        of = {
            "real": lambda: dist.Normal(rate, 1.0),
            "positive": lambda: dist.Exponential(rate),
            "share": lambda: dist.Beta(rate, 1.0),
            "simplex": lambda: dist.Dirichlet(rate * ones),
            "counts": lambda: dist.Bernoulli(rate),
        }[kind]()
        with host.plate("rows", len(y)):
            host.sample("y", of, obs=y, obs_mask=seen)

    found, positions = [], None
    for value in (None, hidden):
        given = rows.copy()
        if value is not None:
            given[~SEEN] = value
        target, data = backend.target(model, (backend.array(given), backend.array(SEEN)))
        if positions is None:
            positions = backend.array(np.random.default_rng(0).normal(size=(3, target.dim)))
        evaluated = target.full_score(positions, data)
        found.append([backend.numpy(target.log_density(positions, data)), evaluated.score])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(backend.numpy(one), backend.numpy(other), rtol=1e-5)
