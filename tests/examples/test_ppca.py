"""Probabilistic principal components: four ways to evidence and posterior are right."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from benchmarks import records
from docs.examples import ppca_closed_forms as closed


def test_closed_forms() -> None:
    """Against the joint Normal of z and x, and steps away from the maximum of the evidence."""
    x = closed.make_rows(30).astype(float)
    weights, scale = closed.maximum_likelihood(x)
    noise = scale**2 * np.eye(closed.COLUMNS)
    marginal = weights @ weights.T + noise
    expected = multivariate_normal(np.zeros(closed.COLUMNS), marginal).logpdf(x).sum()
    assert closed.log_evidence(x, weights, scale) == pytest.approx(expected)
    gain = weights.T @ np.linalg.inv(marginal)
    mean, covariance = closed.posterior(x, weights, scale)
    np.testing.assert_allclose(mean, x @ gain.T)
    np.testing.assert_allclose(covariance, np.eye(closed.LATENT) - gain @ weights, atol=1e-12)
    generator = np.random.default_rng(1)
    for _ in range(20):
        step = 0.05 * generator.normal(size=weights.shape)
        factor = float(np.exp(0.05 * generator.normal()))
        assert closed.log_evidence(x, weights + step, scale * factor) < expected


@pytest.mark.parametrize("host", ["pyro", "numpyro"])
def test_evidence_and_posterior_are_those_of_the_closed_forms(host: str, tmp_path: Path) -> None:
    example = importlib.import_module(f"docs.examples.{host}_examples.ppca")
    found = example.main(["--small", "--out", str(tmp_path)])
    (run,) = records.read(tmp_path / "ppca.jsonl")
    assert run.figures == found and run.backend == host
    best = found["largest evidence, a row"]
    # An error of relative size e in the parameters costs e squared.
    assert best - 0.005 < found["evidence at the trained weights, a row"] <= best + 1e-5
    bound = found["ELBO at the trained weights, a row"]
    assert bound == pytest.approx(found["evidence at the trained weights, a row"], abs=0.01)
    assert found["scale"] == pytest.approx(found["scale of maximum likelihood"], rel=0.02)
    assert found["largest error of the encoder's means, in sd"] < 0.15
    assert found["largest error of the encoder's covariance, relative"] < 0.05
    # The Gaussian is exact; what is left is float32's.
    assert found["evidence by LaplaceGGN, a row"] == pytest.approx(best, abs=1e-4)
    # Of at least 60 independent draws of each latent.
    assert found["error of the chains' means, root mean square, in sd"] < 0.2
    assert found["sd of the chains' draws over the exact one"] == pytest.approx(1.0, abs=0.05)
    assert found["error of AutoNormal's means, root mean square, in sd"] < 0.15
    assert found["sd of AutoNormal over the exact one"] == pytest.approx(1.0, abs=0.05)
