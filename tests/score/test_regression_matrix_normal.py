"""The closed-form regression step for matrix-normal guides, in both packages."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from ppl_ext.guides.layouts import find_blocks
from ppl_ext.score_matching.regression.matrix_normal import is_warm
from tests.backends import use_float64
from tests.closed_form_support import fitter, lost_nats
from tests.matrix_normal_support import (
    SHAPES,
    VECTOR,
    Guide,
    covariance,
    example,
    literal_step,
    posterior,
)
from tests.score_support import GuideRun, room

use_float64()
pytestmark = pytest.mark.formula

BLOCKS = find_blocks(SHAPES)
EXACT = posterior()
ROWS, COLUMNS = EXACT.mean.shape


class Step:
    """The two halves of an iteration on the sites of :data:`SHAPES`, each one program."""

    def __init__(self, face: Any) -> None:
        self.face, form = face, room(face, "score.regression").CLOSED_FORMS["matrix_normal"]

        def observed(regression: Any, factors: Any, *given: Any) -> Any:
            return form.observe(regression, factors, BLOCKS, *given)

        def updated(regression: Any, factors: Any, trust: float) -> Any:
            return form.updated_factors(regression, factors, BLOCKS, trust)

        self._observed, self._updated = map(face.backend.compiled, (observed, updated))
        self.initial = partial(form.initial_regression, blocks=BLOCKS)

    def factors(self, guide: Guide) -> Any:
        """A guide as the package's factors."""
        matrices = {
            name: tuple(map(self.face.array, pair)) for name, pair in guide.matrices.items()
        }
        module = room(self.face, "guides.matrix_normal")
        return module.Factors(*map(self.face.array, guide[:2]), matrices)

    def seen(
        self, guides: list[Guide], theta: Any, score: Any, decay: float = 0.9, total: int = 0
    ) -> Any:
        """What is known after scores (T, 2 K, D) at the draws of these guides."""
        regression = self.initial(self.face.array(guides[0].mean))
        for guide, *scores in zip(guides, theta, score, strict=True):
            arrays = map(self.face.array, scores)
            regression = self._observed(regression, self.factors(guide), *arrays, decay, total)
        return regression

    def updated(self, regression: Any, guide: Guide, trust: float) -> Guide:
        """The next guide."""
        return Guide(*self.face.numpy(tuple(self._updated(regression, self.factors(guide), trust))))


@cache
def step_of(face: Any) -> Step:
    return Step(face)


def model_of(face: Any) -> Any:
    """The regression whose posterior is known, beside a vector that is no matrix."""
    host, dist, array = face.host, face.dist, face.array

    def model(x: Any, y: Any, batch: int | None = None) -> None:
        host.sample("b", dist.Normal(*map(array, VECTOR)).to_event(1))
        noise = array(EXACT.noise)
        rows = array(EXACT.prior_rows)[:, None, None] * noise
        prior = dist.MultivariateNormal(face.zeros(ROWS, COLUMNS), rows)
        w = host.sample("w", prior.to_event(1))
        with host.plate("N", len(x), subsample_size=batch) as chosen:
            host.sample("y", dist.MultivariateNormal(x[chosen] @ w, noise), obs=y[chosen])

    return model


def lost(face: Any, level: float, seed: int, pairs: int) -> float:
    """Lost nats after this many pairs on the exact posterior with scores of relative noise."""
    form = fitter(face, "matrix_normal", ROWS, COLUMNS)
    roots = (face.array(0.3 * np.eye(ROWS)), face.array(0.3 * np.eye(COLUMNS)))
    factors = room(face, "guides.matrix_normal").Factors(
        face.zeros(ROWS * COLUMNS), face.zeros(0), {"z": roots}
    )
    start = form.density.set_factors(form.density.initial_parameters(), factors)
    target = EXACT.mean.ravel(), np.kron(EXACT.rows, EXACT.noise)
    return lost_nats(form, start, target, level, seed, pairs)


@pytest.mark.in_both_packages
@pytest.mark.parametrize(
    ("trend", "trust", "total"), [(0.4, 50.0, 0), (0.4, 1.25, 12), (0.02, 1.5, 6)]
)
def test_step_agrees_with_its_definition(face: Any, trend: float, trust: float, total: int) -> None:
    guides, theta, score = example(trend)
    step = step_of(face)
    found = step.updated(step.seen(guides, theta, score, 0.8, total), guides[-1], trust)
    expected_mean, expected_covariance = literal_step(guides, theta, score, 0.8, trust, total)
    np.testing.assert_allclose(found.mean, expected_mean, rtol=1e-8)
    np.testing.assert_allclose(covariance(found), expected_covariance, rtol=1e-7, atol=1e-12)
    for factor in (factor for pair in found.matrices.values() for factor in pair):
        assert np.array_equal(factor, np.tril(factor)) and (np.diag(factor) > 0).all()


