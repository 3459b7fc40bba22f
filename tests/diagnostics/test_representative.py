"""A few draws that predict as all do: by hand, by all exchanges, and in both packages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.diagnostics.predictive_data import predictive_dataset, unbounded_outputs
from ppl_ext.diagnostics.representative import representative_draws
from ppl_ext.errors import ArgumentError


def numbers(mean: Any, variance: Any = 1.0) -> Any:
    """A dataset of Normals with means and variances (S, N)."""
    mean, variance = np.broadcast_arrays(np.asarray(mean, float), variance)
    return predictive_dataset("y", mean.shape[1:], {"mean": mean, "variance": variance}, None, None)


def waves(draws: int) -> Any:
    """Functions of a Gaussian process of about eight independent directions at 50 rows (S, 50)."""
    rng, x = np.random.default_rng(0), np.linspace(0.0, 1.0, 50)
    frequencies = np.arange(1, 5) * np.pi
    basis = np.concatenate([np.sin(frequencies[:, None] * x), np.cos(frequencies[:, None] * x)])
    return 3.0 + rng.normal(size=(draws, 8)) @ basis


def squared_error(outputs: Any, few: Any) -> float:
    """Squared errors of first and second moments of outputs (S, M), each in sds of all draws."""
    scaled = (outputs - outputs.mean(0)) / outputs.std(0)
    return float(
        np.square(scaled[few].mean(0)).sum() + np.square((scaled[few] ** 2 - 1).mean(0)).sum()
    )


def test_no_exchange_of_a_draw_is_better() -> None:
    """By the definition: every other draw is tried in the place of each that was chosen."""
    mean = waves(60)
    few = representative_draws(numbers(mean), 7)
    assert len(set(few)) == 7 and (np.diff(few) > 0).all()
    others = [place for place in range(60) if place not in few]
    best = squared_error(mean, few)
    for place in range(7):
        for other in others:
            assert squared_error(mean, [*np.delete(few, place), other]) >= best * (1.0 - 1e-6)


def test_means_and_variances_of_few_are_those_of_all() -> None:
    """Of independent draws 20 are 0.22 sd off in their means and 16 % in their deviations."""
    mean = waves(1_000)
    few = representative_draws(numbers(mean), 20)
    off = (mean[few].mean(0) - mean.mean(0)) / mean.std(0)
    assert np.sqrt(np.square(off).mean()) < 0.05
    np.testing.assert_allclose(mean[few].std(0) / mean.std(0), 1.0, atol=0.1)


def test_noise_is_an_output_and_so_are_logits() -> None:
    rng = np.random.default_rng(1)
    spread = rng.normal(size=400)
    few = representative_draws(numbers(np.ones((400, 3)), np.exp(2.0 * spread)[:, None]), 10)
    assert squared_error(spread[:, None], few) < 1e-3
    odds = 1.0 / (1.0 + np.exp(-3.0 * spread))
    both = np.stack([odds, 1.0 - odds], -1)[:, None]
    classes = predictive_dataset("y", (1,), {"probabilities": both}, None, None)
    assert squared_error(spread[:, None], representative_draws(classes, 10)) < 1e-3


def test_outputs_have_no_bounds() -> None:
    three = np.array([[[0.2, 0.2, 0.6]], [[0.0, 0.5, 0.5]]])
    found = dict(
        unbounded_outputs(predictive_dataset("y", (1,), {"probabilities": three}, None, None))
    )
    np.testing.assert_allclose(found["logits"][0], np.log([0.2, 0.2, 0.6]) - np.log(0.024) / 3)
    assert np.isfinite(found["logits"]).all()
    found = dict(unbounded_outputs(numbers([[1.0, 2.0]], [[4.0, 4.0]])))
    np.testing.assert_allclose(found["mean"], [[1.0, 2.0]])
    np.testing.assert_allclose(found["log sd"], [[np.log(2.0)]])


def test_what_cannot_be_chosen_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at most the 3 draws, found number=4"):
        representative_draws(numbers(np.ones((3, 2))), 4)
    with pytest.raises(ArgumentError, match="Expected number"):
        representative_draws(numbers(np.ones((3, 2))), 0)
    with pytest.raises(ArgumentError, match="finite outputs"):
        representative_draws(numbers([[np.inf], [0.0]]), 1)
    assert len(representative_draws(numbers(np.ones((3, 2))), 2)) == 2
    chains = numbers(np.zeros((6, 3))).expand_dims(chain=2)
    with pytest.raises(ArgumentError, match="'mean' by draw and row, .* found axes chain, "):
        representative_draws(chains, 3)


def test_both_packages_choose_the_same_of_a_program(backend: Any) -> None:
    """Predictions of the chosen draws are those of all, at their places; rows have no y."""
    host, rng = backend, np.random.default_rng(2)
    x, draws = rng.normal(size=(9, 2)), rng.normal(size=(50, 2))
    sample, dist, plate = host.host.sample, host.dist, host.host.plate

    def line(x: Any, y: Any = None) -> None:
        w = sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with plate("rows", len(x)):
            sample("y", dist.Normal(x @ w, 1.0), obs=y)

    def predicted(w: Any) -> Any:
        return host.public.predictive_distribution(line, {"w": host.array(w)}, host.array(x))

    every = predicted(draws)
    few = host.public.representative_draws(every, 6)
    np.testing.assert_array_equal(few, representative_draws(numbers(draws @ x.T), 6))
    np.testing.assert_allclose(predicted(draws[few])["mean"], every["mean"][few], rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 4])
def test_exchanges_end_where_errors_are_those_of_rounding(rows: int) -> None:
    """At one row, of all draws, and of draws that stand many times."""
    mean = waves(200)[:, :rows]
    few = representative_draws(numbers(mean), 20)
    assert len(set(few)) == 20 and squared_error(mean, few) < 0.2
    np.testing.assert_array_equal(representative_draws(numbers(mean), 200), np.arange(200))
    again = np.repeat(mean[:5], 40, axis=0)
    assert len(set(representative_draws(numbers(again), 20))) == 20
