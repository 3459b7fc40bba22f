"""The matrix normal guides, against dense covariances."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg, stats

from ppl_ext.errors import ArgumentError
from ppl_ext.guides.layouts import Blocks, MatrixBlock, find_blocks
from tests import arviz_support, guides_support
from tests.backends import use_float64
from tests.guides_support import face_of, normal

use_float64()

BLOCKS = Blocks(
    (MatrixBlock("w", slice(1, 7), (3, 2)), MatrixBlock("p", slice(7, 15), (2, 4))),
    (slice(0, 1), slice(15, 20)),
)
DIM, REST = 20, 6


@cache
def model_of(package: str) -> Any:
    """Two matrices of unequal sides, one of them constrained, with other sites around them."""
    face = face_of(package)
    host, dist = face.host, face.dist

    def model() -> None:
        host.sample("a", dist.LogNormal(0.0, 1.0))
        host.sample("w", dist.Normal(face.zeros(3, 2), 1.0).to_event(2))
        with host.plate("groups", 2):
            host.sample("p", dist.Dirichlet(face.ones(5)))
        host.sample("z", dist.Normal(face.zeros(2), 1.0).to_event(1))
        host.sample("r", dist.Normal(face.zeros(1, 3), 1.0).to_event(2))

    return model


def random_factors() -> tuple[np.ndarray, np.ndarray, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Factors far from symmetric: rows and columns, and w and p, all differ."""
    draws = np.random.default_rng(0)

    def lower(length: int, level: float) -> np.ndarray:
        factor = np.tril(draws.normal(size=(length, length)), -1)
        return level * (factor + np.diag(draws.uniform(0.5, 2.0, length)))

    return (
        draws.normal(size=DIM),
        draws.uniform(0.5, 2.0, REST),
        {"w": (lower(3, 0.4), lower(2, 1.5)), "p": (lower(2, 1.0), lower(4, 0.7))},
    )


MEAN, SCALE, MATRICES = random_factors()


def kronecker(pair: Any) -> np.ndarray:
    row, column = pair
    return np.kron(row @ row.T, column @ column.T)


#: Sites in flat order, each matrix row by row.
COVARIANCE = linalg.block_diag(
    np.diag(SCALE[:1] ** 2), *map(kronecker, MATRICES.values()), np.diag(SCALE[1:] ** 2)
)


def as_factors(face: Any, mean: Any, scale: Any, matrices: Any) -> Any:
    pairs = {name: tuple(map(face.array, pair)) for name, pair in matrices.items()}
    return matrix_module(face).Factors(face.array(mean), face.array(scale), pairs)


def matrix_module(face: Any) -> Any:
    return face.guides.matrix_normal


@cache
def fitted(package: str) -> tuple[Any, dict[str, Any]]:
    face = face_of(package)
    density = face.density(face.guides.AutoMatrixNormal(model_of(package)))
    assert isinstance(density, face.guides.MatrixNormalDensity)
    factors = as_factors(face, MEAN, SCALE, MATRICES)
    return density, density.set_factors(density.initial_parameters(), factors)


# -- blocks ----------------------------------------------------------------------------------------


def test_which_sites_are_matrices(face: Any) -> None:
    density, _ = fitted(face.name)
    assert density.blocks() == BLOCKS
    assert density.blocks().num_rest == REST
    assert density.dim == DIM and density.covariance_structure == "matrix_normal"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), None),
        ((4,), None),
        ((1, 4), None),
        ((4, 1), None),
        ((1, 1, 1), None),
        ((0, 3), None),
        ((2, 3), (2, 3)),
        ((1, 2, 3), (2, 3)),
        ((2, 1, 3), (2, 3)),
        ((2, 3, 4), (2, 12)),
    ],
)
def test_shapes_of_matrices(shape: tuple[int, ...], expected: Any) -> None:
    blocks = find_blocks({"first": (), "x": shape, "last": (2,)})
    stop = 1 + math.prod(shape)
    if expected is None:
        assert blocks == Blocks((), (slice(0, stop + 2),))
    else:
        assert blocks.matrices == (MatrixBlock("x", slice(1, stop), expected),)
        assert blocks.rest == (slice(0, 1), slice(stop, stop + 2))


# -- the density -----------------------------------------------------------------------------------


def test_log_prob_and_score_are_those_of_the_dense_normal(face: Any) -> None:
    guides_support.check_log_prob_and_score(face, *fitted(face.name), MEAN, COVARIANCE)


