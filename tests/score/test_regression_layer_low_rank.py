"""The closed-form step for guides with a low-rank covariance in each layer, in both packages."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from ppl_ext.score_matching.options import Regression
from tests.backends import use_float64
from tests.closed_form_support import (
    ClosedForm,
    density_of,
    latents,
    lost_nats,
    mirrored,
    normal_scores,
)
from tests.guides_support import divergence
from tests.low_rank_support import covariance_of, example, least_divergence, other_target
from tests.score_support import guide_of

use_float64()
pytestmark = pytest.mark.formula

DIM, RANK = 11, 2
#: Coordinates of the layers of :func:`layered`; the first is in two pieces, and the others have no
#: more coordinates than the factor has columns.
LAYERS = ((0, 1, 2, 3, 4, 5, 7, 8), (6,), (9, 10))


def layered(face: Any) -> Any:
    """Two layers of several sites with another site between them."""
    host, dist = face.host, face.dist

    def model() -> None:
        host.sample("b.weight", dist.Normal(face.zeros(3, 2), 1.0).to_event(2))
        host.sample("a", dist.Normal(0.0, 1.0))
        host.sample("b.bias", dist.Normal(face.zeros(2), 1.0).to_event(1))
        host.sample("c.0", dist.Normal(0.0, 1.0))
        host.sample("c.1", dist.Normal(0.0, 1.0))

    return model


@cache
def fitter(face: Any) -> ClosedForm:
    """The closed form for these layers, to be fitted to Normals."""
    model = layered(face)
    if face.name == "pyro":
        face.host.set_rng_seed(0)
    density = face.density(guide_of(face, "AutoLayerLowRankNormal", model, rank=RANK))
    return ClosedForm(face, "layer_low_rank", density, normal_scores(face, 1, DIM))


def independent() -> tuple[np.ndarray, np.ndarray]:
    """Of the guide's family: mean and covariance."""
    generator = np.random.default_rng(0)
    scale = np.exp(generator.uniform(-1.0, 1.0, DIM))
    factor, covariance = generator.normal(size=(DIM, RANK)), np.zeros((DIM, DIM))
    for layer in map(list, LAYERS):
        covariance[np.ix_(layer, layer)] = covariance_of(scale[layer], factor[layer])
    return 2.0 + generator.normal(size=DIM), covariance


def lost(face: Any, target: Any, pairs: int, level: float = 0.0) -> float:
    """KL(q || target) after this many pairs."""
    form = fitter(face)
    factor = np.random.default_rng(1).normal(size=(DIM, RANK))
    values = {"loc": np.zeros(DIM), "scale": np.full(DIM, 0.1), "cov_factor": factor}
    start = face.constrained(form.density, values)
    return lost_nats(form, start, target, level, 0, pairs, total=0, decay=0.9)


@pytest.mark.in_one_package
def test_a_target_of_the_family_is_found(face: Any) -> None:
    """Without noise, as by one layer: what is left is what the averages have not yet forgotten."""
    assert -1e-9 < lost(face, independent(), 400) < 1e-3


@pytest.mark.in_one_package
def test_the_best_independent_layers_are_found_where_layers_are_correlated(face: Any) -> None:
    """The least divergence is known layer by layer, from blocks of the precision."""
    target = other_target(DIM, 0)
    precision = np.linalg.inv(target[1])
    least = 0.5 * float(np.linalg.slogdet(target[1])[1])
    for layer in map(list, LAYERS):
        block = precision[np.ix_(layer, layer)]
        least += 0.5 * float(np.linalg.slogdet(block)[1])
        if len(layer) > RANK:
            least += least_divergence(np.linalg.inv(block), RANK)
    assert least > 0.3
    far, near = (lost(face, target, pairs) - least for pairs in (300, 1500))
    # What layers hear of each other is noise, which falls as one over the number of pairs.
    assert -1e-6 < near < 0.4 * far
    assert near < 0.005


