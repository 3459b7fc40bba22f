"""``fit`` and ``check`` over a loader: the answer of all rows, of which a sample is held."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppl_ext.batches.batch import Batch
from ppl_ext.batches.passes import Passes, total_rows
from ppl_ext.errors import ArgumentError
from ppl_ext.start.rows import PARTS, Rows
from ppl_ext.witnesses.sample import sampled_identities
from tests.backends import use_float64
from tests.batches_support import ROWS, Again, ByEpoch, X, Y, by_argument, by_index
from tests.fit.test_fit import fit_of, numbers

use_float64()

MANY = 2_000
MANY_X = np.random.default_rng(1).normal(size=(MANY, 2))
MANY_Y = MANY_X @ np.array([1.0, -2.0]) + np.random.default_rng(2).normal(size=MANY)
SAMPLE = 400


def many(size: int = 100) -> ByEpoch:
    return ByEpoch(rows=MANY, size=size, x=MANY_X, y=MANY_Y)


def posterior(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the coefficients."""
    covariance = np.linalg.inv(np.eye(2) + x.T @ x)
    return covariance @ x.T @ y, covariance


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search sees a part of the rows."""
    monkeypatch.setattr("ppl_ext.start.search.MOST_ROWS", SAMPLE)


@pytest.fixture
def hurried(sampled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And there is no time for more."""
    monkeypatch.setattr("ppl_ext.fit.verdict.policy.ROW_EVALUATIONS", 10**12)


def check_right(backend: Any, fit: Any, draws: int, tolerance: float = 0.0) -> None:
    """See that draws, worth so many, are the posterior's of all rows."""
    (mean, covariance), found = posterior(MANY_X, MANY_Y), numbers(backend, fit)["w"]
    deviations = np.sqrt(np.diag(covariance))
    off = np.abs(found.mean(0) - mean) / deviations
    assert (off < tolerance + 4.5 / np.sqrt(draws)).all(), off
    ratio = found.std(0) / deviations
    assert (np.abs(ratio - 1.0) < tolerance + 4.5 / np.sqrt(2 * draws)).all(), ratio


# -- fit ---------------------------------------------------------------------------------------


def test_few_rows_are_held(backend: Any) -> None:
    fit = fit_of(backend, by_argument(backend), batches=Again(size=10), exact=False)
    assert fit.verdict.level == "corrected"
    mean, covariance = posterior(X, Y)
    error = np.abs(numbers(backend, fit)["w"].mean(0) - mean)
    assert (error < 4.5 * np.sqrt(np.diag(covariance) / 400)).all()
    assert len(fit.climbed.problem.data.args[0]) == ROWS


def test_many_rows_are_passed_over_where_there_is_time(
    backend: Any, sampled: None, tmp_path: Path
) -> None:
    """The batches of a sample alone have their mode some standard deviations off."""
    model = by_argument(backend, MANY)
    fit = fit_of(backend, model, batches=many(), exact=False)
    assert fit.verdict.level == "corrected"
    assert "all rows" in [stage.name for stage in fit.history]
    assert len(fit.climbed.problem.data.args[0]) == SAMPLE
    check_right(backend, fit, 400)
    # Saved, and read again with another loader of the same rows.
    fit.save(tmp_path / "fit")
    found = backend.public.load_fit(tmp_path / "fit", model, batches=many(50))
    assert found.has_program and str(found.verdict) == str(fit.verdict)
    other = Again(size=10)
    with pytest.raises(ArgumentError, match="other numbers in its arguments"):
        backend.public.load_fit(tmp_path / "fit", by_argument(backend), batches=other)


@pytest.mark.slow
def test_chains_pass_over_a_loader(backend: Any, sampled: None, tmp_path: Path) -> None:
    model, loader = by_argument(backend, MANY), Again(MANY, 500, x=MANY_X, y=MANY_Y)
    fit = fit_of(backend, model, batches=loader)
    assert fit.verdict.level == "exact"
    check_right(backend, fit, 400)
    fit.save(tmp_path / "fit")
    loaded = backend.public.load_fit(tmp_path / "fit", model, batches=loader)
    fit.more(16)
    np.testing.assert_array_equal(
        numbers(backend, loaded.more(16))["w"], numbers(backend, fit)["w"]
    )


def test_more_rows_than_there_is_time_for_are_fitted_by_an_engine(
    backend: Any, hurried: None
) -> None:
    fit = fit_of(backend, by_argument(backend, MANY), batches=many(), seconds=30.0)
    assert fit.verdict.level == "approximate" and not fit.verdict.trusted
    text = str(fit.verdict)
    assert "ProximalScoreVI with AutoMultivariateNormal" in text
    assert "Only batches of the rows were looked at" in text and "Chains were not run" in text
    check_right(backend, fit, 400, 0.3)


