"""Standard deviations of chains are judged by the sites as written."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppl_ext.chains.convergence import convergence
from ppl_ext.fit import policy
from ppl_ext.fit.ladder import _by_sites

RESTED = policy.Chained(1.004, 600.0, 500.0, 1.0, ("t",), 0.0, 0.0, 0.5, False, "t")


def judged(draws: np.ndarray, latents: Any = (), **sites: Any) -> policy.Chained:
    """Chains (N, M, D) with a coordinate for each site, whose values are functions of it."""
    problem: Any = SimpleNamespace(
        coordinates={dict(latents).get(n, n): slice(k, k + 1) for k, n in enumerate(sites)},
        latents=dict(latents),
        numbers=lambda z: {n: of(z[:, k]) for k, (n, of) in enumerate(sites.items())},
    )
    figures = convergence(draws)
    worst = replace(RESTED, deviation_error=figures.worst_deviation)
    return _by_sites(worst, problem, figures, draws, None)


def uniform(number: int, dim: int = 1) -> np.ndarray:
    return np.random.default_rng(0).random((number, 16, dim))


@pytest.mark.parametrize("latents", [(), (("t", "t_decentered"),)])
def test_a_long_tail_of_a_logarithm_is_none_of_the_scale(latents: Any) -> None:
    """t ~ U(0, 1)^3: its logarithm is three times an exponential, whose fourth moment is 9."""
    draws = 3.0 * np.log(uniform(60))
    assert convergence(draws).deviation_error.max() > policy.DEVIATION_ERROR
    found = judged(draws, latents, t=np.exp)
    assert found.deviation_error == pytest.approx(convergence(np.exp(draws)).worst_deviation)
    assert found.deviation_error < policy.DEVIATION_ERROR and found.heavy == ()


def test_a_site_is_known_as_well_as_its_coordinate_and_what_neither_tells_is_not() -> None:
    draws = uniform(30)
    own = convergence(draws).worst_deviation
    assert own < policy.DEVIATION_ERROR
    # Nothing is looked at where coordinates are known.
    assert judged(draws, t=lambda z: 1 / 0).deviation_error == own
    short = uniform(8)
    error = judged(short, t=lambda z: z**2).deviation_error
    figures = [convergence(each).worst_deviation for each in (short, short**2)]
    assert error == pytest.approx(min(figures)) and error > policy.DEVIATION_ERROR


def test_heavy_tails_are_those_of_the_site() -> None:
    logs = np.random.default_rng(1).standard_t(3, (40, 16, 1))
    assert convergence(logs).is_heavy.all()
    assert judged(logs, t=lambda z: z).heavy == ("t",)
    assert judged(logs, t=np.tanh).heavy == ()
