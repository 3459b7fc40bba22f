"""Every public engine on every model of the zoo that it claims, in both packages."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from tests.models import zoo
from tests.registry import REGISTRY, Row

PACKAGES = ("pyro", "numpyro")
#: Models that differ in plates, masks and scales alone. Those are the target's affair, the same
#: for all engines, but for the curvature of LaplaceGGN; the fast tests run them for one engine
#: and for rows that claim no other.
WIRING = ("gaussian_two_sites", "nested_plates", "masked_observations", "scaled_observations")


def _marks(row: str, model: str) -> list[pytest.MarkDecorator]:
    needed = row in ("SVGD", "LaplaceGGN") or set(REGISTRY[row].bias) <= set(WIRING)
    # The gradient solver takes a minute for what its other Normal shows as well.
    twin = (row, model) == ("ProximalScoreVI, gradient", "conjugate_normal")
    return [pytest.mark.slow] if twin or (model in WIRING and not needed) else []


CLAIMS = [
    pytest.param(row, model, marks=_marks(row, model), id=f"{row}-{model}")
    for row in REGISTRY
    for model in REGISTRY[row].bias
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_engine_has_a_row(package: str) -> None:
    if package == "pyro":
        import pyro_ext as public
        from pyro_ext.engine import Engine
    else:
        import numpyro_ext as public
        from numpyro_ext.engine import Engine
    engines = {
        name
        for name in public.__all__
        if inspect.isclass(getattr(public, name)) and issubclass(getattr(public, name), Engine)
    }
    assert engines == {row.engine for row in REGISTRY.values()}


def _draws(package: str, row: Row, name: str) -> dict[str, np.ndarray]:
    if package == "pyro":
        from tests.models import pyro_models as models

        model = models.build(name)
        engine: Any = row.pyro(model, row.steps)
        args = models.arguments(name)
        engine.run(row.steps, *args, progress_bar=False, **zoo.ZOO[name].options)
        draws = engine.get_samples(row.draws)
    else:
        import jax

        from tests.models import numpyro_models as models

        model = models.build(name)
        engine = row.numpyro(model, row.steps)
        args = models.arguments(name)
        options = zoo.ZOO[name].options
        result = engine.run(jax.random.key(0), row.steps, *args, progress_bar=False, **options)
        draws = engine.get_samples(result.state, num_samples=row.draws)
    return {site: np.asarray(value, dtype=np.float64) for site, value in draws.items()}


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize(("row", "name"), CLAIMS)
def test_moments(package: str, row: str, name: str) -> None:
    chosen = REGISTRY[row]
    draws = _draws(package, chosen, name)
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