def test_an_engine_of_ones_own_takes_the_loader(backend: Any, hurried: None) -> None:
    model, seeds = by_argument(backend, MANY), {"seed": 0} if backend.is_pyro else {}
    engine = backend.public.SVGD(model, backend.adam(0.01), num_particles=20, **seeds)
    fit = fit_of(backend, model, batches=many(), engine=engine, seconds=1.5)
    assert "SVGD" in fit.verdict.reasons[0] and len(numbers(backend, fit)["w"]) == 20


def test_keywords_reach_every_evaluation_and_another_plate_does_not_count_rows(
    backend: Any, sampled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any, scale: float) -> None:
        with host.plate("columns", 2):
            w = host.sample("w", dist.Normal(backend.xp.zeros(()), 1.0))
        with host.plate("rows", MANY, subsample_size=len(x)):
            host.sample("y", dist.Normal(x @ w, scale), obs=y)

    covariance = np.linalg.inv(np.eye(2) + MANY_X.T @ MANY_X / 4.0)
    mean, deviations = covariance @ MANY_X.T @ MANY_Y / 4.0, np.sqrt(np.diag(covariance))
    loader = Again(MANY, 100, named=True, x=MANY_X, y=MANY_Y)
    fit = fit_of(backend, model, batches=loader, exact=False, scale=2.0)
    assert fit.verdict.level == "corrected"
    found = numbers(backend, fit)["w"]
    assert (np.abs(found.mean(0) - mean) < 4.5 * deviations / np.sqrt(400)).all()
    assert (np.abs(found.std(0) / deviations - 1.0) < 4.5 / np.sqrt(800)).all()
    monkeypatch.setattr("ppl_ext.fit.verdict.policy.ROW_EVALUATIONS", 10**12)
    fit = fit_of(backend, model, batches=loader, scale=2.0, seconds=1.5)
    assert "ProximalScoreVI" in fit.verdict.reasons[0]


def test_what_has_no_meaning_is_refused(
    backend: Any, sampled: None, caplog: pytest.LogCaptureFixture
) -> None:
    x, y = backend.arrays((X, Y))
    with pytest.raises(ArgumentError, match="either batches or the model's arguments"):
        fit_of(backend, by_argument(backend), x, y, batches=Again())
    with pytest.raises(ArgumentError, match="again and again"):
        fit_of(backend, by_argument(backend), batches=iter(Again()))

    def unscaled(x: Any, y: Any) -> None:
        w = backend.host.sample("w", backend.dist.Normal(backend.xp.zeros(2), 1.0).to_event(1))
        backend.host.sample("y", backend.dist.Normal(x @ w, 1.0).to_event(1), obs=y)

    with pytest.raises(ArgumentError, match="each would count as all the data"):
        fit_of(backend, unscaled, batches=many())
    with pytest.raises(ArgumentError, match="looks up its rows"):
        fit_of(backend, by_index(backend), batches=Again())
    # A loader that leaves rows out is found out by the first pass.
    with pytest.raises(ArgumentError, match="found 2000 rows"):
        fit_of(backend, by_argument(backend, MANY + 7), batches=many(), exact=False)
    assert "found 2000 rows" not in caplog.text


def test_a_sample_is_of_the_first_batches() -> None:
    passes = Passes(Again(size=10))
    found = passes.sample(np.asarray, 25)
    assert not found.is_all and found.batch.rows == 30
    np.testing.assert_array_equal(found.batch.args[0], X[:30])
    assert [part.rows for part in found.in_parts(4)] == [7] * 4
    np.testing.assert_array_equal(found.in_parts(4)[1].args[1], Y[7:14])
    assert passes.sample(np.asarray, 100).is_all and passes.sample(np.asarray, ROWS).is_all


def test_rows_are_counted_by_the_plate_that_a_batch_is_part_of() -> None:
    def plate(size: int, subsample_size: int) -> Any:
        return SimpleNamespace(size=size, subsample_size=subsample_size)

    assert total_rows({"rows": plate(48, 8), "weeks": plate(52, 4)}, 8) == 48
    assert total_rows({"weeks": plate(52, 4)}, 8) == 52
    assert total_rows({}, 8) is None
    with pytest.raises(ArgumentError, match="one plate that counts the rows"):
        total_rows({"rows": plate(48, 8), "cases": plate(60, 8)}, 8)


