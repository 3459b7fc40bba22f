"""``fit`` on programs, in both packages: the right answer, or a clear no."""

from __future__ import annotations

import importlib
import math
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import halfcauchy, halfnorm, multivariate_normal

from ppl_ext.errors import ArgumentError
from ppl_ext.fit.fit import Fit
from ppl_ext.fit.ladder.chain_figures import flat_far_out
from ppl_ext.fit.verdict.verdict import Verdict
from ppl_ext.running import state_files
from ppl_ext.start import search
from ppl_ext.start.search import InPieces
from tests.backends import from_zoo
from tests.engine_support import rewritten
from tests.stein_support import check_moments


def fit_of(backend: Any, model: Any, *args: Any, seed: int = 0, **options: Any) -> Any:
    """The fit of a program."""
    options = {"progress_bar": False, **options}
    if backend.is_pyro:
        return backend.public.fit(model, *args, seed=seed, **options)
    return backend.public.fit(backend.key(seed), model, *args, **options)


def numbers(backend: Any, fit: Any) -> dict[str, np.ndarray]:
    return {name: backend.numpy(value) for name, value in fit.draws.items()}


def shares_of_scale(logs: np.ndarray, y: np.ndarray, shared: np.ndarray, prior: Any) -> np.ndarray:
    """Distribution function of the scale of groups at its logarithms, by quadrature.

    Rows y are Normal given the scale: ``shared`` is their covariance beside its square.
    """
    terms = np.array(
        [
            multivariate_normal.logpdf(y, cov=shared + np.exp(2.0 * log) * np.eye(len(y)))
            + prior.logpdf(np.exp(log))
            + log
            for log in logs
        ]
    )
    shares = np.cumsum(np.exp(terms - terms.max()))
    return np.asarray(shares / shares[-1])


def test_fewer_draws_of_a_fit_are_as_many_of_each_chain() -> None:
    draws = np.arange(12.0).reshape(4, 3).ravel()  # of four chains, one after another
    fit = Fit({"x": draws, "w": np.stack([draws, -draws], -1)}, Verdict("exact", ()), 4)
    found = fit.get_samples(num_samples=4)
    np.testing.assert_array_equal(found["x"], [1.0, 4.0, 7.0, 10.0])
    np.testing.assert_array_equal(found["w"][:, 1], -found["x"])
    np.testing.assert_array_equal(fit.get_samples(num_samples=12)["x"], draws)
    # Other numbers are as many of each chain as can be.
    np.testing.assert_array_equal(fit.get_samples(num_samples=3)["x"], draws[[2, 6, 10]])
    assert len(np.unique(fit.get_samples(num_samples=11)["x"])) == 11
    with pytest.raises(ArgumentError, match="at most 12, all draws that there are, found 16"):
        fit.get_samples(num_samples=16)
    # As of the hosts' MCMC, an axis of chains in front, with as many of each.
    found = fit.get_samples(group_by_chain=True)
    assert found["w"].shape == (4, 3, 2)
    np.testing.assert_array_equal(found["x"], draws.reshape(4, 3))
    few = fit.get_samples(num_samples=3, group_by_chain=True)["x"]
    np.testing.assert_array_equal(few, [[1.0], [4.0], [7.0], [10.0]])
    # Without names, as NumPyro's and Pyro's ``MCMC`` take them.
    np.testing.assert_array_equal(fit.get_samples(True)["x"], found["x"])
    np.testing.assert_array_equal(fit.get_samples(3, True)["x"], few)


def test_a_normal_posterior_is_exact(backend: Any, tmp_path: Path) -> None:
    model, args, _ = from_zoo(backend, "conjugate_normal")
    fit = fit_of(backend, model, *args)
    assert fit.verdict.level == "exact" and fit.verdict.trusted
    check_moments("conjugate_normal", numbers(backend, fit), 0.2, 0.1)
    assert fit.verdict.evaluations < 15_000 and fit.history == fit.verdict.cost
    text = str(fit.verdict)
    assert text.startswith("exact: 16 chains agree") and "correcting draws" in text
    assert all(name in text for name in fit.draws)
    # Saved and read again: draws and verdict, without the program.
    fit.save(tmp_path / "fit")
    loaded = backend.public.load_fit(tmp_path / "fit")
    assert str(loaded.verdict) == text
    for name, value in numbers(backend, fit).items():
        np.testing.assert_array_equal(loaded.draws[name], value)
    with pytest.raises(backend.public.ArgumentError, match="loaded without"):
        loaded.more(10)
    # What was read without the program is written whole; with it the fit goes on.
    loaded.save(tmp_path / "again")
    resumed = backend.public.load_fit(tmp_path / "again", model, *args)
    assert str(resumed.verdict) == text
    # The number of evaluations says which compiled program makes the next.
    assert resumed.climbed.problem.evaluate.calls == fit.climbed.problem.evaluate.calls
    # More draws come after those that there are, chain by chain.
    before = {
        name: each.reshape(fit.num_chains, -1, *each.shape[1:])
        for name, each in numbers(backend, fit).items()
    }
    assert fit.more(64) is fit
    for name, each in numbers(backend, fit).items():
        after = each.reshape(fit.num_chains, -1, *each.shape[1:])
        length = before[name].shape[1]
        assert after.shape[1] == length + 64 // fit.num_chains
        np.testing.assert_allclose(after[:, :length], before[name], rtol=1e-6)
    assert fit.history[-1].name == "more chains" and fit.history[-1].evaluations > 0
    for name, each in numbers(backend, resumed.more(64)).items():
        np.testing.assert_array_equal(each, numbers(backend, fit)[name])