@pytest.mark.slow
def test_noise_is_averaged(face: Any) -> None:
    few, many = (lost(face, independent(), pairs, level=1.0) for pairs in (300, 1500))
    assert many < 0.4 * few


def one_layer(face: Any, structure: str, dim: int, **options: Any) -> Any:
    """The closed form of this structure for one site."""
    if structure != "layer_low_rank":
        return ClosedForm(face, structure, density_of(face, structure, dim, **options))
    model = latents(face, dim)
    density = face.density(guide_of(face, "AutoLayerLowRankNormal", model, **options))
    return ClosedForm(face, structure, density)


def test_one_layer_takes_the_step_of_low_rank_guides(face: Any) -> None:
    theta, score, mean, scale, factor = example(6, 2, 1.3)
    found = []
    for structure in ("layer_low_rank", "low_rank"):
        form = one_layer(face, structure, 6, rank=2)
        values = {"loc": mean, "scale": scale, "cov_factor": factor}
        parameters = face.constrained(form.density, values)
        state = form.form.initial(parameters)
        for points, scores in zip(theta, score, strict=True):
            state, parameters = form.update(state, parameters, points, scores, decay=0.8)
        moments = face.numpy(tuple(form.density.moments(parameters)))
        found.append((moments[0], moments[1] @ moments[1].T))
    assert np.abs(found[0][0] - mean).max() > 0.01
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dim", [1, 3])
def test_a_small_layer_takes_the_step_of_full_guides(face: Any, dim: int) -> None:
    generator, rank = np.random.default_rng(dim), 4
    mean, scale = generator.normal(size=dim), np.exp(generator.normal(size=dim) / 2)
    factor = generator.normal(size=(dim, rank))
    layer, full = one_layer(face, "layer_low_rank", dim, rank=rank), one_layer(face, "full", dim)
    values = {"loc": mean, "scale": scale, "cov_factor": factor}
    by_layer = face.constrained(layer.density, values)
    by_full = full.density.set_moments(
        full.density.initial_parameters(), layer.density.moments(by_layer)
    )
    states = [form.form.initial(each) for form, each in ((layer, by_layer), (full, by_full))]
    precision = np.linalg.inv(other_target(dim, 3)[1])
    for _ in range(12):
        location, root = face.numpy(tuple(layer.density.moments(by_layer)))
        # Five pairs, so that both begin to move at the same iteration.
        theta = mirrored(location + generator.normal(size=(5, dim)) @ root.T, location)
        score = (1.0 - theta) @ precision + 0.1 * generator.normal(size=theta.shape)
        states[0], by_layer = layer.update(states[0], by_layer, theta, score)
        states[1], by_full = full.update(states[1], by_full, theta, score)
    one, other = (
        face.numpy(tuple(form.density.moments(each)))
        for form, each in ((layer, by_layer), (full, by_full))
    )
    assert np.abs(one[0] - mean).max() > 0.01
    np.testing.assert_allclose(one[0], other[0], rtol=1e-7)
    np.testing.assert_allclose(one[1] @ one[1].T, other[1] @ other[1].T, rtol=1e-7)


@pytest.mark.in_both_packages
def test_it_is_what_the_engine_takes(face: Any) -> None:
    """Without a learning rate, from the guide's own start."""
    mean, covariance = independent()
    exact = face.dist.MultivariateNormal(face.array(mean), face.array(covariance))

    def model() -> None:
        z = face.host.sample(
            "net.z", face.dist.Normal(face.zeros(DIM), 1.0).mask(False).to_event(1)
        )
        face.host.factor("target", exact.log_prob(z))

    guide = face.guides.AutoLayerLowRankNormal(model, rank=6)
    fit = face.backend.fit("ProximalScoreVI", model, guide, steps=400, draws=2)
    assert isinstance(fit.engine._chosen_solver(), Regression)
    found, scale_tril = face.numpy(fit.engine.density.moments(face.fitted_parameters(fit)))
    assert divergence(found, scale_tril @ scale_tril.T, mean, covariance) < 0.05