def test_a_sample_is_not_larger_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rows are large it has fewer, and a batch that is too large is alone."""
    loader = Again(size=10)
    most = 3 * (X[:10].nbytes + Y[:10].nbytes)
    monkeypatch.setattr("ppl_ext.batches.passes.MOST_BYTES", most)
    found = Passes(loader).sample(np.asarray, ROWS)
    assert found.batch.rows == 30 and not found.is_all
    monkeypatch.setattr("ppl_ext.batches.passes.MOST_BYTES", 1)
    assert Passes(loader).sample(np.asarray, ROWS).batch.rows == 10


def test_what_all_rows_of_a_loader_cost() -> None:
    """Their evaluation, and reading them."""
    sample = Passes(Again(size=10)).sample(np.asarray, 32)
    asked = list[int | None]()

    def pieces(batch: Batch | None) -> Any:
        asked.append(None if batch is None else batch.rows)
        return lambda positions: (np.zeros(len(positions)), positions)

    rows = Rows.of_loader(replace(sample, seconds=0.5), ROWS, pieces)
    assert rows.times == ROWS / 40 and rows.reading == 0.5 * ROWS and rows.number == 40
    assert asked == [40, None]
    assert len(rows.parts()) == PARTS and asked[2:] == [40 // PARTS] * PARTS


# -- check -------------------------------------------------------------------------------------


def checked(backend: Any, draws: Any, model: Any, **options: Any) -> Any:
    key = () if backend.is_pyro else (backend.key(6),)
    return backend.public.check(*key, draws, model, progress_bar=False, **options)


def planted(shift: float = 0.0, scale: float = 1.0, number: int = 1_000) -> dict[str, np.ndarray]:
    """Draws of the posterior of all rows, with a fault in the first coefficient."""
    mean, covariance = posterior(MANY_X, MANY_Y)
    found = np.random.default_rng(3).normal(size=(number, 2)) @ np.linalg.cholesky(covariance).T
    found *= [scale, 1.0]
    return {"w": mean + found + shift * np.sqrt(np.diag(covariance)) * [1.0, 0.0]}


def test_passes_tell_right_draws_from_wrong_ones(backend: Any, sampled: None) -> None:
    model = by_argument(backend, MANY)
    found = checked(backend, planted(shift=0.4), model, batches=many(500))
    assert found.level == "not trusted" and "mean" in found.reasons[0]
    found = checked(backend, planted(), model, batches=many(500), budget=800)
    assert found.level == "approximate", str(found)
    assert any(reason.startswith("Stein's identities") for reason in found.reasons)


def test_a_sample_of_rows_tells_of_spreads(backend: Any, hurried: None) -> None:
    model = by_argument(backend, MANY)
    right = checked(backend, planted(), model, batches=many())
    assert right.level == "approximate" and not right.trusted
    assert "Only batches of the rows were looked at" in right.reasons[0]
    (told,) = [reason for reason in right.reasons if reason.startswith("By 400 rows")]
    assert "sd take all rows" in told
    narrow = checked(backend, planted(scale=0.6), model, batches=many())
    assert narrow.level == "not trusted" and narrow.reasons[0].startswith("By 400 rows")
    spent = checked(backend, planted(), model, batches=many(), seconds=1e-3)
    assert "of the 0 s that seconds= allows" in spent.reasons[0]
    assert "too dear, even by a sample of the rows" in str(spent)
    few = checked(backend, planted(number=4), model, batches=many())
    assert "too few to tell" in str(few)


def test_an_engine_that_ran_on_batches_is_checked_on_them(backend: Any, sampled: None) -> None:
    """Importance ratios of its guide are those of all rows."""
    model, seeds = by_argument(backend, MANY), {"seed": 0} if backend.is_pyro else {}
    engine = backend.public.ProximalScoreVI(
        model, backend.autoguide.AutoMultivariateNormal, **seeds
    )
    key = () if backend.is_pyro else (backend.key(),)
    run = engine.run(*key, 60, batches=many(), progress_bar=False)
    held = engine if backend.is_pyro else (engine, run)
    found = checked(backend, held, model, batches=many(500), budget=800)
    assert any("Pareto k-hat" in reason for reason in found.reasons)


def part_of_a_normal(noise: np.ndarray, curvature: float) -> Any:
    return lambda x: (np.zeros(len(x)), noise - curvature * x)


def test_identities_by_a_sample_know_their_error() -> None:
    """Right draws are seldom refused, with parts that differ; narrow ones always."""
    generator, refused = np.random.default_rng(0), 0
    for _ in range(40):
        z = generator.normal(size=(500, 3))
        noise = 4.0 * generator.normal(size=(16, 3))
        curvature = 1.0 + 0.2 * generator.normal(size=16)
        parts = [part_of_a_normal(*each) for each in zip(noise, curvature, strict=True)]
        found = sampled_identities(z, parts, 160, list("abc"))
        assert found is not None
        refused += found.is_off
        # The error of the mean score is that of 16 parts.
        assert 0.3 < found.stein.mean_error.mean() < 2.0
        assert found.stein.least_shift > 4.0 * found.stein.mean_error.max()
        narrow = sampled_identities(0.6 * z, parts, 160, list("abc"))
        assert narrow is not None and narrow.is_off
    assert refused == 0
