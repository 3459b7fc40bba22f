"""Guides put to a start, in both packages: moments are the start's as far as the family allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ppl_ext.start.start import Mode, Start
from tests.backends import use_float64

use_float64()

DIM = 7
_RANDOM = np.random.default_rng(0).normal(size=(DIM, DIM))
SCALES = np.geomspace(0.01, 100.0, DIM)
COVARIANCE = SCALES[:, None] * (np.eye(DIM) + 0.3 * _RANDOM @ _RANDOM.T) * SCALES
ROOT = np.linalg.cholesky(COVARIANCE)
MEAN = np.arange(DIM) - 2.0
FULL = Start((Mode(MEAN, ROOT, 0.0, 0.1),), 100)
LONG = Start((Mode(MEAN, SCALES, 0.0, 0.1),), 100)


def model_of(backend: Any) -> Callable[[], None]:
    """A matrix of 2 x 3 and a number."""
    host, dist = backend.host, backend.dist

    def model() -> None:
        matrix = dist.Normal(backend.xp.zeros(2), 1.0).to_event(1)
        with host.plate("rows", 3):
            host.sample("w", matrix)
        host.sample("b", dist.Normal(0.0, 1.0))

    return model


def moments(backend: Any, guide: Any, start: Start, name: str = "moments") -> Any:
    density = guide_density(backend, guide)
    parameters = density.set_start(density.initial_parameters(), start)
    found = getattr(density, name)(parameters)
    return type(found)(*(backend.numpy(each) for each in found))


def guide_density(backend: Any, guide: Any) -> Any:
    if backend.is_pyro:
        return backend.public.flat_density(guide)
    return backend.public.flat_density(guide, backend.key())


@pytest.mark.parametrize("start", [FULL, LONG], ids=["full", "long"])
def test_diagonal_guides_take_conditional_deviations(backend: Any, start: Start) -> None:
    guide = backend.autoguide.AutoDiagonalNormal(model_of(backend))
    found = moments(backend, guide, start)
    np.testing.assert_allclose(found.mean, MEAN)
    precision = np.linalg.inv(COVARIANCE) if start is FULL else np.diag(SCALES**-2)
    np.testing.assert_allclose(found.scale, np.diag(precision) ** -0.5, rtol=1e-6)


@pytest.mark.parametrize("start", [FULL, LONG], ids=["full", "long"])
def test_full_guides_take_all(backend: Any, start: Start) -> None:
    guide = backend.autoguide.AutoMultivariateNormal(model_of(backend))
    found = moments(backend, guide, start)
    np.testing.assert_allclose(found.mean, MEAN)
    expected = ROOT if start is FULL else np.diag(SCALES)
    np.testing.assert_allclose(found.scale, expected, rtol=1e-6, atol=1e-12)


def test_low_rank_guides_take_what_their_rank_holds(backend: Any) -> None:
    deviations = np.sqrt(np.diag(np.linalg.inv(COVARIANCE))) ** -1
    for rank in (2, DIM):
        guide = backend.autoguide.AutoLowRankMultivariateNormal(model_of(backend), rank=rank)
        found = moments(backend, guide, FULL)
        np.testing.assert_allclose(found.mean, MEAN)
        covariance = found.scale @ found.scale.T
        white = covariance / np.outer(deviations, deviations)
        expected = COVARIANCE / np.outer(deviations, deviations)
        # The best of this rank that leaves the identity: its eigenvalues are the greatest.
        values, vectors = np.linalg.eigh(expected - np.eye(DIM))
        kept = np.where(np.arange(DIM) >= DIM - rank, np.maximum(values, 0.0), 0.0)
        best = np.eye(DIM) + (vectors * kept) @ vectors.T
        np.testing.assert_allclose(white, best, rtol=0.02, atol=0.02)
    guide = backend.autoguide.AutoLowRankMultivariateNormal(model_of(backend), rank=2)
    found = moments(backend, guide, LONG)
    # No direction is known, and W is small but not zero, where it could not move.
    ratio = np.linalg.norm(found.scale, axis=1) / SCALES
    assert (ratio >= 1.0).all() and ratio.max() < 1.01 and ratio.max() > 1.0


def test_a_column_that_a_guide_has_at_zero_stays_there(backend: Any) -> None:
    guide = backend.autoguide.AutoLowRankMultivariateNormal(model_of(backend), rank=2)
    density = guide_density(backend, guide)
    before = density.initial_parameters()
    (name,) = (each for each in before if each.endswith("cov_factor"))
    factor = backend.numpy(before[name]) * [0.0, 1.0]
    found = density.set_start({**before, name: backend.array(factor)}, LONG)
    lengths = np.linalg.norm(backend.numpy(found[name]), axis=0)
    np.testing.assert_allclose(lengths, [0.0, 0.1], rtol=1e-6)


def test_matrix_guides_take_levels_of_rows_and_columns(backend: Any) -> None:
    public = backend.public
    guide = public.AutoMatrixNormal(model_of(backend))
    levels = np.outer([1.0, 2.0, 4.0], [0.3, 3.0]).ravel()
    scales = np.concatenate([levels, [0.5]])
    start = Start((Mode(MEAN, scales, 0.0, 0.1),), 100)
    found = moments(backend, guide, start)
    np.testing.assert_allclose(found.mean, MEAN)
    # A product of rows' and columns' deviations is kept whole.
    np.testing.assert_allclose(np.linalg.norm(found.scale, axis=-1), scales, rtol=1e-6)


def test_mixtures_take_modes(backend: Any) -> None:
    other = Mode(MEAN + 50.0, np.eye(DIM), np.log(0.25), 0.1)
    start = Start((*FULL.modes, other), 100)
    guide = backend.public.AutoGaussianMixture(model_of(backend), 3, covariance="full")
    found = moments(backend, guide, start, "components")
    np.testing.assert_allclose(found.loc[0], MEAN)
    np.testing.assert_allclose(found.loc[1], MEAN + 50.0)
    np.testing.assert_allclose(found.scale_tril[1], np.eye(DIM), atol=1e-8)
    np.testing.assert_allclose(found.scale_tril[0], ROOT, rtol=1e-6, atol=1e-12)
    weights = np.exp(found.logits) / np.exp(found.logits).sum()
    # The first mode's share is divided among its component and the one that was drawn.
    np.testing.assert_allclose(weights, [0.4, 0.2, 0.4], rtol=1e-6)


@pytest.mark.parametrize("name", ["AutoPlanarFlow", "AutoLayerLowRankNormal"])
def test_other_guides_take_place_and_scale(backend: Any, name: str) -> None:
    density = guide_density(backend, getattr(backend.public, name)(model_of(backend)))
    before = density.initial_parameters()
    parameters = density.set_start(before, LONG)
    random = backend.key(1)
    drawn = backend.numpy(density.sample(parameters, random, 4_000))
    # Flows and factors stay as they are, next to nothing.
    assert (np.abs(drawn.mean(0) - MEAN) < 0.15 * SCALES).all()
    np.testing.assert_allclose(drawn.std(0), SCALES, rtol=0.15)
    kept = [each for each in before if not each.endswith(("loc", "scale", "scale_unconstrained"))]
    assert kept
    for each in kept:
        # By way of the host's constraints.
        np.testing.assert_allclose(
            backend.numpy(parameters[each]), backend.numpy(before[each]), rtol=1e-6
        )


def test_guides_as_starts(backend: Any) -> None:
    public, autoguide = backend.public, backend.autoguide
    other = Mode(MEAN + 50.0, np.eye(DIM), np.log(0.25), 0.1)
    for guide, start in (
        (autoguide.AutoMultivariateNormal(model_of(backend)), FULL),
        (autoguide.AutoDiagonalNormal(model_of(backend)), LONG),
        (public.AutoGaussianMixture(model_of(backend), 2), Start((*FULL.modes, other), 100)),
    ):
        density = guide_density(backend, guide)
        found = density.as_start(density.set_start(density.initial_parameters(), start))
        np.testing.assert_allclose(found.weights, start.weights, rtol=1e-6)
        for one, two in zip(found.modes, start.modes, strict=True):
            np.testing.assert_allclose(one.mean, two.mean, rtol=1e-6)
            np.testing.assert_allclose(one.factor, two.factor, rtol=1e-6, atol=1e-8)
    flow = guide_density(backend, public.AutoPlanarFlow(model_of(backend)))
    assert flow.as_start(flow.initial_parameters()) is None


def test_guides_that_cannot_are_told(backend: Any) -> None:
    guide = backend.public.AutoGaussianMixture(model_of(backend), 2, covariance="diag")
    density = guide_density(backend, guide)
    assert not density.takes_start
    with pytest.raises(backend.public.ArgumentError, match="covariance='full'"):
        density.set_start(density.initial_parameters(), FULL)