@pytest.mark.formula
def test_score_is_the_slope_of_the_log_density(face: Any) -> None:
    density, parameters = fitted(face.name)
    theta, step = normal(1, DIM), 1e-5
    up, down = (
        face.call(density.log_prob, parameters, theta + change * np.eye(DIM))
        for change in (step, -step)
    )
    score = face.call(density.score, parameters, theta)
    np.testing.assert_allclose(score, (up - down) / (2 * step), rtol=1e-7, atol=1e-7)


def test_the_hosts_transform_is_the_map_that_it_says(face: Any) -> None:
    density, parameters = fitted(face.name)
    if face.name == "pyro":
        (transform,) = face.posterior(density, parameters).transforms
    else:
        transform = density.guide.get_transform(density.write_back(parameters))
    noise = normal(2, 4, DIM)
    draws = transform(face.array(noise))
    found, rows, columns = face.numpy(draws), *MATRICES["p"]
    # Literally W = M + A E B^T, and the inverse of the map.
    for draw, point in zip(found[:, 7:15], noise[:, 7:15], strict=True):
        expected = MEAN[7:15].reshape(2, 4) + rows @ point.reshape(2, 4) @ columns.T
        np.testing.assert_allclose(draw.reshape(2, 4), expected, rtol=1e-9)
    np.testing.assert_allclose(found[:, 15:], MEAN[15:] + SCALE[1:] * noise[:, 15:], rtol=1e-9)
    np.testing.assert_allclose(face.numpy(transform.inv(draws)), noise, rtol=1e-9)
    _, expected = np.linalg.slogdet(face.jacobian(transform, noise[0]))
    found = face.numpy(transform.log_abs_det_jacobian(face.array(noise), draws))
    np.testing.assert_allclose(found, np.full(4, expected), rtol=1e-9)


def test_residual_gradient_agrees_with_double_differentiation(face: Any) -> None:
    density, parameters = fitted(face.name)
    moved = {
        name: value + 0.3 * face.array(normal(number, *value.shape))
        for number, (name, value) in enumerate(parameters.items())
    }
    guides_support.check_residual_gradient(face, density, moved)


@pytest.mark.parametrize("source", ["density", "host"])
def test_draws_have_the_mean_and_the_covariance(face: Any, source: str) -> None:
    density, parameters = fitted(face.name)
    if source == "density":
        draws = face.draws(density, parameters, 100_000)
        np.testing.assert_array_equal(draws, face.draws(density, parameters, 100_000))
        face.no_gradient_through(density, parameters)
    else:
        draws = face.posterior_draws(density, parameters, 100_000)
    assert draws.shape == (100_000, DIM)
    guides_support.check_moments_of_draws(draws, MEAN, COVARIANCE)


# -- factors and moments ---------------------------------------------------------------------------


@pytest.mark.formula
def test_moments_and_factors(face: Any) -> None:
    density, parameters = fitted(face.name)
    mean, scale_tril = face.call(density.moments, parameters)
    np.testing.assert_allclose(mean, MEAN)
    np.testing.assert_allclose(scale_tril @ scale_tril.T, COVARIANCE, rtol=1e-10, atol=1e-14)
    np.testing.assert_array_equal(scale_tril, np.tril(scale_tril))

    found = density.factors(parameters)
    mean, scale, matrices = face.numpy(found)
    guides_support.check_close((mean, scale), (MEAN, SCALE))
    for name, (row, column) in matrices.items():
        np.testing.assert_allclose(np.kron(row, column), np.kron(*MATRICES[name]), atol=1e-12)
        # The shared scale is divided evenly, so that the factors are unique.
        levels = [np.log(np.diagonal(factor)).mean() for factor in (row, column)]
        assert levels[0] == pytest.approx(levels[1])
    again = density.set_factors(parameters, found)
    guides_support.check_close(face.numpy(again), face.numpy(parameters))


def test_start_is_a_normal_of_the_initial_scale(face: Any) -> None:
    density = face.density(face.guides.AutoMatrixNormal(model_of(face.name), init_scale=0.3))
    parameters = density.initial_parameters()
    np.testing.assert_allclose(
        face.numpy(density.moments(parameters).scale), 0.3 * np.eye(DIM), atol=1e-14
    )
    again = density.set_factors(parameters, density.factors(parameters))
    guides_support.check_close(face.numpy(again), face.numpy(parameters))