def test_arviz_has_chains_and_the_verdict(backend: Any) -> None:
    model, args, _ = from_zoo(backend, "conjugate_normal")
    fit = fit_of(backend, model, *args, seed=1)
    tree = backend.public.to_arviz(fit, *args)
    (name, *_), posterior = fit.draws, tree["posterior"]
    assert posterior[name].shape[0] == fit.num_chains
    assert posterior.attrs["verdict"] == "exact" and "R-hat" in posterior.attrs["verdict_reasons"]
    assert "log_likelihood" in tree


@pytest.mark.in_one_package
def test_a_centred_hierarchy_is_fitted_non_centred(backend: Any) -> None:
    """Eight schools as they are often written; the reference is that of posteriordb."""
    host, dist = backend.host, backend.dist
    y = backend.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    error = backend.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 5.0))
        tau = host.sample("tau", dist.HalfCauchy(backend.array(5.0)))
        with host.plate("schools", 8):
            theta = host.sample("theta", dist.Normal(mu, tau))
            host.sample("y", dist.Normal(theta, error), obs=y)

    fit = fit_of(backend, model, y)
    assert fit.verdict.level == "exact"
    assert any("theta non-centred" in reason for reason in fit.verdict.reasons)
    draws = numbers(backend, fit)
    assert set(draws) == {"mu", "tau", "theta"} and draws["theta"].shape[1:] == (8,)
    # Means and standard deviations of the reference; errors of about 400 draws, four of them.
    for name, mean, deviation in (("mu", 4.4, 3.3), ("tau", 3.6, 3.2)):
        assert abs(draws[name].mean() - mean) < 0.2 * deviation
        assert draws[name].std() == pytest.approx(deviation, rel=0.2)
    assert abs(draws["theta"][:, 0].mean() - 6.2) < 0.2 * 5.6


def test_the_neck_of_a_scale_near_zero_is_not_missed(backend: Any) -> None:
    """Three groups, whose scale is below e^-2.66 with 5 % of the mass, by quadrature over it.

    Chains of the program as written do not enter where effects have a width of less than a tenth of
    what they have elsewhere, and agree with each other.
    """
    host, dist = backend.host, backend.dist
    generator = np.random.default_rng([3, 3, 5])
    errors = 0.5 + generator.uniform(size=3)
    y = generator.normal(1.0, 0.3, 3) + errors * generator.normal(size=3)
    logs = np.linspace(-14.0, 12.0, 2001)
    shares = shares_of_scale(logs, y, 4.0 + np.diag(errors**2), halfcauchy())
    neck = float(np.interp(0.05, shares, logs))
    assert neck == pytest.approx(-2.66, abs=0.01)

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 2.0))
        scale = host.sample("scale", dist.HalfCauchy(backend.array(1.0)))
        with host.plate("groups", 3):
            effect = host.sample("effect", dist.Normal(mean, scale))
            host.sample("y", dist.Normal(effect, backend.array(errors)), obs=y)

    fit = fit_of(backend, model, backend.array(y))
    assert fit.verdict.level == "exact"
    assert any("with effect" in reason for reason in fit.verdict.reasons)
    # Of some 400 effective draws 20 are there, with a standard error of 4.5.
    assert np.mean(np.log(numbers(backend, fit)["scale"]) < neck) == pytest.approx(0.05, abs=0.035)


def test_groups_with_many_and_with_few_data_are_as_wide_whatever_the_scale(
    backend: Any, tmp_path: Path
) -> None:
    """Four groups known to 0.05, four to 1.5: neither way to write all of them fits both.

    Non-centred, chains took 140,000 to 300,000 evaluations, as written they missed the low tail.
    Tails of the scale by quadrature. What data tell of the groups is exact, as all is Normal given
    mean and scale. Saved, read again and fitted to other rows, it is written so.
    """
    host, dist = backend.host, backend.dist
    generator = np.random.default_rng(804)
    errors = np.repeat([0.05, 1.5], 4)
    y = 0.7 + 0.5 * generator.normal(size=8) + errors * generator.normal(size=8)

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 5.0))
        scale = host.sample("scale", dist.HalfNormal(backend.array(2.0)))
        with host.plate("groups", 8):
            effect = host.sample("effect", dist.Normal(mean, scale))
            host.sample("y", dist.Normal(effect, backend.array(errors)), obs=y)

    logs = np.linspace(-10.0, 4.0, 2001)
    shares = shares_of_scale(logs, y, 25.0 + np.diag(errors**2), halfnorm(scale=2.0))
    fit = fit_of(backend, model, backend.array(y))
    below = np.interp(np.log(numbers(backend, fit)["scale"]), logs, shares)
    # Of some 400 effective draws 20 are in either tail, with a standard error of 4.5.
    assert np.mean(below < 0.05) == pytest.approx(0.05, abs=0.04)
    assert np.mean(below > 0.95) == pytest.approx(0.05, abs=0.04)
    assert fit.verdict.level == "exact" and fit.verdict.evaluations < 10_000
    assert any("effect partly non-centred" in reason for reason in fit.verdict.reasons)
    told = fit.climbed.problem.entry_data["effect"]
    np.testing.assert_allclose(told[0], errors**-2.0, rtol=0.02)
    np.testing.assert_allclose(told[1], y * errors**-2.0, rtol=0.02, atol=0.1)
    # Jumps to a mixture along the scale are enough; without, chains would have to agree closely.
    assert fit.history[-1].name == "jumps" and np.isinf(fit.climbed.problem.strain)
    fit.save(tmp_path / "fit")
    loaded = backend.public.load_fit(tmp_path / "fit", model, backend.array(y))
    further, again = (numbers(backend, each.more(64))["scale"] for each in (fit, loaded))
    np.testing.assert_array_equal(further, again)
    other = fit.refit(backend.array(y + 0.01))
    assert other.verdict.level == "corrected"
    np.testing.assert_array_equal(other.climbed.problem.entry_data["effect"], told)
    header, state = state_files.load(tmp_path / "fit", "fit", lambda array, _: array)
    state["rest"]["centred"] = {"effect": np.full(8, 0.5)}
    state_files.save(tmp_path / "old", header, state, lambda array: (np.asarray(array), {}))
    assert backend.public.load_fit(tmp_path / "old").verdict.level == "exact"
    with pytest.raises(backend.public.ArgumentError, match="an earlier one's of a program"):
        backend.public.load_fit(tmp_path / "old", model, backend.array(y))


