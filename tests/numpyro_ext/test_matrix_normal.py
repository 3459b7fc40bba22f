"""The matrix normal guide of NumPyro, against dense covariances."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import SVI, Predictive, Trace_ELBO
from scipy import linalg, stats

from numpyro_ext.diagnostics import to_arviz
from numpyro_ext.guides import AutoMatrixNormal, FlatDensity, MatrixNormalDensity, flat_density
from numpyro_ext.guides.matrix_normal import Blocks, Factors, MatrixBlock, find_blocks
from numpyro_ext.score import ProximalScoreVI
from ppl_ext.errors import ArgumentError
from tests import arviz_support as support

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(0)


def model() -> None:
    """Two matrices of unequal sides, one of them constrained, with other sites around them."""
    numpyro.sample("a", dist.LogNormal(0.0, 1.0))
    numpyro.sample("w", dist.Normal(jnp.zeros((3, 2)), 1.0).to_event(2))
    with numpyro.plate("groups", 2):
        numpyro.sample("p", dist.Dirichlet(jnp.ones(5)))
    numpyro.sample("z", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    numpyro.sample("r", dist.Normal(jnp.zeros((1, 3)), 1.0).to_event(2))


BLOCKS = Blocks(
    (MatrixBlock("w", slice(1, 7), (3, 2)), MatrixBlock("p", slice(7, 15), (2, 4))),
    (slice(0, 1), slice(15, 20)),
)
DIM, REST = 20, 6


def random_factors() -> Factors:
    """Factors far from symmetric: rows and columns, and w and p, all differ."""
    draws = np.random.default_rng(0)

    def lower(length: int, level: float) -> jax.Array:
        factor = np.tril(draws.normal(size=(length, length)), -1)
        return jnp.asarray(level * (factor + np.diag(draws.uniform(0.5, 2.0, length))))

    return Factors(
        jnp.asarray(draws.normal(size=DIM)),
        jnp.asarray(draws.uniform(0.5, 2.0, REST)),
        {"w": (lower(3, 0.4), lower(2, 1.5)), "p": (lower(2, 1.0), lower(4, 0.7))},
    )


def dense_covariance(factors: Factors) -> np.ndarray:
    """Sites in flat order, each matrix row by row."""
    kronecker = {
        name: np.kron(row @ row.T, column @ column.T)
        for name, (row, column) in factors.matrices.items()
    }
    variances = np.square(factors.scale)
    return linalg.block_diag(
        np.diag(variances[:1]), kronecker["w"], kronecker["p"], np.diag(variances[1:])
    )


@functools.cache
def fitted() -> tuple[MatrixNormalDensity, dict[str, jax.Array], Factors]:
    density = flat_density(AutoMatrixNormal(model), KEY)
    assert isinstance(density, MatrixNormalDensity)
    factors = random_factors()
    return density, density.set_factors(density.initial_parameters(), factors), factors


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def assert_trees_close(actual, expected, rtol: float = 1e-9) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-10)


# -- blocks ----------------------------------------------------------------------------------------


def test_which_sites_are_matrices() -> None:
    density, *_ = fitted()
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
def test_shapes_of_matrices(shape, expected) -> None:
    blocks = find_blocks({"first": (), "x": shape, "last": (2,)})
    stop = 1 + math.prod(shape)
    if expected is None:
        assert blocks == Blocks((), (slice(0, stop + 2),))
    else:
        assert blocks.matrices == (MatrixBlock("x", slice(1, stop), expected),)
        assert blocks.rest == (slice(0, 1), slice(stop, stop + 2))


# -- the density -----------------------------------------------------------------------------------


def test_log_prob_and_score_are_those_of_the_dense_normal() -> None:
    density, parameters, factors = fitted()
    mean, covariance = np.asarray(factors.mean), dense_covariance(factors)
    theta = normal(1, 6, DIM)
    expected = stats.multivariate_normal(mean, covariance).logpdf(theta)
    np.testing.assert_allclose(density.log_prob(parameters, theta), expected, rtol=1e-11)
    expected = -np.linalg.solve(covariance, np.asarray(theta - mean).T).T
    score = density.score(parameters, theta)
    np.testing.assert_allclose(score, expected, rtol=1e-9)
    # A single point, and more than one leading dimension.
    for points in (theta[0], theta.reshape(2, 3, DIM)):
        shape = points.shape
        expected = score[: math.prod(shape[:-1])].reshape(shape)
        np.testing.assert_allclose(density.score(parameters, points), expected, rtol=1e-9)
        assert density.log_prob(parameters, points).shape == shape[:-1]


def test_score_is_the_slope_of_the_log_density() -> None:
    density, parameters, _ = fitted()
    theta, step = normal(1, DIM), 1e-5
    points = step * jnp.eye(DIM)
    slopes = density.log_prob(parameters, theta + points) - density.log_prob(
        parameters, theta - points
    )
    score = density.score(parameters, theta)
    np.testing.assert_allclose(score, slopes / (2 * step), rtol=1e-7, atol=1e-7)


def test_the_hosts_posterior_is_the_same_density() -> None:
    density, parameters, factors = fitted()
    params = density.write_back(parameters)
    posterior = density.guide.get_posterior(params)
    theta, noise = normal(1, 4, DIM), normal(2, 4, DIM)
    np.testing.assert_allclose(
        posterior.log_prob(theta), density.log_prob(parameters, theta), rtol=1e-11
    )
    transform = density.guide.get_transform(params)
    # Literally W = M + A E B^T, and the inverse of the map.
    rows, columns = factors.matrices["p"]
    draws = jax.jit(lambda transform, noise: transform(noise))(transform, noise)
    for draw, point in zip(draws[:, 7:15], noise[:, 7:15], strict=True):
        expected = factors.mean[7:15].reshape(2, 4) + rows @ point.reshape(2, 4) @ columns.T
        np.testing.assert_allclose(draw.reshape(2, 4), expected, rtol=1e-9)
    expected = factors.mean[15:] + factors.scale[1:] * noise[:, 15:]
    np.testing.assert_allclose(draws[:, 15:], expected, rtol=1e-9)
    np.testing.assert_allclose(transform.inv(draws), noise, rtol=1e-9)
    _, log_determinant = jnp.linalg.slogdet(jax.jacobian(transform)(noise[0]))
    found = transform.log_abs_det_jacobian(noise, draws)
    np.testing.assert_allclose(found, jnp.full(4, log_determinant), rtol=1e-9)


def test_residual_gradient_agrees_with_double_differentiation() -> None:
    density, parameters, _ = fitted()
    parameters = {
        name: value + 0.3 * normal(i, *value.shape)
        for i, (name, value) in enumerate(parameters.items())
    }
    theta, target = normal(1, 2, 3, DIM)
    found = jax.jit(density.mean_square_residual)(parameters, theta, target)
    # The base class differentiates the host's log density twice.
    automatic = FlatDensity(density.guide, KEY)
    expected = jax.jit(automatic.mean_square_residual)(parameters, theta, target)
    assert_trees_close(found, expected)


@pytest.mark.parametrize("source", ["density", "host"])
def test_draws_have_the_mean_and_the_covariance(source) -> None:
    density, parameters, factors = fitted()
    number = 100_000
    if source == "density":
        draws = density.sample(parameters, KEY, number)
        gradient = jax.grad(lambda p: density.sample(p, KEY, 3).sum())(parameters)
        assert all((leaf == 0).all() for leaf in jax.tree.leaves(gradient))
    else:
        posterior = density.guide.get_posterior(density.write_back(parameters))
        draws = posterior.sample(KEY, (number,))
    assert draws.shape == (number, DIM)
    centred = draws - factors.mean
    products = centred[:, :, None] * centred[:, None, :]
    for values, expected in [(centred, jnp.zeros(DIM)), (products, dense_covariance(factors))]:
        standard_error = values.std(0) / number**0.5
        assert (jnp.abs(values.mean(0) - expected) < 5 * standard_error).all()


# -- factors and moments ---------------------------------------------------------------------------


def test_moments_and_factors() -> None:
    density, parameters, factors = fitted()
    mean, scale_tril = density.moments(parameters)
    np.testing.assert_allclose(mean, factors.mean)
    covariance = dense_covariance(factors)
    np.testing.assert_allclose(scale_tril @ scale_tril.T, covariance, rtol=1e-10, atol=1e-14)
    np.testing.assert_array_equal(scale_tril, np.tril(scale_tril))

    found = density.factors(parameters)
    assert_trees_close((found.mean, found.scale), (factors.mean, factors.scale))
    for name, (row, column) in found.matrices.items():
        given_row, given_column = factors.matrices[name]
        assert_trees_close(jnp.kron(row, column), jnp.kron(given_row, given_column))
        # The shared scale is divided evenly, so that the factors are unique.
        levels = [np.log(np.diagonal(factor)).mean() for factor in (row, column)]
        assert levels[0] == pytest.approx(levels[1])
    assert_trees_close(density.set_factors(parameters, found), parameters)


def test_start_is_a_normal_of_the_initial_scale() -> None:
    density = flat_density(AutoMatrixNormal(model, init_scale=0.3), KEY)
    parameters = density.initial_parameters()
    _, scale_tril = density.moments(parameters)
    np.testing.assert_allclose(scale_tril, 0.3 * np.eye(DIM), atol=1e-14)
    assert_trees_close(density.set_factors(parameters, density.factors(parameters)), parameters)


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ((3,), {"mine_loc", "mine_scale"}),
        ((3, 2), {"mine_loc", "mine_x_row_tril", "mine_x_column_tril"}),
    ],
)
def test_models_with_no_matrix_and_with_nothing_else(shape, names) -> None:
    guide = AutoMatrixNormal(
        lambda: numpyro.sample("x", dist.Normal(jnp.zeros(shape), 1.0)), prefix="mine"
    )
    density = flat_density(guide, KEY)
    parameters = {
        name: value + 0.3 * normal(i, *value.shape)
        for i, (name, value) in enumerate(density.initial_parameters().items())
    }
    assert parameters.keys() == names
    mean, scale_tril = density.moments(parameters)
    theta = density.sample(parameters, KEY, 3)
    expected = dist.MultivariateNormal(mean, scale_tril=scale_tril).log_prob(theta)
    np.testing.assert_allclose(density.log_prob(parameters, theta), expected, rtol=1e-9)
    density.mean_square_residual(parameters, theta, theta)


def test_order_of_the_matrices_is_the_hosts() -> None:
    """Not that of the alphabet, by which JAX orders dictionaries that go through a transform."""

    def two() -> None:
        numpyro.sample("z", dist.Normal(jnp.zeros((2, 3)), 1.0).to_event(2))
        numpyro.sample("a", dist.Normal(jnp.zeros((3, 2)), 1.0).to_event(2))

    density = flat_density(AutoMatrixNormal(two), KEY)
    parameters = {
        name: value + 0.3 * normal(i, *value.shape)
        for i, (name, value) in enumerate(density.initial_parameters().items())
    }
    factors = jax.jit(density.factors)(parameters)
    covariance = linalg.block_diag(
        *(
            np.kron(row @ row.T, column @ column.T)
            for row, column in map(factors.matrices.get, "za")
        )
    )
    theta = normal(1, 3, 12)
    expected = stats.multivariate_normal(factors.mean, covariance).logpdf(theta)
    for function in (
        density.log_prob,
        lambda p, x: density.guide.get_posterior(density.write_back(p)).log_prob(x),
    ):
        np.testing.assert_allclose(jax.jit(function)(parameters, theta), expected, rtol=1e-10)


@pytest.mark.parametrize("init_scale", [0, -1.0, math.inf, math.nan, "0.1", True, None])
def test_bad_initial_scales_are_refused(init_scale) -> None:
    with pytest.raises(ArgumentError, match="Expected init_scale > 0, found"):
        AutoMatrixNormal(model, init_scale=init_scale)


# -- the host --------------------------------------------------------------------------------------


def test_guide_is_usable_in_the_host() -> None:
    density, parameters, factors = fitted()
    guide, params = density.guide, density.write_back(parameters)
    mean, deviations = factors.mean, np.sqrt(np.diagonal(dense_covariance(factors)))

    @jax.jit
    def computed(params):
        return (
            guide.median(params),
            guide.quantiles(params, [0.5, 0.9]),
            guide.sample_posterior(KEY, params, sample_shape=(4000,)),
            Predictive(guide, params=params, num_samples=4000)(KEY),
        )

    median, quantiles, *samples = jax.tree.map(np.asarray, computed(params))
    np.testing.assert_allclose(median["w"], mean[1:7].reshape(3, 2))
    np.testing.assert_allclose(median["a"], np.exp(mean[0]))
    quantile = stats.norm(mean, deviations).ppf(0.9)
    np.testing.assert_allclose(quantiles["w"][1], quantile[1:7].reshape(3, 2), rtol=1e-6)
    np.testing.assert_allclose(quantiles["r"][1], quantile[17:].reshape(1, 3), rtol=1e-6)
    np.testing.assert_allclose(quantiles["a"][1], np.exp(quantile[0]), rtol=1e-6)

    for draws in samples:
        assert draws["p"].shape == (4000, 2, 5)
        np.testing.assert_allclose(draws["p"].sum(-1), 1.0)
        error = np.abs(draws["w"].mean(0) - mean[1:7].reshape(3, 2))
        assert (error < 5 * deviations[1:7].reshape(3, 2) / 4000**0.5).all()

    svi = SVI(model, guide, numpyro.optim.Adam(1e-3), Trace_ELBO(4))
    state = svi.init(KEY, init_params=params)
    state, _ = jax.jit(svi.update)(state)
    # Adam's first step is the learning rate, from where we left the guide, in every parameter.
    after = density.from_host(svi.get_params(state))
    for name, value in after.items():
        assert 0 < jnp.abs(value - parameters[name]).max() < 1.1e-3, name


# -- a target of its own form ----------------------------------------------------------------------

ROWS, COLUMNS, NUMBER = 3, 2, 10


def regression_problem() -> dict[str, np.ndarray]:
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


def regression(x: jax.Array, y: jax.Array) -> None:
    prior = dist.MultivariateNormal(jnp.zeros((ROWS, COLUMNS)), 4 * PROBLEM["noise"])
    w = numpyro.sample("w", prior.to_event(1))
    with numpyro.plate("N", len(x)):
        numpyro.sample("y", dist.MultivariateNormal(x @ w, PROBLEM["noise"]), obs=y)


def test_evidence_bound_is_the_evidence_at_the_exact_posterior() -> None:
    guide = AutoMatrixNormal(regression)
    data = PROBLEM["x"], PROBLEM["y"]
    density = flat_density(guide, KEY, data)
    row, column = (jnp.linalg.cholesky(PROBLEM[name]) for name in ("rows", "noise"))
    exact = Factors(jnp.asarray(PROBLEM["mean"].reshape(-1)), jnp.zeros(0), {"w": (row, column)})
    params = density.write_back(density.set_factors(density.initial_parameters(), exact))
    # log p - log q is the same at every draw, so one draw shows it.
    loss = Trace_ELBO().loss(KEY, params, regression, guide, *data)
    assert loss == pytest.approx(-PROBLEM["evidence"], rel=1e-10)


@pytest.mark.filterwarnings(*support.IGNORED)
def test_fit_of_a_matrix_normal_posterior() -> None:
    guide = AutoMatrixNormal(regression, init_scale=0.3)
    engine = ProximalScoreVI(regression, guide)
    data = PROBLEM["x"], PROBLEM["y"]
    result = engine.run(KEY, 800, *data, progress_bar=False)
    mean, scale_tril = engine.density.moments(result.state.algorithm.parameters)
    covariance = np.kron(PROBLEM["rows"], PROBLEM["noise"])
    exact = dist.MultivariateNormal(PROBLEM["mean"].reshape(-1), covariance)
    fitted = dist.MultivariateNormal(mean, scale_tril=scale_tril)
    assert dist.kl_divergence(exact, fitted) < 1e-6

    converted = to_arviz(engine, result.state, *data, num_samples=50)
    assert support.values(converted, "posterior", "w").shape[-2:] == (ROWS, COLUMNS)