NAMES = {
    ("pyro", 1): {"loc", "scale_unconstrained"},
    ("pyro", 2): {
        "loc",
        "row_scale.x_unconstrained",
        "row_tril.x_unconstrained",
        "column_scale.x_unconstrained",
        "column_tril.x_unconstrained",
    },
    ("numpyro", 1): {"mine_loc", "mine_scale"},
    ("numpyro", 2): {"mine_loc", "mine_x_row_tril", "mine_x_column_tril"},
}


@pytest.mark.formula
@pytest.mark.parametrize("shape", [(3,), (3, 2)])
def test_models_with_no_matrix_and_with_nothing_else(face: Any, shape: tuple[int, ...]) -> None:
    options = {"prefix": "mine"} if face.name == "numpyro" else {}

    def only() -> None:
        face.host.sample("x", face.dist.Normal(face.zeros(*shape), 1.0))

    density = face.density(face.guides.AutoMatrixNormal(only, **options))
    parameters = face.random(density, 0.3)
    assert parameters.keys() == NAMES[face.name, len(shape)]
    mean, scale_tril = face.call(density.moments, parameters)
    theta = face.draws(density, parameters, 3)
    expected = stats.multivariate_normal(mean, scale_tril @ scale_tril.T).logpdf(theta)
    found = face.call(density.log_prob, parameters, theta)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    face.call(density.mean_square_residual, parameters, theta, theta)


def test_order_of_the_matrices_is_the_hosts(face: Any) -> None:
    """Not that of the alphabet, by which JAX orders dictionaries that go through a transform."""

    def two() -> None:
        face.host.sample("z", face.dist.Normal(face.zeros(2, 3), 1.0).to_event(2))
        face.host.sample("a", face.dist.Normal(face.zeros(3, 2), 1.0).to_event(2))

    density = face.density(face.guides.AutoMatrixNormal(two))
    parameters = face.random(density, 0.3)
    mean, _, matrices = face.call(density.factors, parameters)
    covariance = linalg.block_diag(*(kronecker(matrices[name]) for name in "za"))
    theta = normal(1, 3, 12)
    expected = stats.multivariate_normal(mean, covariance).logpdf(theta)
    found = face.call(density.log_prob, parameters, theta)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    posterior = face.posterior(density, parameters)
    found = face.numpy(posterior.log_prob(face.array(theta)))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.formula
@pytest.mark.parametrize("init_scale", [0, -1.0, math.inf, math.nan, "0.1", True, None])
@pytest.mark.parametrize("name", ["AutoMatrixNormal", "AutoPlanarFlow", "AutoLayerLowRankNormal"])
def test_bad_initial_scales_are_refused(face: Any, name: str, init_scale: Any) -> None:
    with pytest.raises(ArgumentError, match="Expected init_scale to be a finite number > 0, found"):
        getattr(face.guides, name)(model_of(face.name), init_scale=init_scale)


# -- the host --------------------------------------------------------------------------------------


def test_guide_is_usable_in_the_host(face: Any) -> None:
    density, parameters = fitted(face.name)
    deviations = np.sqrt(np.diagonal(COVARIANCE))
    median = face.median(density, parameters)
    np.testing.assert_allclose(median["w"], MEAN[1:7].reshape(3, 2))
    np.testing.assert_allclose(median["a"], np.exp(MEAN[0]))
    quantile = stats.norm(MEAN, deviations).ppf(0.9)
    quantiles = face.quantiles(density, parameters, [0.5, 0.9])
    np.testing.assert_allclose(quantiles["w"][1], quantile[1:7].reshape(3, 2), rtol=1e-6)
    np.testing.assert_allclose(quantiles["r"][1], quantile[17:].reshape(1, 3), rtol=1e-6)
    np.testing.assert_allclose(quantiles["a"][1], np.exp(quantile[0]), rtol=1e-6)
    for draws in face.host_draws(density, parameters, model_of(face.name), 400):
        assert draws["p"].shape == (400, 2, 5)
        np.testing.assert_allclose(draws["p"].sum(-1), 1.0)
        error = np.abs(draws["w"].mean(0) - MEAN[1:7].reshape(3, 2))
        assert (error < 5 * deviations[1:7].reshape(3, 2) / 400**0.5).all()
    guides_support.check_svi_goes_on(face, density, parameters, model_of(face.name))