@pytest.mark.slow
def test_the_low_tail_of_a_scale_of_uneven_groups_is_not_lacking(backend: Any) -> None:
    """Six groups of 1 to 300 rows, whose mean is known well where the scale is small.

    Chains seldom entered that: 4.2 % of draws were below the 5 % quantile and 1.3 % below the 2 %
    one, over 24 fits.
    """
    host, dist = backend.host, backend.dist
    sizes, generator = np.array([1, 1, 2, 5, 60, 300]), np.random.default_rng(2)
    group, effects = np.repeat(np.arange(6), sizes), generator.normal(1.0, 0.7, 6)
    y = generator.normal(effects[group], 2.0)

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 2.0))
        scale = host.sample("scale", dist.HalfNormal(backend.array(1.0)))
        with host.plate("groups", 6):
            effect = host.sample("effect", dist.Normal(mean, scale))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(effect[..., group], 2.0), obs=y)

    means = np.array([y[group == number].mean() for number in range(6)])
    logs = np.linspace(-14.0, 3.0, 2001)
    shares = shares_of_scale(logs, means, 4.0 + np.diag(4.0 / sizes), halfnorm())
    fits = [fit_of(backend, model, backend.array(y), seed=seed) for seed in range(8)]
    assert all(fit.verdict.level == "exact" for fit in fits)
    scales = np.concatenate([numbers(backend, fit)["scale"] for fit in fits])
    below = np.interp(np.log(scales), logs, shares)
    for share in (0.02, 0.05):
        # Eight times 400 effective draws, three standard errors.
        error = 3.0 * math.sqrt(share / 3_200)
        assert np.mean(below < share) == pytest.approx(share, abs=error)


def test_separate_modes_have_their_shares(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def model() -> None:
        parts = dist.Normal(backend.array([-6.0, 6.0]), backend.array([0.5, 1.0]))
        mixture = dist.MixtureSameFamily(dist.Categorical(backend.array([0.3, 0.7])), parts)
        prior = dist.Normal(0.0, 10.0)
        x = host.sample("x", prior)
        host.factor("mixture", mixture.log_prob(x) - prior.log_prob(x))

    fit = fit_of(backend, model)
    assert fit.verdict.level == "exact"
    share = float((numbers(backend, fit)["x"] < 0.0).mean())
    assert abs(share - 0.3) < 4.0 * math.sqrt(0.21 / 400)


def test_a_posterior_without_bound_is_not_trusted(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        a = host.sample("a", dist.Normal(0.0, 1.0))
        b = host.sample("b", dist.Normal(0.0, 1.0))
        # Takes the prior of b back: nothing is left that bounds it.
        host.factor("flat", 0.5 * b**2)
        with host.plate("rows", 3):
            host.sample("y", dist.Normal(a, 1.0), obs=y)

    fit = fit_of(backend, model, backend.array([0.5, 1.0, 1.5]), budget=40_000)
    assert fit.verdict.level == "not trusted"
    assert any("'b'" in reason for reason in fit.verdict.reasons)


def test_without_chains_the_best_is_corrected(backend: Any) -> None:
    model, args, _ = from_zoo(backend, "conjugate_normal")
    fit = fit_of(backend, model, *args, exact=False)
    assert fit.verdict.level == "corrected" and fit.num_chains == 1
    check_moments("conjugate_normal", numbers(backend, fit), 0.2, 0.1)
    with pytest.raises(backend.public.ArgumentError, match="Expected a fit with chains"):
        fit.more(10)


def test_pairs_of_chains_bound_the_distance_from_their_limit(backend: Any) -> None:
    """All of 64 pairs meet on a Normal posterior, and the file keeps what that says."""
    model, args, _ = from_zoo(backend, "gaussian_one_site")
    verdict = fit_of(backend, model, *args).verdict
    assert verdict.evaluations < 2_000 and "jumps" in [stage.name for stage in verdict.cost]
    assert verdict.total_variation == pytest.approx(1.0 - 0.05 ** (1.0 / 64.0))
    assert "of any event by at most 4.6%" in str(verdict)
    assert verdict.attributes()["total_variation"] == verdict.total_variation
    assert Verdict.from_json(verdict.as_json()).total_variation == verdict.total_variation
    without = fit_of(backend, model, *args, exact=False).verdict
    assert without.total_variation is None and "total_variation" not in without.attributes()


@pytest.mark.in_one_package
def test_standard_deviations_are_known_as_well_as_asked(backend: Any) -> None:
    model, args, _ = from_zoo(backend, "exponential")
    usual = fit_of(backend, model, *args)
    known = fit_of(backend, model, *args, target_sd_error=0.015)
    assert known.verdict.level == "exact"
    ((name, figures),) = known.verdict.by_site.items()
    assert figures.deviation_error <= 0.015 < usual.verdict.by_site[name].deviation_error
    assert usual.verdict.evaluations < known.verdict.evaluations


def test_more_draws_end_with_their_budget(backend: Any) -> None:
    model, args, _ = from_zoo(backend, "conjugate_normal")
    fit = fit_of(backend, model, *args)
    before = len(numbers(backend, fit)[next(iter(fit.draws))])
    fit.more(10**7, budget=5_000, progress_bar=False)
    # A transition of all chains ends what it has begun.
    assert 0 < fit.history[-1].evaluations < 10_000
    assert "draws of each chain" in fit.history[-1].note
    assert len(numbers(backend, fit)[next(iter(fit.draws))]) > before
    for name, value in {"budget": 0, "seconds": -1.0, "progress_bar": "no"}.items():
        with pytest.raises(backend.public.ArgumentError, match=f"Expected {name}"):
            fit.more(10, **{name: value})


def test_a_fit_is_whole_after_more_has_failed(backend: Any) -> None:
    model, args, _ = from_zoo(backend, "conjugate_normal")
    fit, other = fit_of(backend, model, *args), fit_of(backend, model, *args)
    problem = fit.climbed.problem
    piece, calls = problem.evaluate._piece, 0

    def failing(z: np.ndarray, before: int) -> Any:
        nonlocal calls
        calls += 1
        if calls == 12:
            raise KeyboardInterrupt
        return piece(z, before)

    verdict = fit.verdict
    problem.evaluate._piece = failing
    with pytest.raises(KeyboardInterrupt):
        fit.more(640, progress_bar=False)
    problem.evaluate._piece = piece
    assert fit.verdict is verdict
    # It goes on to the last bit as one that has not failed.
    longer = numbers(backend, other.more(640, progress_bar=False))
    for name, each in numbers(backend, fit.more(640, progress_bar=False)).items():
        np.testing.assert_array_equal(each, longer[name])


def test_a_density_that_has_changed_is_refused_before_more(backend: Any) -> None:
    model, args, _ = from_zoo(backend, "conjugate_normal")
    fit = fit_of(backend, model, *args)
    evaluate = fit.climbed.problem.evaluate
    piece = evaluate._piece

    def of_other_data(z: np.ndarray, before: int) -> Any:
        # As where a model takes numbers out of an object that was changed.
        values, scores = piece(z, before)
        return np.asarray(values) + 1.0, scores

    evaluate._piece = of_other_data
    with pytest.raises(backend.public.ArgumentError, match="another density"):
        fit.more(10, progress_bar=False)


def rows_of_a_normal(backend: Any) -> tuple[Any, Any, float, float]:
    """A mean with many rows in minibatches; its posterior mean and standard deviation."""
    host, dist = backend.host, backend.dist
    y = np.random.default_rng(0).normal(3.0, 1.0, 4_000)

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 10.0))
        with host.plate("rows", len(y), subsample_size=10) as rows:
            host.sample("y", dist.Normal(mean, 1.0), obs=y[rows])

    precision = 0.01 + len(y)
    return model, backend.array(y), float(y.sum()) / precision, precision**-0.5


