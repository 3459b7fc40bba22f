"""Engines on a program with discrete latent sites in minibatches, whose posterior is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

ROWS, BATCH, SHARE, SHIFT = 200, 50, 0.3, 3.0


@cache
def data() -> np.ndarray:
    rng = np.random.default_rng(0)
    shifted = rng.uniform(size=ROWS) < SHARE
    return (0.5 + SHIFT * shifted + rng.normal(size=ROWS)).astype(np.float32)


@cache
def posterior() -> tuple[float, float]:
    """Mean and standard deviation, by quadrature."""
    grid = np.linspace(-1.0, 2.0, 2001)
    each = [
        np.log(weight) + stats.norm.logpdf(data()[:, None], grid + shift)
        for weight, shift in ((1.0 - SHARE, 0.0), (SHARE, SHIFT))
    ]
    weights = special.softmax(stats.norm.logpdf(grid) + np.logaddexp(*each).sum(0))
    mean = weights @ grid
    return float(mean), float(np.sqrt(weights @ (grid - mean) ** 2))


def program(backend: Any) -> Callable[..., None]:
    """A mean, shifted by a discrete site of each row."""
    host, dist = backend.host, backend.dist

    def model(y: Any, subsample_size: int | None = None) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 1.0))
        with host.plate("rows", ROWS, subsample_size=subsample_size) as rows:
            z = host.sample("z", dist.Bernoulli(backend.array(SHARE)))
            host.sample("y", dist.Normal(mean + SHIFT * z, 1.0), obs=y[rows])

    return model


@pytest.mark.in_one_package
@pytest.mark.parametrize("engine", ["SVGD", "SVRG", "SAGA", "ProximalScoreVI"])
def test_the_posterior_mean_is_right(backend: Any, engine: str) -> None:
    model = program(backend)
    public = backend.public
    named: dict[str, Any] = {"num_particles": 10}
    name, options, steps, batch = "SVGD", (backend.adam(0.01),), 400, {"subsample_size": BATCH}
    if engine == "SVRG":
        named["estimator"] = public.SVRG(20)
    elif engine == "SAGA":
        named["estimator"] = public.SAGA()
    elif engine == "SVGD":
        steps, batch = 300, {}
    else:
        # The closed form is exact in few steps where the scores are.
        name, named = engine, {}
        options = (backend.autoguide.AutoDiagonalNormal(model),)
        steps, batch = 60, {}
    fit = backend.fit(
        name, model, *options, steps=steps, args=(backend.array(data()),), kwargs=batch, **named
    )
    mean, deviation = posterior()
    draws = fit.samples["mean"]
    error = 5.0 * deviation / np.sqrt(len(draws)) if "num_particles" not in named else 0.0
    assert abs(draws.mean() - mean) < 0.2 * deviation + error, (draws.mean(), mean, deviation)
