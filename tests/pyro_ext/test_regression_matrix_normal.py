"""The closed-form regression step for matrix-normal guides in Pyro's package."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from ppl_ext.guides.layouts import find_blocks
from pyro_ext.guides.matrix_normal import (
    AutoMatrixNormal,
    Factors,
    MatrixNormalDensity,
)
from pyro_ext.score import ProximalScoreVI
from pyro_ext.score.regression.base import restored, saved
from pyro_ext.score.regression.matrix_normal import (
    initial_regression,
    is_warm,
    observe,
    updated_factors,
)
from pyro_ext.score.regression.pairs import antithetic
from tests.matrix_normal_support import (
    DIM,
    SHAPES,
    VECTOR,
    Guide,
    covariance,
    example,
    literal_step,
    posterior,
)
from tests.regression_support import noisy

torch.set_default_dtype(torch.float64)

BLOCKS = find_blocks({name: torch.Size(shape) for name, shape in SHAPES.items()})
EXACT = posterior()
ROWS, COLUMNS = EXACT.mean.shape
DATA = torch.tensor(EXACT.x), torch.tensor(EXACT.y)


def factors_of(guide: Guide) -> Factors:
    matrices = {
        name: (torch.tensor(row), torch.tensor(column))
        for name, (row, column) in guide.matrices.items()
    }
    return Factors(torch.tensor(guide.mean), torch.tensor(guide.scale), matrices)


def guide_of(factors: Factors) -> Guide:
    matrices = {
        name: (row.numpy(), column.numpy()) for name, (row, column) in factors.matrices.items()
    }
    return Guide(factors.mean.numpy(), factors.scale.numpy(), matrices)


def model(x: torch.Tensor, y: torch.Tensor, batch: int | None = None) -> None:
    pyro.sample("b", dist.Normal(*map(torch.tensor, VECTOR)).to_event(1))
    noise = torch.tensor(EXACT.noise)
    rows = torch.tensor(EXACT.prior_rows)[:, None, None] * noise
    w = pyro.sample("w", dist.MultivariateNormal(torch.zeros(ROWS, COLUMNS), rows).to_event(1))
    with pyro.plate("N", len(x), subsample_size=batch) as chosen:
        pyro.sample("y", dist.MultivariateNormal(x[chosen] @ w, noise), obs=y[chosen])


def lost(level: float, seed: int, pairs: int) -> float:
    """Lost nats after this many pairs on the exact posterior with scores of relative noise."""
    blocks = find_blocks({"w": torch.Size((ROWS, COLUMNS))})
    rows, columns = np.linalg.inv(EXACT.rows), np.linalg.inv(EXACT.noise)
    generator = np.random.default_rng(seed)
    start = {"w": (0.3 * torch.eye(ROWS), 0.3 * torch.eye(COLUMNS))}
    factors = Factors(torch.zeros(ROWS * COLUMNS), torch.zeros(0), start)
    regression = initial_regression(factors.mean, blocks)
    for _ in range(pairs):
        row_factor, column_factor = factors.matrices["w"]
        noise = torch.tensor(generator.normal(size=(ROWS, COLUMNS)))
        draw = factors.mean + (row_factor @ noise @ column_factor.T).reshape(-1)
        theta = antithetic(draw[None], factors.mean)
        offset = EXACT.mean - theta.numpy().reshape(2, ROWS, COLUMNS)
        score = noisy((rows @ offset @ columns).reshape(2, -1), level, generator)
        regression = observe(regression, factors, blocks, theta, torch.tensor(score), total=pairs)
        if is_warm(regression, blocks):
            factors = updated_factors(regression, factors, blocks)
    found = guide_of(factors)
    row, column = found.matrices["w"]
    mean = found.mean.reshape(ROWS, COLUMNS)
    return EXACT.kl(mean, np.kron(row @ row.T, column @ column.T))


@pytest.mark.parametrize(
    ("trend", "trust", "total"), [(0.4, 50.0, 0), (0.4, 1.25, 12), (0.02, 1.5, 6)]
)
def test_step_agrees_with_its_definition(trend: float, trust: float, total: int) -> None:
    guides, theta, score = example(trend)
    regression = initial_regression(torch.tensor(guides[0].mean), BLOCKS)
    for guide, points, scores in zip(guides, theta, score, strict=True):
        tensors = torch.tensor(points), torch.tensor(scores)
        regression = observe(regression, factors_of(guide), BLOCKS, *tensors, 0.8, total)
    found = updated_factors(regression, factors_of(guides[-1]), BLOCKS, trust)
    expected_mean, expected_covariance = literal_step(guides, theta, score, 0.8, trust, total)
    np.testing.assert_allclose(found.mean, expected_mean, rtol=1e-8)
    np.testing.assert_allclose(
        covariance(guide_of(found)), expected_covariance, rtol=1e-7, atol=1e-12
    )
    for factor in (factor for pair in found.matrices.values() for factor in pair):
        assert torch.equal(factor, factor.tril()) and (factor.diagonal() > 0).all()


def test_warm_up_waits_for_each_factor() -> None:
    """A factor of 12 rows sees two columns of each pair: nine pairs; one of 2 sees 12: one pair."""
    for shape, enough in [((12, 2), 9), ((2, 12), 9), ((4, 3), 6)]:
        blocks = find_blocks({"w": torch.Size(shape)})
        regression = initial_regression(torch.zeros(shape[0] * shape[1]), blocks)
        for pairs in (enough - 1, enough):
            count = regression.seen._replace(num_pairs=pairs)
            assert is_warm(regression._replace(seen=count), blocks) == (pairs == enough)


def test_a_common_factor_is_counted_once() -> None:
    """A target that is nine times as precise as the guide, which is otherwise right."""
    guide = example(1.0)[0][0]
    factors, generator = factors_of(guide), np.random.default_rng(0)
    precision = np.linalg.inv(covariance(guide))
    regression = initial_regression(factors.mean, BLOCKS)
    for _ in range(8):
        draws = generator.multivariate_normal(guide.mean, covariance(guide), size=1)
        theta = np.concatenate([draws, 2 * guide.mean - draws])
        score = 9.0 * (guide.mean - theta) @ precision
        regression = observe(regression, factors, BLOCKS, torch.tensor(theta), torch.tensor(score))
    found = updated_factors(regression, factors, BLOCKS, 100.0)
    np.testing.assert_allclose(
        covariance(guide_of(found)), covariance(guide) / 9.0, rtol=1e-8, atol=1e-12
    )
    np.testing.assert_allclose(found.mean, guide.mean, rtol=1e-10)


def test_the_mean_of_a_matrix_moves_at_most_one_unit() -> None:
    guides, theta, score = example(0.4)
    factors = factors_of(guides[0])
    regression = initial_regression(factors.mean, BLOCKS)
    for points, scores in zip(theta, score, strict=True):
        tensors = torch.tensor(points), torch.tensor(scores + 1e5)
        regression = observe(regression, factors, BLOCKS, *tensors)
    found = updated_factors(regression, factors, BLOCKS)
    for name, where, shape in BLOCKS.matrices:
        row, column = factors.matrices[name]
        move = (found.mean - factors.mean)[where].reshape(shape)
        whitened = torch.linalg.solve(row, torch.linalg.solve(column, move.T).T)
        assert float(whitened.norm()) == pytest.approx(1.0)


def test_a_regression_posterior_is_exact_within_six_hundred_scores() -> None:
    engine = ProximalScoreVI(model, AutoMatrixNormal, solver="regression", seed=0)
    result = engine.run(300, *DATA, progress_bar=False)
    mean, root = (value.numpy() for value in engine.density.moments(engine.parameters))
    assert isinstance(engine.density, MatrixNormalDensity)
    (block,), (rest,) = engine.density.blocks().matrices, engine.density.blocks().rest
    found = root @ root.T
    fitted = mean[block.where].reshape(block.shape)
    assert abs(EXACT.kl(fitted, found[block.where, block.where])) < 1e-8
    np.testing.assert_allclose(mean[rest], VECTOR[0], atol=1e-6)
    np.testing.assert_allclose(found[rest, rest], np.diag(VECTOR[1] ** 2), rtol=1e-6)
    np.testing.assert_allclose(result.losses[-1], 0.0, atol=1e-6)


def test_minibatches_are_averaged() -> None:
    """Half of the data at a time: a tenth of a nat in twelve entries."""
    engine = ProximalScoreVI(model, AutoMatrixNormal, solver="regression", seed=1)
    engine.run(300, *DATA, batch=6, progress_bar=False)
    mean, root = (value.numpy() for value in engine.density.moments(engine.parameters))
    assert isinstance(engine.density, MatrixNormalDensity)
    (block,) = engine.density.blocks().matrices
    found = (root @ root.T)[block.where, block.where]
    assert EXACT.kl(mean[block.where].reshape(block.shape), found) < 0.1


def test_noise_is_averaged() -> None:
    few, many = ([lost(0.3, seed, pairs) for seed in range(2)] for pairs in (60, 500))
    assert max(many) < 0.3 and max(many) < min(few)


@pytest.mark.slow
@pytest.mark.parametrize(("level", "nats"), [(0.1, 0.05), (1.0, 1.0), (3.0, 4.0), (10.0, 20.0)])
def test_no_level_of_noise_makes_it_diverge(level: float, nats: float) -> None:
    """Twelve entries, in two seeds; at the largest level the fit is still on its way."""
    assert max(lost(level, seed, 4000) for seed in range(2)) < nats


def test_saved_and_restored() -> None:
    guides, theta, score = example(0.4)
    start = initial_regression(torch.zeros(DIM), BLOCKS)
    tensors = torch.tensor(theta[0]), torch.tensor(score[0])
    regression = observe(start, factors_of(guides[0]), BLOCKS, *tensors)
    again = restored(start, saved(regression))
    assert again.seen == regression.seen and type(again.matrices[1]) is type(start.matrices[1])
    assert torch.equal(again.matrices[1].rows.covariance, regression.matrices[1].rows.covariance)
    assert torch.equal(again.rest.score_covariance, regression.rest.score_covariance)