def test_warm_up_waits_for_each_factor(face: Any) -> None:
    """A factor of 12 rows sees two columns of each pair: nine pairs; one of 2 sees 12: one pair."""
    form = room(face, "score.regression").CLOSED_FORMS["matrix_normal"]
    for shape, enough in [((12, 2), 9), ((2, 12), 9), ((4, 3), 6)]:
        blocks = find_blocks({"w": shape})
        regression = form.initial_regression(face.zeros(shape[0] * shape[1]), blocks)
        for pairs in (enough - 1, enough):
            seen = regression.seen._replace(num_pairs=face.array(pairs))
            assert is_warm(regression._replace(seen=seen), blocks) == (pairs == enough)


def test_a_common_factor_is_counted_once(face: Any) -> None:
    """A target that is nine times as precise as the guide, which is otherwise right."""
    guide, generator, step = example(1.0)[0][0], np.random.default_rng(0), step_of(face)
    precision = np.linalg.inv(covariance(guide))
    draws = generator.multivariate_normal(guide.mean, covariance(guide), size=(8, 2))
    theta = np.concatenate([draws, 2 * guide.mean - draws], axis=1)
    regression = step.seen([guide] * 8, theta, 9.0 * (guide.mean - theta) @ precision)
    found = step.updated(regression, guide, 100.0)
    np.testing.assert_allclose(covariance(found), covariance(guide) / 9.0, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(found.mean, guide.mean, rtol=1e-10)


def test_the_mean_of_a_matrix_moves_at_most_one_unit(face: Any) -> None:
    guides, theta, score = example(0.4)
    guide, step = guides[0], step_of(face)
    found = step.updated(step.seen([guide] * len(theta), theta, score + 1e5), guide, 1.25)
    for name, where, shape in BLOCKS.matrices:
        row, column = guide.matrices[name]
        move = (found.mean - guide.mean)[where].reshape(shape)
        whitened = np.linalg.solve(row, np.linalg.solve(column, move.T).T)
        assert np.linalg.norm(whitened) == pytest.approx(1.0)


def test_a_regression_posterior_is_exact_within_six_hundred_scores(face: Any) -> None:
    options: dict[str, Any] = {"solver": "regression", "args": (EXACT.x, EXACT.y)}
    run = GuideRun(face, model_of(face), "AutoMatrixNormal", **options).run(300)
    mean, found = run.moments[0], run.covariance
    (block,), (rest,) = run.engine.density.blocks().matrices, run.engine.density.blocks().rest
    fitted = mean[block.where].reshape(block.shape)
    assert abs(EXACT.kl(fitted, found[block.where, block.where])) < 1e-8
    np.testing.assert_allclose(mean[rest], VECTOR[0], atol=1e-6)
    np.testing.assert_allclose(found[rest, rest], np.diag(VECTOR[1] ** 2), rtol=1e-6)
    np.testing.assert_allclose(run.losses[-1], 0.0, atol=1e-6)


@pytest.mark.slow
def test_minibatches_are_averaged(face: Any) -> None:
    """Half of the data at a time: a tenth of a nat in twelve entries."""
    options: dict[str, Any] = {"solver": "regression", "args": (EXACT.x, EXACT.y)}
    run = GuideRun(face, model_of(face), "AutoMatrixNormal", kwargs={"batch": 6}, **options)
    mean, found = run.run(300).moments[0], run.covariance
    (block,) = run.engine.density.blocks().matrices
    where = block.where
    assert EXACT.kl(mean[where].reshape(block.shape), found[where, where]) < 0.1


@pytest.mark.slow
def test_noise_is_averaged(face: Any) -> None:
    few, many = ([lost(face, 0.3, seed, pairs) for seed in range(3)] for pairs in (60, 500))
    assert max(many) < 0.3 and max(many) < min(few)


@pytest.mark.slow
@pytest.mark.parametrize(("level", "nats"), [(0.1, 0.05), (1.0, 1.0), (3.0, 4.0), (10.0, 20.0)])
def test_no_level_of_noise_makes_it_diverge(face: Any, level: float, nats: float) -> None:
    """Twelve entries, in several seeds; at the largest level the fit is still on its way."""
    seeds = {"pyro": 2, "numpyro": 6}[face.name]
    assert max(lost(face, level, seed, 4000) for seed in range(seeds)) < nats
