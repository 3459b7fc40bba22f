"""Chains are judged by the sites as written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppl_ext.chains.sampler import Window
from ppl_ext.fit.ladder.chain_figures import chained_of, saturated
from ppl_ext.fit.problem.problem import Problem
from ppl_ext.fit.verdict import agreement, facts
from ppl_ext.fit.verdict.figures import site_figures
from ppl_ext.statistics.convergence import convergence, varies
from tests.fit_support import WITHOUT_PROGRAM


def judged(
    draws: np.ndarray, latents: Any = (), asked: float | None = None, **sites: Any
) -> facts.Chained:
    """Chains (N, M, D) with a coordinate for each site, whose values are functions of it."""
    problem: Any = SimpleNamespace(
        target=WITHOUT_PROGRAM,
        coordinates={dict(latents).get(n, n): slice(k, k + 1) for k, n in enumerate(sites)},
        latents=dict(latents),
        numbers=lambda z: {n: of(z[:, k]) for k, (n, of) in enumerate(sites.items())},
        other_form=SimpleNamespace(latents={"scale": "scale_decentered"}),
    )
    ones = np.ones(len(draws))
    window = Window(draws, np.ones(draws.shape[:2]), 0.0 * ones, ones, np.ones(draws.shape[:2]))
    wanted = facts.Wanted(400.0, True, 600.0, deviation_error=asked)
    return chained_of(problem, window, convergence(draws), None, wanted)


def uniform(number: int, dim: int = 1) -> np.ndarray:
    return np.random.default_rng(0).random((number, 16, dim))


@pytest.mark.parametrize("latents", [(), (("t", "t_decentered"),)])
def test_a_long_tail_of_a_logarithm_is_none_of_the_scale(latents: Any) -> None:
    """t ~ U(0, 1)^3: its logarithm is three times an exponential, whose fourth moment is 9."""
    draws = 3.0 * np.log(uniform(60))
    found = judged(draws, latents, t=np.exp)
    assert found.deviation_error == pytest.approx(convergence(np.exp(draws)).worst_deviation)
    assert found.deviation_error < 0.03 < convergence(draws).worst_deviation
    assert found.heavy == () and found.worst_site == "t"


def test_heavy_tails_are_those_of_the_site() -> None:
    logs = np.random.default_rng(1).standard_t(3, (40, 16, 1))
    assert convergence(logs).is_heavy.all()
    assert judged(logs, t=lambda z: z).heavy == ("t",)
    assert judged(logs, t=np.tanh).heavy == ()


@pytest.mark.parametrize(("shape", "number", "is_sure"), [(0.3, 60, False), (0.8, 600, True)])
def test_few_draws_do_not_end_what_is_asked_of_a_deviation(
    shape: float, number: int, is_sure: bool
) -> None:
    """Draws that may be heavy by chance count where the error of a deviation is asked for."""
    beyond = np.random.default_rng(6).permutation((np.arange(16 * number) + 0.5) / (16 * number))
    draws = (np.expm1(-shape * np.log(beyond)) / shape).reshape(number, 16, 1)
    usual, asked = (judged(draws, asked=each, t=lambda z: z) for each in (None, 0.015))
    assert usual.heavy == ("t",) and usual.deviation_error == 0.0
    assert asked.heavy == ("t",)
    assert (asked.deviation_error > 0.05) == (not is_sure)


def test_chains_that_differ_near_an_edge_alone_are_told_and_not_refused() -> None:
    """A scale that is known well; chains are on different sides of nothing, at its edge."""
    draws = np.random.default_rng(2).normal(size=(60, 16, 2))
    draws[:, :8, 1] -= 30.0
    found = judged(draws, mean=lambda z: z, scale=lambda z: np.maximum(0.0, z + 100.0) * 0.0)
    # What does not vary has no figures.
    assert found.worst_site == "mean" and found.r_hat < agreement.R_HAT
    assert found.coordinate_r_hat > 1.1 and found.coordinate_site == "scale"


def test_the_worst_site_is_named_with_its_other_form() -> None:
    draws = np.random.default_rng(3).normal(size=(60, 16, 2))
    draws[:, 0, 1] += 4.0
    found = judged(draws, mean=lambda z: z, scale=np.exp)
    assert found.worst_site == "scale" and found.has_other_form
    assert found.r_hat > agreement.MOST_R_HAT


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_what_varies_by_rounding_alone_is_a_constant(kind: Any) -> None:
    """The diagonal of a correlation matrix is 1 but for rounding, and has no R-hat."""
    generator = np.random.default_rng(4)
    rounding = 1.0 + np.finfo(kind).eps * generator.integers(-1, 2, size=(960, 1))
    found = site_figures(
        "R", np.hstack([rounding, generator.normal(size=(960, 1))]).astype(kind), 4, 1.0
    )
    assert np.isnan(found.values[0].r_hat) and found.values[1].r_hat < 1.02
    assert found.r_hat == found.values[1].r_hat
    near = 1.0 + 1e3 * np.finfo(kind).eps * generator.normal(size=(960, 1))
    assert varies(near.astype(kind)).all() and not varies(np.zeros((0, 2))).any()


def test_numbers_of_a_site_with_fewer_coordinates_are_constant_but_for_rounding() -> None:
    z = np.random.default_rng(5).normal(size=(64, 1)).astype(np.float32)
    one = 1.0 + np.finfo(np.float32).eps * np.sign(z)
    values = {"R": np.hstack([one, np.tanh(z)]), "x": one}
    own: Any = SimpleNamespace(
        values=lambda z: {name: each[: len(z)] for name, each in values.items()},
        coordinates={"R": slice(0, 1), "x": slice(1, 2)},
        latents={},
    )
    found = Problem.numbers(own, z)
    assert np.ptp(found["R"][:, 0]) == 0.0 and np.ptp(found["R"][:, 1]) > 1.0
    np.testing.assert_array_equal(found["x"], one)


def test_draws_that_rounding_makes_one_number_are_worth_one() -> None:
    """Alone they leave nothing else to judge; beside others they are the worst of them."""
    draws = np.random.default_rng(7).normal(size=(60, 16, 2))
    draws[:, :, 1] = 2.0
    alone, beside = judged(draws[:, :, 1:], t=np.exp), judged(draws, x=lambda z: z, t=np.exp)
    for found in (alone, beside):
        assert np.isinf(found.r_hat) and found.worst_site == "t"
        assert found.ess_bulk == found.ess_tail == found.deviation_error == 1.0


def test_sites_at_an_edge_to_the_last_digit_are_judged_by_their_coordinates() -> None:
    draws = np.random.default_rng(8).normal(size=(60, 16, 1))
    assert judged(draws, p=lambda z: 0.0 * z + 1.0).r_hat < 1.02
    draws[:, :8] += 3.0
    found = judged(draws, p=lambda z: 0.0 * z + 1.0)
    assert found.r_hat > agreement.MOST_R_HAT and found.worst_site == "p"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_draws_where_numbers_end_are_told(dtype: Any) -> None:
    """Of a density like 1 / x, whose logarithm is alike likely down to the smallest number."""
    generator, limits = np.random.default_rng(0), np.finfo(dtype)
    logs = generator.uniform(np.log(limits.tiny), 0.0, 2_000)
    near_one = 1.0 - np.exp(generator.uniform(np.log(limits.eps / 4.0), 0.0, (2_000, 2)))
    right = generator.gamma(0.3, size=2_000)
    # The second entry of a correlation's factor, near 1 where the correlation is near 0.
    factor = np.sqrt(1.0 - np.square(1e-4 * generator.normal(size=2_000)))
    sites = {"rate": np.exp(logs), "shares": near_one, "gamma": right, "factor": factor}
    draws = {name: each.astype(dtype) for name, each in sites.items()}
    positive, unit = "Gamma on Positive from 0", "Beta on UnitInterval from 0 to 1"
    families = {"rate": positive, "shares": unit, "gamma": positive, "factor": "on CorrCholesky"}
    assert saturated({**draws, "count": np.zeros(2_000, int)}, families) == ("rate", "shares")
