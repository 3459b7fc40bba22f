"""``fit.refit``: other arguments from what a fit knows, or from anew where it knows too little."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from ppl_ext.fit.after import refit
from ppl_ext.statistics.effective import effective_number
from tests.fit.test_fit import fit_of, numbers

ROWS = 2.0 + 0.8 * np.random.default_rng(0).normal(size=42)


def conjugate(backend: Any) -> Any:
    """A mean with a prior N(0, 10^2) and rows of deviation .8."""
    host, dist, array = backend.host, backend.dist, backend.array

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(array(0.0), array(10.0)))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mean, array(0.8)), obs=y)

    return model


def moments(y: np.ndarray) -> tuple[float, float]:
    precision = 0.01 + len(y) / 0.64
    return y.sum() / 0.64 / precision, precision**-0.5


def check_mean(backend: Any, fit: Any, y: np.ndarray) -> None:
    """Mean within four errors of 300 draws, the least that a refit has; deviation likewise."""
    (draws,), (mean, deviation) = numbers(backend, fit).values(), moments(y)
    assert abs(draws.mean() - mean) < 4.0 * deviation / 300.0**0.5
    assert draws.std() == pytest.approx(deviation, rel=4.0 / 600.0**0.5)


def test_a_few_more_rows_reweight_the_draws(backend: Any, tmp_path: Any) -> None:
    model, array = conjugate(backend), backend.array
    before = fit_of(backend, model, array(ROWS[:40]))
    untouched = numbers(backend, before)
    fit = before.refit(array(ROWS), progress_bar=False)
    assert fit.verdict.level == "corrected" and fit.verdict.trusted
    assert fit.verdict.reasons[0].startswith("Draws of the fit before were reweighted")
    assert [stage.name for stage in fit.history] == ["refit"]
    assert fit.verdict.evaluations < 800
    assert fit.verdict.by_site["mean"].ess_bulk > 300
    check_mean(backend, fit, ROWS)
    with pytest.raises(ArgumentError, match="Give refit a larger target_ess"):
        fit.more(100)
    np.testing.assert_array_equal(numbers(backend, before)["mean"], untouched["mean"])
    # Its evidence is of the new rows, and it can be refitted in its turn, also from a file.
    covariance = 100.0 + 0.64 * np.eye(len(ROWS))
    known = -0.5 * (
        ROWS @ np.linalg.solve(covariance, ROWS)
        + np.linalg.slogdet(2.0 * np.pi * covariance).logabsdet
    )
    found = fit.log_evidence
    assert abs(found.value - known) < 4.0 * found.error < 0.2
    check_mean(backend, fit.refit(array(ROWS[:38]), progress_bar=False), ROWS[:38])
    fit.save(tmp_path / "fit")
    loaded = backend.public.load_fit(tmp_path / "fit", model, array(ROWS))
    again = loaded.refit(array(ROWS[:41]), progress_bar=False)
    assert again.verdict.level == "corrected"
    check_mean(backend, again, ROWS[:41])


def test_a_refit_says_that_its_draws_are_fewer_than_were_asked_for(backend: Any) -> None:
    rows = backend.array(ROWS)
    before = fit_of(backend, conjugate(backend), rows)
    worth = float(effective_number(before.climbed.positions).min())
    told = f"worth about {worth:.0f} independent draws, fewer than the {1.2 * worth:.0f} that"
    fit = before.refit(rows, target_ess=1.2 * worth, progress_bar=False)
    assert fit.verdict.level == "corrected" and told in fit.verdict.reasons[0]
    for nearly in (0.9, 1.03):
        fit = before.refit(rows, target_ess=nearly * worth, progress_bar=False)
        assert "worth about" not in fit.verdict.reasons[0]


def test_a_shift_moves_an_approximation(backend: Any, monkeypatch: Any) -> None:
    """By two standard deviations and a half, with rows that differ by more than they should."""
    model, array = conjugate(backend), backend.array
    before = fit_of(backend, model, array(ROWS))
    monkeypatch.setattr(refit, "CHEAP", 0)  # as if it had been dear
    shifted = ROWS + 2.5 * moments(ROWS)[1]
    fit = before.refit(array(shifted), progress_bar=False)
    assert "of an approximation, made of the fit before" in fit.verdict.reasons[0]
    assert fit.verdict.level == "corrected"
    assert fit.verdict.evaluations < 2_500
    check_mean(backend, fit, shifted)


def test_weights_that_turn_bad_late_lead_to_an_approximation(
    backend: Any, monkeypatch: Any
) -> None:
    """All draws that a proposal is made of have been looked at by then."""
    model, array = conjugate(backend), backend.array
    before = fit_of(backend, model, array(ROWS))
    monkeypatch.setattr(refit, "CHEAP", 0)  # as if it had been dear
    monkeypatch.setattr(refit, "FIRST", refit.MOST)
    shifted = ROWS + 2.0 * moments(ROWS)[1]
    fit = before.refit(array(shifted), progress_bar=False)
    assert "of an approximation, made of the fit before" in fit.verdict.reasons[0]
    check_mean(backend, fit, shifted)


def test_a_large_shift_is_fitted_from_anew_and_said(backend: Any) -> None:
    model, array = conjugate(backend), backend.array
    before = fit_of(backend, model, array(ROWS))
    fit = before.refit(array(ROWS + 50.0), progress_bar=False)
    assert fit.verdict.level == "exact" and fit.num_chains > 1
    assert any(
        each.startswith("Fitted from anew, without the fit before: its draws are too far away")
        for each in fit.verdict.reasons
    )
    assert fit.history[0].name == "refit" and fit.history[0].note.startswith("from anew: ")
    assert [stage.name for stage in fit.history].count("corrected draws") == 1
    check_mean(backend, fit, ROWS + 50.0)


def test_a_density_that_no_longer_falls_far_out_is_fitted_from_anew(backend: Any) -> None:
    host, dist, array = backend.host, backend.dist, backend.array

    def model(weight: Any) -> None:
        mean = host.sample("mean", dist.Normal(array(0.0), array(1.0)).mask(False))
        near = backend.xp.exp(-0.5 * (mean - 1.0) ** 2)
        host.factor("data", 20.0 * near - weight * mean**2)

    before = fit_of(backend, model, array(1e-3))
    assert before.verdict.level == "exact"
    fit = before.refit(array(0.0), progress_bar=False)
    assert fit.verdict.level == "not trusted"
    assert "density does not fall with 'mean'" in str(fit.verdict)


def test_a_mode_that_draws_lack_is_found(backend: Any) -> None:
    """Weights of two modes are an argument: draws of one look right for any."""
    host, dist, array, xp = backend.host, backend.dist, backend.array, backend.xp

    def model(share: Any) -> None:
        x = host.sample("x", dist.Normal(array(0.0), array(10.0)))
        left, right = (dist.Normal(array(m), array(0.5)).log_prob(x) for m in (-4.0, 4.0))
        host.factor("modes", xp.logaddexp(xp.log1p(-share) + left, xp.log(share) + right))

    before = fit_of(backend, model, array(1e-7))
    assert numbers(backend, before)["x"].max() < 0.0
    fit = before.refit(array(0.4), progress_bar=False)
    assert fit.verdict.level == "exact"
    assert any("a mode was found that its draws do not have" in r for r in fit.verdict.reasons)
    share = (numbers(backend, fit)["x"] > 0.0).mean()
    assert abs(share - 0.4) < 4.0 * (0.24 / 400.0) ** 0.5


def test_what_a_fit_does_not_know_is_fitted_from_anew(backend: Any) -> None:
    """Other latent sites, or a fit that is not trusted."""
    host, dist, array = backend.host, backend.dist, backend.array

    def model(y: Any) -> None:
        with host.plate("rows", len(y)):
            level = host.sample("level", dist.Normal(array(0.0), array(1.0)))
            host.sample("y", dist.Normal(level, array(1.0)), obs=y)

    fit = fit_of(backend, model, array(ROWS[:2])).refit(array(ROWS[:3]), progress_bar=False)
    assert any("other latent sites with these arguments" in r for r in fit.verdict.reasons)
    assert fit.verdict.trusted and numbers(backend, fit)["level"].shape[1:] == (3,)
    poor = fit_of(backend, model, array(ROWS[:2]), budget=300)
    fit = poor.refit(array(ROWS[:2]), progress_bar=False)
    assert any("its draws are not trusted" in r for r in fit.verdict.reasons)
    assert fit.verdict.trusted


def test_a_refit_needs_the_program(backend: Any, tmp_path: Any) -> None:
    model, array = conjugate(backend), backend.array
    fit = fit_of(backend, model, array(ROWS), exact=False)
    fit.save(tmp_path / "fit")
    with pytest.raises(ArgumentError, match="loaded without"):
        backend.public.load_fit(tmp_path / "fit").refit(array(ROWS))
    with pytest.raises(ArgumentError, match="do not fit the model"):
        fit.refit(array(ROWS), 3)
    batches = backend.public.fit
    given = {"batches": [(array(ROWS),)], "progress_bar": False, "exact": False}
    by_loader = (
        batches(model, **given) if backend.is_pyro else batches(backend.key(), model, **given)
    )
    with pytest.raises(ArgumentError, match="one of a loader or an engine"):
        by_loader.refit(array(ROWS))
