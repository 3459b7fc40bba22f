"""Steps, marginal likelihoods and Gaussians of LaplaceGGN agree between the packages in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.curvature.program_curvature import GaussNewton
from tests.backends import PACKAGES, backend_of, use_float64
from tests.stein_support import Run, optimizer

use_float64()

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(12, 2))
Y = (X.sum(1) > 0.0).astype(float)
START = 0.5 * GENERATOR.normal(size=(1, 10))


def running(backend: Any, **options: Any) -> Run:
    host, dist, xp = backend.host, backend.dist, backend.xp
    scales = backend.array(np.array([1.0, 2.0, 3.0]))

    def network(x: Any, y: Any) -> None:
        width = host.sample("width", dist.Gamma(2.0, 1.0))
        w = host.sample("w", dist.Normal(xp.zeros((2, 3)), width).to_event(2))
        v = host.sample("v", dist.Normal(xp.zeros(3), scales).to_event(1))
        with host.plate("N", 12):
            host.sample("y", dist.Bernoulli(logits=xp.tanh(x @ w) @ v), obs=y)

    sgd, data = optimizer(backend, "sgd", 0.02), backend.arrays((X, Y))
    return Run(backend, "LaplaceGGN", network, sgd, args=data, start=START, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"curvature": "kfac", "hyperparameters": ["width"], "hyperparameters_every": 2},
        {
            "curvature": GaussNewton("low_rank", sites=["v"], rank=3),
            "hyperparameters": ["width"],
        },
    ],
    ids=["kfac", "low_rank"],
)
def test_steps_and_gaussians_agree(options: dict[str, Any]) -> None:
    runs = [running(backend_of(package), **options) for package in PACKAGES]
    for _ in range(3):
        loss, expected = (run.step() for run in runs)
        assert loss == pytest.approx(expected, rel=1e-10)
        np.testing.assert_allclose(runs[0].particles, runs[1].particles, rtol=1e-9)
    found, expected = (float(run.call("log_marginal_likelihood")) for run in runs)
    assert found == pytest.approx(expected, rel=1e-9)
    dim = 9 if options["curvature"] == "kfac" else 3
    ours, theirs = (
        run.backend.numpy(run.call("fit_curvature").draws(run.backend.array(np.eye(dim))))
        for run in runs
    )
    # Eigenvectors may differ in sign; what the draws' covariance is may not.
    np.testing.assert_allclose(ours.T @ ours, theirs.T @ theirs, rtol=1e-8, atol=1e-10)