def test_sites_of_modules_are_named_with_dots() -> None:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import SVI, Trace_ELBO
    from pyro.nn import PyroModule, PyroSample
    from torch import nn

    class Network(PyroModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = PyroModule[nn.Sequential](PyroModule[nn.Linear](3, 2))
            linear = self.layers[0]
            linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
            linear.bias = PyroSample(dist.Normal(0.0, 1.0).expand([2]).to_event(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mean = self.layers(x)
            with pyro.plate("N", len(x)):
                pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=torch.ones(len(x), 2))
            return mean

    face, network, x = face_of("pyro"), Network(), torch.tensor(normal(0, 5, 3))
    guide = face.guides.AutoMatrixNormal(network)
    density = face.density(guide, x)
    assert [block.name for block in density.blocks().matrices] == ["layers.0.weight"]
    assert "column_tril.layers.0.weight_unconstrained" in density.initial_parameters()
    theta = torch.tensor(normal(1, 2, 8))
    torch.testing.assert_close(
        density.log_prob(density.initial_parameters(), theta), guide.get_posterior().log_prob(theta)
    )
    SVI(network, guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO()).step(x)
    assert guide.median()["layers.0.weight"].shape == (2, 3)


# -- a target of its own form ----------------------------------------------------------------------

ROWS, COLUMNS, NUMBER = 3, 2, 10


def regression_problem() -> dict[str, Any]:
    """Regression with matrix weights W and known noise covariance V, prior W ~ N(0, 4 I (x) V).

    With X the inputs the posterior is exactly matrix normal: U = (X^T X + I / 4)^{-1},
    V = V, M = U X^T Y.
    """
    draws = np.random.default_rng(3)
    x = draws.normal(size=(NUMBER, ROWS)) * [0.5, 1.0, 0.4]
    x[:, 2] += 0.3 * x[:, 1]
    noise = np.array([[0.5, 0.3], [0.3, 0.4]])
    y = x @ draws.normal(size=(ROWS, COLUMNS))
    y += draws.multivariate_normal(np.zeros(COLUMNS), noise, size=NUMBER)
    rows = np.linalg.inv(x.T @ x + np.eye(ROWS) / 4)
    evidence = stats.multivariate_normal(
        np.zeros(NUMBER * COLUMNS), np.kron(np.eye(NUMBER) + 4 * x @ x.T, noise)
    ).logpdf(y.reshape(-1))
    mean = rows @ x.T @ y
    return {"x": x, "y": y, "noise": noise, "mean": mean, "rows": rows, "evidence": evidence}


PROBLEM = regression_problem()


def regression_of(face: Any) -> tuple[Any, tuple[Any, Any]]:
    """The model and its data."""
    host, dist, noise = face.host, face.dist, face.array(PROBLEM["noise"])

    def regression(x: Any, y: Any) -> None:
        prior = dist.MultivariateNormal(face.zeros(ROWS, COLUMNS), 4 * noise)
        w = host.sample("w", prior.to_event(1))
        with host.plate("N", len(x)):
            host.sample("y", dist.MultivariateNormal(x @ w, noise), obs=y)

    return regression, (face.array(PROBLEM["x"]), face.array(PROBLEM["y"]))


@pytest.mark.formula
def test_evidence_bound_is_the_evidence_at_the_exact_posterior(face: Any) -> None:
    model, data = regression_of(face)
    density = face.density(face.guides.AutoMatrixNormal(model), *data)
    pair = np.linalg.cholesky(PROBLEM["rows"]), np.linalg.cholesky(PROBLEM["noise"])
    exact = as_factors(face, PROBLEM["mean"].reshape(-1), np.zeros(0), {"w": pair})
    parameters = density.set_factors(density.initial_parameters(), exact)
    # log p - log q is the same at every draw, so one draw shows it.
    loss = face.elbo(density, parameters, model, *data)
    assert loss == pytest.approx(-PROBLEM["evidence"], rel=1e-10)


@pytest.mark.filterwarnings(*arviz_support.IGNORED)
@pytest.mark.slow
def test_fit_of_a_matrix_normal_posterior(face: Any) -> None:
    model, data = regression_of(face)
    guide = face.guides.AutoMatrixNormal(model, init_scale=0.3)
    fit = face.backend.fit("ProximalScoreVI", model, guide, steps=300, args=data, draws=10)
    mean, scale = face.numpy(fit.engine.density.moments(face.fitted_parameters(fit)))
    covariance = np.kron(PROBLEM["rows"], PROBLEM["noise"])
    exact_mean = PROBLEM["mean"].reshape(-1)
    assert guides_support.divergence(exact_mean, covariance, mean, scale @ scale.T) < 1e-6
    converted = face.to_arviz(fit, *data, num_samples=50)
    assert arviz_support.values(converted, "posterior", "w").shape[-2:] == (ROWS, COLUMNS)
