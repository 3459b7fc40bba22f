"""Every public engine on every model of the zoo that it claims, in both packages."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from tests.backends import from_zoo
from tests.engine_support import Verbs
from tests.models import zoo
from tests.registry import REGISTRY

#: Enough for most engines: models whose mean, scale, Jacobian or rows go wrong when an engine's
#: do. What the other models differ in is the target's affair and the same for all engines, so that
#: the fast tests run them for one engine alone, and for rows that claim none of these.
ENOUGH = (
    "gaussian_five",
    "lognormal",
    "conjugate_normal_subsampled",
    "local_latents",
    "dependent_uniform",
)
EVERY_MODEL = ("LaplaceGGN",)
#: Those that the fast tests run in both packages, for rows whose runs take a second in Pyro. Its
#: other runs are thousands of steps one by one, which tests of rooms hold equal in both packages.
IN_BOTH = ("lognormal", "conjugate_normal_subsampled")
ROWS_IN_BOTH = ("SVN", "ProximalScoreVI, regression", "GSM", "BaM", "BaM, constant weight")


def _marks(row: str, model: str) -> list[pytest.MarkDecorator]:
    # Many steps, for what test_proximal.py shows of this solver as well.
    if row == "ProximalScoreVI, gradient":
        return [pytest.mark.slow]
    alone = not set(REGISTRY[row].bias) & set(ENOUGH)
    if row not in EVERY_MODEL and model not in ENOUGH and not alone:
        return [pytest.mark.slow]
    in_both = row == "SVGD" if model == "conjugate_normal_subsampled" else row in ROWS_IN_BOTH
    return [] if in_both and (model in IN_BOTH or alone) else [pytest.mark.in_one_package]


CLAIMS = [
    pytest.param(row, model, marks=_marks(row, model), id=f"{row}-{model}")
    for row in REGISTRY
    for model in REGISTRY[row].bias
]


def test_every_public_engine_has_a_row(backend: Any) -> None:
    public, Engine = backend.public, backend.room("engine").Engine
    engines = {
        name
        for name in public.__all__
        if inspect.isclass(getattr(public, name)) and issubclass(getattr(public, name), Engine)
    }
    assert engines == {row.engine for row in REGISTRY.values()}


#: A row for each engine, with the first model that it claims.
ENGINES = {row.engine: name for name, row in reversed(REGISTRY.items())}
OF_EACH_ENGINE = [
    pytest.param(row, marks=[] if row in ROWS_IN_BOTH else [pytest.mark.in_one_package], id=row)
    for row in ENGINES.values()
]


@pytest.mark.parametrize(("row", "name"), CLAIMS)
def test_moments(backend: Any, row: str, name: str) -> None:
    check_moments(backend, row, name)


@pytest.mark.library_start
@pytest.mark.parametrize("row", OF_EACH_ENGINE)
def test_moments_from_the_start_that_users_have(backend: Any, row: str) -> None:
    check_moments(backend, row, next(iter(REGISTRY[row].bias)))


def check_moments(backend: Any, row: str, name: str) -> None:
    """See that a row's draws have the moments of a model's posterior, but for the bias allowed."""
    chosen = REGISTRY[row]
    model, args, options = from_zoo(backend, name)
    engine, verbs = chosen.made(backend.name, model, chosen.steps), Verbs(backend, args, **options)
    state, _ = verbs.run(engine, chosen.steps)
    draws = {
        site: np.asarray(value, dtype=np.float64)
        for site, value in verbs.samples(engine, state, chosen.draws).items()
    }
    moments = zoo.ZOO[name].moments()
    assert moments
    mean_bias, std_bias = chosen.bias[name]
    for moment in moments:
        values = moment.statistic(draws)
        # Four standard errors of the mean and of the standard deviation of independent draws.
        mean_error = std_error = np.zeros(())
        if chosen.draws is not None:
            kurtosis = ((values - values.mean(0)) ** 4).mean(0) / values.var(0) ** 2
            mean_error = np.asarray(4.0 / chosen.draws**0.5)
            std_error = 2.0 * np.sqrt((kurtosis - 1.0) / chosen.draws)
        error = np.abs(values.mean(0) - moment.mean) / moment.std
        assert np.all(error < mean_bias + mean_error + moment.error + 1e-3), moment.name
        ratio = values.std(0) / moment.std
        if chosen.spread:
            assert np.all(np.abs(ratio - 1.0) < std_bias + std_error + moment.error + 1e-3), (
                moment.name
            )
        else:
            assert np.all(ratio < std_bias), moment.name
