"""The demonstration's arithmetic: predictions from draws, and how a fit is judged."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import special, stats

from benchmarks.demo import problems
from benchmarks.demo.fits import Fit, judge
from benchmarks.timing import alternate, ratio


def make_fit(draws: dict[str, np.ndarray]) -> Fit:
    return Fit("eight_schools", "NumPyro", "NUTS", draws, seconds=1.0, gradients=10.0)


def school_draws(seed: int, number: int = 500) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        "mu": generator.normal(4.0, 3.0, number),
        "tau": generator.gamma(2.0, 2.0, number),
        "eta": generator.normal(size=(number, 8)),
    }


def test_judge_measures_in_reference_standard_deviations() -> None:
    problem = dataclasses.replace(
        problems.eight_schools(), compared=lambda draws: np.column_stack([draws["mu"]])
    )
    reference = make_fit(school_draws(0))
    same = judge(problem, reference, reference)
    assert same["mean error"] == 0.0 and same["sd ratio"] == 1.0
    mu = reference.draws["mu"]
    moved = make_fit({**reference.draws, "mu": mu.mean() + 2.0 * (mu - mu.mean()) + mu.std() / 2})
    figures = judge(problem, moved, reference)
    assert figures["mean error"] == pytest.approx(0.5)
    assert figures["sd ratio"] == pytest.approx(2.0)


def test_log_mean_exp_does_not_overflow() -> None:
    values = np.array([[1000.0, -1000.0], [1001.0, -1002.0]])
    expected = special.logsumexp(values, axis=0) - np.log(2.0)
    np.testing.assert_allclose(problems.log_mean_exp(values), expected)


def test_network_output_and_its_likelihood_by_loops() -> None:
    problem = problems.network()
    generator = np.random.default_rng(0)
    draws = {
        "w1": generator.normal(size=(3, 10, 4)),
        "b1": generator.normal(size=(3, 4)),
        "w2": generator.normal(size=(3, 4, 1)),
        "b2": generator.normal(size=(3, 1)),
        "noise": generator.gamma(2.0, size=3),
    }
    x = generator.normal(size=(5, 10))
    found = problems.network_output(draws, x)
    for i in range(3):
        for j in range(5):
            hidden = np.tanh(x[j] @ draws["w1"][i] + draws["b1"][i])
            assert found[i, j] == pytest.approx((hidden @ draws["w2"][i] + draws["b2"][i])[0])
    # In original units: scaling the response by its standard deviation scales the density.
    scale, location = problem.extra["y_scale"], problem.extra["y_location"]
    from benchmarks import datasets

    split = datasets.shipped("diabetes").random_split(seed=0, test_fraction=0.25)
    outputs = problems.network_output(draws, split.standardised(response=True).x_test)
    densities = stats.norm.logpdf(
        split.y_test, location + scale * outputs, scale * draws["noise"][:, None]
    )
    expected = (special.logsumexp(densities, axis=0) - np.log(3.0)).mean()
    assert problem.test_log_likelihood(draws) == pytest.approx(expected)


def test_logistic_test_likelihood_by_scipy() -> None:
    problem = problems.logistic_regression()
    generator = np.random.default_rng(0)
    draws = {"weights": generator.normal(size=(4, 30)), "intercept": generator.normal(size=4)}
    from benchmarks import datasets

    split = datasets.shipped("breast_cancer").random_split(seed=0, test_fraction=0.25)
    split = split.standardised()
    probability = special.expit(split.x_test @ draws["weights"].T + draws["intercept"]).mean(1)
    expected = stats.bernoulli.logpmf(split.y_test, probability).mean()
    assert problem.test_log_likelihood(draws) == pytest.approx(expected)


def test_cases_take_turns_and_ratios_are_within_rounds() -> None:
    order: list[str] = []
    times = alternate(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3, seconds=0.0
    )
    assert order == ["a", "a", "b", "b", *("ab" * 3)]
    assert all(len(found) == 3 for found in times.values())
    fixed = {"a": np.array([2.0, 4.0, 6.0]), "b": np.array([1.0, 1.0, 3.0])}
    assert ratio(fixed, "a", "b") == 2.0


def test_conversion_for_arviz_is_no_part_of_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.demo import pyro_fits

    found = SimpleNamespace(draws={}, verdict=SimpleNamespace(evaluations=7))
    monkeypatch.setattr("pyro_ext.fit", lambda *_, **__: found)
    converted: list[object] = []
    monkeypatch.setattr("pyro_ext.to_arviz", lambda fit, *_: converted.append(fit))
    fit = next(pyro_fits.fits(problems.eight_schools(), False, 10))
    assert fit.method == "fit" and fit.gradients == 7 and not converted
    assert fit.inference_data is not None
    fit.inference_data()
    assert converted == [found]