def test_many_rows_are_all_taken_where_there_is_time(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A batch of a tenth has its mode some three standard deviations off.
    monkeypatch.setattr("ppl_ext.start.search.MOST_ROWS", 400)
    model, y, mean, deviation = rows_of_a_normal(backend)
    fit = fit_of(backend, model, y)
    assert fit.verdict.level == "exact"
    assert "all rows" in [stage.name for stage in fit.history]
    draws = numbers(backend, fit)["mean"]
    assert abs(draws.mean() - mean) < 4.0 * deviation / math.sqrt(400)
    assert draws.std() == pytest.approx(deviation, rel=4.0 / math.sqrt(2 * 400))


def test_more_rows_than_there_is_time_for_are_fitted_by_an_engine(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppl_ext.start.search.MOST_ROWS", 400)
    monkeypatch.setattr("ppl_ext.fit.verdict.policy.ROW_EVALUATIONS", 10**12)
    model, y, mean, deviation = rows_of_a_normal(backend)
    fit = fit_of(backend, model, y)
    assert fit.verdict.level == "approximate" and not fit.verdict.trusted
    text = str(fit.verdict)
    assert "ProximalScoreVI with AutoMultivariateNormal settled after" in text
    assert "Only batches of the rows were looked at" in text and "Chains were not run" in text
    draws = numbers(backend, fit)["mean"]
    assert abs(draws.mean() - mean) < 0.5 * deviation
    assert draws.std() == pytest.approx(deviation, rel=0.3)


def test_many_dimensions_are_fitted_by_an_engine(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppl_ext.fit.verdict.policy.MOST_DIMENSIONS", 1)
    model, args, _ = from_zoo(backend, "gaussian_two_sites")
    fit = fit_of(backend, model, *args)
    assert fit.verdict.level == "approximate"
    assert any("more than the 1 up to which" in reason for reason in fit.verdict.reasons)
    check_moments("gaussian_two_sites", numbers(backend, fit), 0.3, 0.2)


def test_local_latents_of_many_rows_want_all_of_them(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppl_ext.start.search.MOST_ROWS", 4)
    monkeypatch.setattr("ppl_ext.fit.verdict.policy.ROW_EVALUATIONS", 10**12)
    model, args, _ = from_zoo(backend, "local_latents")
    fit = fit_of(backend, model, *args, subsample_size=2)
    assert fit.verdict.level == "not trusted"
    assert any("inside a subsampled plate" in reason for reason in fit.verdict.reasons)


def test_a_guide_that_is_named_is_judged_by_chains(backend: Any) -> None:
    guides = backend.autoguide
    model, args, _ = from_zoo(backend, "gaussian_one_site")
    right = fit_of(backend, model, *args, guide=guides.AutoMultivariateNormal)
    assert right.verdict.level == "approximate" and right.verdict.trusted
    assert right.num_chains == 1 and right.history[-1].name == "engine"
    assert any("AutoMultivariateNormal settled" in reason for reason in right.verdict.reasons)
    check_moments("gaussian_one_site", numbers(backend, right), 0.3, 0.2)
    # Its sites are correlated, which a diagonal Normal cannot be.
    wrong = fit_of(backend, model, *args, guide=guides.AutoDiagonalNormal)
    assert wrong.verdict.level == "not trusted" and not wrong.verdict.trusted


def test_an_engine_of_another_model_is_refused(backend: Any) -> None:
    model, args, _ = from_zoo(backend, "conjugate_normal")
    other, _, _ = from_zoo(backend, "gaussian_one_site")
    guide = backend.autoguide.AutoMultivariateNormal
    engine = backend.public.ProximalScoreVI(other, guide)
    for options, match in (
        ({"engine": engine}, "another model"),
        ({"engine": guide}, "Expected engine to be an engine"),
        ({"engine": engine, "guide": guide}, "found both"),
    ):
        with pytest.raises(backend.public.ArgumentError, match=match):
            fit_of(backend, model, *args, **options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("budget", 0),
        ("seconds", -1.0),
        ("target_ess", float("nan")),
        ("exact", "yes"),
        ("target_sd_error", -0.1),
    ],
)
def test_options_without_meaning_are_refused(backend: Any, option: str, value: Any) -> None:
    model, args, _ = from_zoo(backend, "conjugate_normal")
    with pytest.raises(backend.public.ArgumentError, match=option):
        fit_of(backend, model, *args, **{option: value})


def with_level(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    text = next(value for name, value in header["state"]["dict"] if name == "verdict")
    assert '"corrected"' in text
    header["state"] = replaced_in(header["state"], text, text.replace("corrected", "perfect"))


def with_generator(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    # Of this name NumPy has what is no generator.
    header["state"] = replaced_in(header["state"], "PCG64", "RandomState")


def with_nan(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    arrays["array0"] = arrays["array0"].copy()
    arrays["array0"][3] = np.nan


def replaced_in(tree: Any, old: Any, new: Any) -> Any:
    """A tree of JSON with one value in place of another."""
    if isinstance(tree, dict):
        return {name: replaced_in(each, old, new) for name, each in tree.items()}
    if isinstance(tree, list):
        return [replaced_in(each, old, new) for each in tree]
    return new if tree == old else tree


def test_damaged_files_are_refused(backend: Any, tmp_path: Path) -> None:
    model, args, _ = from_zoo(backend, "gaussian_one_site")
    path, load, refused = tmp_path / "fit", backend.public.load_fit, backend.public.ArgumentError
    fit = fit_of(backend, model, *args, exact=False)
    assert fit.verdict.level == "corrected"
    fit.save(path)
    whole = path.read_bytes()
    arrays = dict(np.load(path))
    # Numbers that a tool has changed, of the draws and of whatever else there is.
    for name in arrays.keys() - {"header", "digest"}:
        with path.open("wb") as file:
            np.savez(file, **{**arrays, name: arrays[name] + 5})
        for program in ((), (model, *args)):
            with pytest.raises(refused, match="damaged: its numbers"):
                load(path, *program)
    # What has no meaning is refused with a right digest as well.
    for change, words in (
        (with_level, "damaged.*its level is 'perfect'"),
        (with_nan, "NaN or infinity"),
    ):
        path.write_bytes(whole)
        rewritten(path, change)
        with pytest.raises(refused, match=words):
            load(path)
    path.write_bytes(whole)
    rewritten(path, with_generator)
    with pytest.raises(refused, match="damaged: KeyError"):
        load(path, model, *args)
    path.write_bytes(whole[:-200])
    with pytest.raises(refused, match="Expected a file saved"):
        load(path)


def test_a_budget_bounds_what_is_spent(backend: Any) -> None:
    model, args, _ = from_zoo(backend, "gaussian_one_site")
    with pytest.raises(backend.public.ArgumentError, match="budget=10, which ended before"):
        fit_of(backend, model, *args, budget=10)
    for budget, level, words in (
        (600, "not trusted", "The budget ended early"),
        (3_000, "corrected", "a search and for them, which take 5,108 at least. Give a larger"),
        (6_400, None, "R-hat"),
    ):
        verdict = fit_of(backend, model, *args, budget=budget).verdict
        assert verdict.evaluations <= budget
        assert level is None or verdict.level == level, str(verdict)
        assert words in " ".join(verdict.reasons)


@pytest.mark.parametrize("budget", [1, 20, 60, 700])
def test_no_entry_point_spends_more_than_its_budget(
    backend: Any, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent, evaluate = 0, InPieces.__call__

    def counted(self: InPieces, positions: np.ndarray) -> Any:
        nonlocal spent
        spent += len(positions)
        return evaluate(self, positions)

    model, args, _ = from_zoo(backend, "gaussian_one_site")
    fit = fit_of(backend, model, *args)
    other = tuple(arg + 0.5 for arg in args)
    key = () if backend.is_pyro else (backend.key(1),)
    monkeypatch.setattr(InPieces, "__call__", counted)
    for verb in (
        lambda options: fit_of(backend, model, *args, **options),
        lambda options: backend.public.check(*key, fit.draws, model, *args, **options),
        lambda options: fit.more(320, **options),
        lambda options: fit.refit(*other, **options),
    ):
        spent, before = 0, fit.verdict.evaluations
        try:
            found = verb({"budget": budget, "progress_bar": False})
        except backend.public.ArgumentError as error:
            assert f"found budget={budget}" in str(error)
        else:
            verdict = getattr(found, "verdict", found)
            assert spent == verdict.evaluations - (before if found is fit else 0)
        assert spent <= budget


def test_steps_of_an_engine_count_as_the_rows_that_they_take(backend: Any) -> None:
    """Of 100 rows two for each of 25 particles: two steps are an evaluation."""
    host, dist, y = backend.host, backend.dist, backend.array(np.linspace(-1.0, 1.0, 100))

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 1.0))
        with host.plate("rows", 100, subsample_size=2) as rows:
            host.sample("y", dist.Normal(mean, 1.0), obs=y[rows])

    public = backend.public
    engine = public.SVGD(model, backend.adam(0.05), num_particles=25, estimator=public.Minibatch())
    fit = fit_of(backend, model, y, engine=engine, exact=False, budget=200)
    steps = int(re.findall(r"after ([\d,]+) steps", str(fit.verdict))[0].replace(",", ""))
    assert steps > 40 and abs(fit.history[-1].evaluations - steps / 2) <= 1


def test_an_engine_that_is_named_has_the_program_as_it_is_written(backend: Any) -> None:
    """Also of a hierarchy, which chains would have non-centred."""
    host, dist = backend.host, backend.dist
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 5.0))
        scale = host.sample("scale", dist.HalfCauchy(5.0))
        with host.plate("schools", 8):
            effect = host.sample("effect", dist.Normal(mean, scale))
            host.sample("y", dist.Normal(effect, 12.0), obs=y)

    engine = backend.public.SVGD(model, backend.adam(0.05), num_particles=10)
    fit = fit_of(backend, model, backend.array(y), engine=engine, exact=False, budget=6_000)
    assert set(fit.draws) == {"mean", "scale", "effect"} and fit.target.model is model
    assert fit.history[-1].note == "SVGD"


def test_points_by_the_init_strategy_are_others_each_time(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked for where no point near 0 has a density."""
    monkeypatch.setattr(search, "TRIES", 0)
    model, args, _ = from_zoo(backend, "gaussian_one_site")
    ways_of = importlib.import_module(f"{backend.public.__name__}.fit").ways_of
    problem = next(ways_of(model, args, {}, 1, np.random.default_rng(1)))
    first, second = (problem.starting_points(4) for _ in range(2))
    assert not np.isclose(first, second).any()


DETACHED = ["one of two sites", "a scale", "an effect"]


@pytest.mark.parametrize("what", DETACHED)
def test_a_likelihood_that_is_detached_in_part_is_found_at_once(
    backend: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, dist, x = backend.host, backend.dist, backend.array(np.linspace(0.0, 1.0, 20))

    def held(value: Any) -> Any:
        if backend.is_pyro:
            return value.detach()
        import jax

        return jax.lax.stop_gradient(value)

    def model(y: Any, other: Any) -> None:
        mean = host.sample("mean", dist.Normal(backend.array(0.0), 10.0))
        scale = host.sample("scale", dist.HalfNormal(backend.array(1.0)))
        slope = host.sample("slope", dist.Normal(backend.array(0.0), 1.0))
        effect = slope * x
        line = mean + (held(effect) if what == "an effect" else effect)
        scale = held(scale) if what == "a scale" else scale
        with host.plate("rows", 20):
            host.sample("y", dist.Normal(line, scale), obs=y)
            line = held(line) if what == "one of two sites" else line
            host.sample("other", dist.Normal(line, scale), obs=other)

    rows = [backend.array(np.random.default_rng(k).normal(1.0, 1.0, 20)) for k in (0, 1)]
    spent, evaluate = 0, InPieces.__call__

    def counted(self: InPieces, positions: np.ndarray) -> Any:
        nonlocal spent
        spent += len(positions)
        return evaluate(self, positions)

    monkeypatch.setattr(InPieces, "__call__", counted)
    with pytest.raises(backend.public.ModelCheckError, match="are not slopes.*stop_gradient"):
        fit_of(backend, model, *rows)
    assert spent <= 64


def test_a_folder_that_is_missing_is_said(backend: Any, tmp_path: Path) -> None:
    model, args, _ = from_zoo(backend, "gaussian_one_site")
    fit = fit_of(backend, model, *args, exact=False)
    with pytest.raises(backend.public.ArgumentError, match="Expected path to be.*Make its folder"):
        fit.save(tmp_path / "absent" / "fit")


def test_saved_fits_refuse_other_programs_and_data(backend: Any, tmp_path: Path) -> None:
    host, dist = backend.host, backend.dist

    def program(width: float, name: str = "mean") -> Any:
        def model(y: Any) -> None:
            mean = host.sample(name, dist.Normal(0.0, width))
            with host.plate("rows", 4):
                host.sample("y", dist.Normal(mean, 1.0), obs=y)

        return model

    y = backend.array([0.5, 1.0, 1.5, 2.5])
    fit_of(backend, program(2.0), y, budget=8_000).save(tmp_path / "fit")
    load, refused = backend.public.load_fit, backend.public.ArgumentError
    with pytest.raises(refused, match="found the sites other"):
        load(tmp_path / "fit", program(2.0, "other"), y)
    with pytest.raises(refused, match="other numbers in its arguments"):
        load(tmp_path / "fit", program(2.0), y + 1.0)
    with pytest.raises(refused, match="another density"):
        load(tmp_path / "fit", program(3.0), y)

    def fails(y: Any) -> None:
        raise TypeError("of the program")

    # Not as damage of the file.
    with pytest.raises(TypeError, match="of the program"):
        load(tmp_path / "fit", fails, y)
    assert load(tmp_path / "fit", program(2.0), y).more(16).num_chains > 1


GO_ON = """
import sys
import numpy as np
from tests.backends import backend_of, from_zoo
from tests.fit.test_fit import numbers

backend = backend_of(sys.argv[1])
model, args, _ = from_zoo(backend, "conjugate_normal")
fit = backend.public.load_fit(sys.argv[2], model, *args)
np.savez(sys.argv[3], **numbers(backend, fit.more(64)))
"""


@pytest.mark.slow
def test_a_fit_goes_on_in_another_process(backend: Any, tmp_path: Path) -> None:
    model, args, _ = from_zoo(backend, "conjugate_normal")
    fit = fit_of(backend, model, *args)
    fit.save(tmp_path / "fit")
    command = [sys.executable, "-c", GO_ON, backend.name, tmp_path / "fit", tmp_path / "more.npz"]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    found = np.load(tmp_path / "more.npz")
    for name, each in numbers(backend, fit.more(64)).items():
        np.testing.assert_array_equal(found[name], each)


def test_a_posterior_without_bound_on_a_scale_is_not_trusted(backend: Any) -> None:
    """The scale's logarithm is flat up to where numbers end, which looks like a bound."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        scale = host.sample("scale", dist.HalfCauchy(backend.array(1.0)))
        # Takes the prior back, and is improper at infinity.
        host.factor("flat", -dist.HalfCauchy(backend.array(1.0)).log_prob(scale))
        host.sample("y", dist.Normal(backend.array(0.0), scale), obs=y)

    fit = fit_of(backend, model, backend.array(1.0), budget=60_000)
    assert fit.verdict.level == "not trusted"


def test_a_posterior_that_does_not_fall_far_out_is_not_trusted(backend: Any) -> None:
    """One of two components may go anywhere, at a price of some 75 nats."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(backend.array(0.0), 1.0).mask(False))
        parts = dist.Normal(backend.xp.stack([mean, 0.0 * mean]), backend.array(1.0))
        weights = dist.Categorical(backend.array([0.5, 0.5]))
        with host.plate("rows", len(y)):
            host.sample("y", dist.MixtureSameFamily(weights, parts), obs=y)

    y = backend.array(np.concatenate([np.linspace(-1.0, 1.0, 12), np.linspace(4.0, 6.0, 6)]))
    # Chains that spend the whole budget leave enough of it for the look; and without chains.
    for options in ({}, {"budget": 20_000, "target_ess": 100_000}, {"exact": False}):
        fit = fit_of(backend, model, y, **options)
        assert fit.verdict.level == "not trusted"
        assert "density does not fall with 'mean'" in str(fit.verdict)
    # All in one component, the same flat prior has a proper posterior.
    assert fit_of(backend, _flat_mean(backend), y).verdict.level == "exact"


def _flat_mean(backend: Any) -> Any:
    def model(y: Any) -> None:
        prior = backend.dist.Normal(backend.array(0.0), 1.0).mask(False)
        mean = backend.host.sample("mean", prior)
        with backend.host.plate("rows", len(y)):
            backend.host.sample("y", backend.dist.StudentT(2.0, mean, 1.0), obs=y)

    return model


@pytest.mark.parametrize("seed", range(3))
def test_a_flat_prior_within_bounds_is_proper(backend: Any, seed: int) -> None:
    """Of two chances, whose rounded density does not fall on one side of unconstrained space."""

    def model(counts: Any) -> None:
        flat = backend.dist.Dirichlet(backend.array([1.0, 1.0])).mask(False)
        chances = backend.host.sample("chances", flat)
        # As a Multinomial(probs=chances) with these counts has it.
        density = (counts * backend.xp.log(chances)).sum(-1)
        backend.host.factor("counts", density)

    fit = fit_of(backend, model, backend.array([12.0, 8.0]), seed=seed)
    assert fit.verdict.level == "exact", fit.verdict
    # Its posterior is a Beta(13, 9).
    mean, deviation = 13.0 / 22.0, math.sqrt(13.0 * 9.0 / 23.0) / 22.0
    found = float(np.asarray(fit.draws["chances"])[:, 0].mean())
    assert found == pytest.approx(mean, abs=5.0 * deviation / math.sqrt(400.0))


@pytest.mark.parametrize(
    ("log_density", "sites"),
    [
        (lambda z: -np.log1p(np.square(z)).sum(1), ()),  # Cauchy
        (lambda z: -0.5 * np.square(z).sum(1), ()),
        (lambda z: np.logaddexp(-0.5 * np.square(z[:, 0]), -30.0), ("a",)),
        # As low as rounding makes probabilities of many rows.
        (lambda z: np.maximum(-0.5 * np.square(z[:, 0]), -300.0), ()),
        # The same of the logarithm of a site, beside whose Jacobian no level is seen far out.
        (lambda z: z[:, 0] + np.maximum(-np.exp(z[:, 0]), -300.0), ()),
        (lambda z: z[:, 0] + np.logaddexp(-np.exp(z[:, 0]), -30.0), ("a",)),
        # On one side alone.
        (lambda z: -np.square(np.exp(np.minimum(z[:, 0], 99.0)) - 3.0), ("a",)),
        (lambda z: -0.5 * np.log1p(np.square(z[:, 0])), ("a",)),  # as 1 over the distance
        (lambda z: np.where(np.abs(z[:, 0]) > 9.0, np.nan, -np.abs(z[:, 0])), ()),
        # The other site may be flat: its prior is proper.
        (lambda z: -0.5 * np.square(z[:, 0]), ()),
    ],
)
def test_what_does_not_fall_far_out(log_density: Any, sites: tuple[str, ...]) -> None:
    target = SimpleNamespace(layout=SimpleNamespace(improper=("a",)))
    coordinates = {"a": slice(0, 1), "b": slice(1, 2)}
    problem: Any = SimpleNamespace(
        target=target,
        coordinates=coordinates,
        epsilon=np.finfo(np.float32).eps,
        latents={},
        numbers=lambda z: {name: z[:, at] for name, at in coordinates.items()},
    )
    draws = np.random.default_rng(0).normal(size=(100, 2))
    assert flat_far_out(problem, lambda z: (log_density(z), z), draws) == sites


def five_means(backend: Any, as_sites: bool) -> Any:
    """Five alike components, whose means are one site or five."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        prior = dist.Normal(0.0, 20.0)
        if as_sites:
            means = [host.sample(name, prior) for name in "abcde"]
            mean = backend.xp.stack(means, -1)
        else:
            with host.plate("components", 5):
                mean = host.sample("mean", prior)
        parts = dist.Normal(mean, backend.array(1.0))
        weights = dist.Categorical(backend.array([0.2] * 5))
        with host.plate("rows", len(y)):
            host.sample("y", dist.MixtureSameFamily(weights, parts), obs=y)

    return model


CENTRES = np.array([-12.0, -6.0, 0.0, 6.0, 12.0])


@pytest.mark.slow
def test_orders_of_labels_that_draws_do_not_have_are_told(backend: Any) -> None:
    """Five alike sites have 120 orders, more than the search finds modes."""
    y = np.repeat(CENTRES, 8) + 0.5 * np.random.default_rng(0).normal(size=40)
    fit = fit_of(backend, five_means(backend, as_sites=True), backend.array(y), budget=40_000)
    assert fit.verdict.level == "not trusted"
    assert any("exchange of labels in 'a'" in reason for reason in fit.verdict.reasons)
    assert any("of the 120 orders" in reason for reason in fit.verdict.reasons)


def test_a_fit_is_right_up_to_labels_and_says_so(backend: Any, tmp_path: Path) -> None:
    """All 120 orders are there; in order, each mean has the posterior that its rows give it."""
    y = np.repeat(CENTRES, 8) + 0.5 * np.random.default_rng(0).normal(size=40)
    model = five_means(backend, as_sites=False)
    fit = fit_of(backend, model, backend.array(y), budget=40_000)
    assert fit.verdict.level == "exact"
    assert any("Labels in 'mean' can be exchanged" in reason for reason in fit.verdict.reasons)
    ordered, draws = fit.ordered_draws["mean"], numbers(backend, fit)["mean"]
    np.testing.assert_allclose(ordered, np.sort(draws, axis=1))
    # Components are far enough apart for each row to belong to one: Normals with known moments.
    precision = 8.0 + 1.0 / 400.0
    error = 4.0 / np.sqrt(fit.verdict.by_site["mean"].ess_bulk)
    white = (ordered - y.reshape(5, 8).sum(1) / precision) * np.sqrt(precision)
    assert np.abs(white.mean(0)).max() < error
    assert np.abs(white.std(0) - 1.0).max() < error
    # Every label has every place equally often.
    place = (np.argsort(draws, axis=1) == 0).mean(0)
    assert np.abs(place - 0.2).max() < 5.0 * np.sqrt(0.16 / len(draws))
    fit.save(tmp_path / "fit")
    resumed = backend.public.load_fit(tmp_path / "fit", model, backend.array(y))
    np.testing.assert_array_equal(resumed.ordered_draws["mean"], ordered)
    # Without the program as well, where figures of labels at random would mean nothing.
    for alone in (backend.public.load_fit(tmp_path / "fit"), pickle.loads(pickle.dumps(fit))):
        np.testing.assert_array_equal(alone.ordered_draws["mean"], ordered)
        np.testing.assert_allclose(alone.summary()["mean"], fit.summary()["mean"])
    for name, each in numbers(backend, resumed.more(32)).items():
        np.testing.assert_array_equal(each, numbers(backend, fit.more(32))[name])


@pytest.mark.in_one_package
def test_labels_with_priors_of_their_own_are_not_refused(backend: Any) -> None:
    """Of six orders of the means three have next to no mass; a grid of the three means tells."""
    host, dist = backend.host, backend.dist
    anchors = np.array([-3.0, 0.0, 3.0])
    generator = np.random.default_rng(12)
    y = np.concatenate([generator.normal(each, 1.0, 12) for each in (-2.8, 0.1, 3.2)])

    def model(y: Any) -> None:
        with host.plate("components", 3):
            mean = host.sample("mean", dist.Normal(backend.array(anchors), 1.5))
        parts = dist.Normal(mean, backend.array(1.0))
        weights = dist.Categorical(backend.array([1 / 3] * 3))
        with host.plate("rows", len(y)):
            host.sample("y", dist.MixtureSameFamily(weights, parts), obs=y)

    grid = np.arange(-6.0, 6.01, 0.2)
    density = np.exp(-0.5 * (y[:, None] - grid) ** 2)
    log_posterior = np.zeros((len(grid),) * 3)
    for row in density:
        log_posterior += np.log(row[:, None, None] + row[:, None] + row)
    for axis, anchor in enumerate(anchors):
        shape = [-1 if each == axis else 1 for each in range(3)]
        log_posterior -= (0.5 * ((grid - anchor) / 1.5) ** 2).reshape(shape)
    posterior = np.exp(log_posterior - log_posterior.max())
    posterior /= posterior.sum()
    axes = [tuple({0, 1, 2} - {axis}) for axis in range(3)]
    means = np.array([posterior.sum(each) @ grid for each in axes])

    fit = fit_of(backend, model, backend.array(y), seed=1)
    assert fit.verdict.level == "exact", fit.verdict
    draws = numbers(backend, fit)["mean"]
    error = 4.0 * draws.std(0) / np.sqrt(fit.verdict.by_site["mean"].ess_bulk)
    assert (np.abs(draws.mean(0) - means) < error).all()
    # The exchange changes the density, so that labels have a meaning.
    assert not any("abels" in reason for reason in fit.verdict.reasons)


@pytest.mark.in_one_package
def test_an_engine_that_is_named_is_judged_by_chains(backend: Any) -> None:
    public = backend.public
    model, args, _ = from_zoo(backend, "gaussian_one_site")
    engine = public.SVGD(model, backend.adam(0.1), num_particles=50)
    fit = fit_of(backend, model, *args, engine=engine)
    assert fit.history[-1].name == "engine" and len(numbers(backend, fit)["z"]) == 50
    assert "SVGD" in fit.verdict.reasons[0]
    check_moments("gaussian_one_site", numbers(backend, fit), 0.5, 0.4)
