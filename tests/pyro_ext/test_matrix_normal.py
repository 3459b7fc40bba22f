"""The matrix normal guide of Pyro, against dense covariances."""

from __future__ import annotations

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.nn import PyroModule, PyroSample
from scipy import linalg, stats
from torch import nn

from ppl_ext.errors import ArgumentError
from pyro_ext.diagnostics import to_arviz
from pyro_ext.engine import seeded_generator
from pyro_ext.guides import AutoMatrixNormal, FlatDensity, MatrixNormalDensity, flat_density
from pyro_ext.guides.matrix_normal import Blocks, Factors, MatrixBlock, find_blocks
from pyro_ext.score import ProximalScoreVI
from tests import arviz_support as support

torch.set_default_dtype(torch.float64)


def model() -> None:
    """Two matrices of unequal sides, one of them constrained, with other sites around them."""
    pyro.sample("a", dist.LogNormal(0.0, 1.0))
    pyro.sample("w", dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))
    with pyro.plate("groups", 2):
        pyro.sample("p", dist.Dirichlet(torch.ones(5)))
    pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("r", dist.Normal(torch.zeros(1, 3), 1.0).to_event(2))


BLOCKS = Blocks(
    (MatrixBlock("w", slice(1, 7), (3, 2)), MatrixBlock("p", slice(7, 15), (2, 4))),
    (slice(0, 1), slice(15, 20)),
)
DIM, REST = 20, 6


@pytest.fixture(autouse=True)
def fixed_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def random_factors() -> Factors:
    """Factors far from symmetric: rows and columns, and w and p, all differ."""
    draws = np.random.default_rng(0)

    def lower(length: int, level: float) -> torch.Tensor:
        factor = np.tril(draws.normal(size=(length, length)), -1)
        return torch.tensor(level * (factor + np.diag(draws.uniform(0.5, 2.0, length))))

    return Factors(
        torch.tensor(draws.normal(size=DIM)),
        torch.tensor(draws.uniform(0.5, 2.0, REST)),
        {"w": (lower(3, 0.4), lower(2, 1.5)), "p": (lower(2, 1.0), lower(4, 0.7))},
    )


def dense_covariance(factors: Factors) -> np.ndarray:
    """Sites in flat order, each matrix row by row."""
    kronecker = {
        name: np.kron((row @ row.T).numpy(), (column @ column.T).numpy())
        for name, (row, column) in factors.matrices.items()
    }
    variances = np.square(factors.scale.numpy())
    return linalg.block_diag(
        np.diag(variances[:1]), kronecker["w"], kronecker["p"], np.diag(variances[1:])
    )


@pytest.fixture
def fitted() -> tuple[MatrixNormalDensity, dict[str, torch.Tensor], Factors]:
    density = flat_density(AutoMatrixNormal(model))
    assert isinstance(density, MatrixNormalDensity)
    factors = random_factors()
    return density, density.set_factors(density.initial_parameters(), factors), factors


# -- blocks --------------------------------------------------------------------------------------


def test_which_sites_are_matrices(fitted) -> None:
    density, *_ = fitted
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


# -- the density ---------------------------------------------------------------------------------


def test_log_prob_and_score_are_those_of_the_dense_normal(fitted) -> None:
    density, parameters, factors = fitted
    mean, covariance = factors.mean.numpy(), dense_covariance(factors)
    theta = torch.randn(6, DIM)
    expected = stats.multivariate_normal(mean, covariance).logpdf(theta.numpy())
    np.testing.assert_allclose(density.log_prob(parameters, theta), expected, rtol=1e-11)
    expected = -np.linalg.solve(covariance, (theta.numpy() - mean).T).T
    score = density.score(parameters, theta)
    np.testing.assert_allclose(score, expected, rtol=1e-9)
    # A single point, and more than one leading dimension.
    for points in (theta[0], theta.reshape(2, 3, DIM)):
        shape = points.shape
        torch.testing.assert_close(
            density.score(parameters, points), score[: shape[:-1].numel()].reshape(shape)
        )
        assert density.log_prob(parameters, points).shape == shape[:-1]


def test_score_is_the_slope_of_the_log_density(fitted) -> None:
    density, parameters, _ = fitted
    theta, step = torch.randn(DIM), 1e-5
    points = step * torch.eye(DIM)
    slopes = density.log_prob(parameters, theta + points) - density.log_prob(
        parameters, theta - points
    )
    torch.testing.assert_close(
        density.score(parameters, theta), slopes / (2 * step), rtol=1e-7, atol=1e-7
    )


def test_the_hosts_posterior_is_the_same_density(fitted) -> None:
    density, parameters, factors = fitted
    density.write_back(parameters)
    posterior = density.guide.get_posterior()
    theta = torch.randn(4, DIM)
    torch.testing.assert_close(posterior.log_prob(theta), density.log_prob(parameters, theta))
    noise = torch.randn(4, DIM)
    (transform,) = posterior.transforms
    # Literally W = M + A E B^T, and the inverse of the map.
    rows, columns = factors.matrices["p"]
    draws = transform(noise)
    for draw, point in zip(draws[:, 7:15], noise[:, 7:15], strict=True):
        expected = factors.mean[7:15].reshape(2, 4) + rows @ point.reshape(2, 4) @ columns.T
        torch.testing.assert_close(draw.reshape(2, 4), expected)
    torch.testing.assert_close(draws[:, 15:], factors.mean[15:] + factors.scale[1:] * noise[:, 15:])
    torch.testing.assert_close(transform.inv(draws), noise)
    jacobian = torch.autograd.functional.jacobian(transform, noise[0])
    torch.testing.assert_close(
        transform.log_abs_det_jacobian(noise, draws),
        torch.linalg.slogdet(jacobian).logabsdet.expand(4),
    )


def test_residual_gradient_agrees_with_double_differentiation(fitted) -> None:
    density, parameters, _ = fitted
    parameters = {name: value + 0.3 * torch.randn_like(value) for name, value in parameters.items()}
    theta, target = torch.randn(3, DIM), torch.randn(3, DIM)
    value, gradient = density.mean_square_residual(parameters, theta, target)
    # The base class differentiates the host's log density twice.
    automatic = FlatDensity(density.guide)
    expected, expected_gradient = automatic.mean_square_residual(parameters, theta, target)
    torch.testing.assert_close(value, expected)
    assert gradient.keys() == expected_gradient.keys() == density.initial_parameters().keys()
    for name, entry in gradient.items():
        torch.testing.assert_close(entry, expected_gradient[name], msg=lambda m, n=name: f"{n}:{m}")


@pytest.mark.parametrize("source", ["density", "host"])
def test_draws_have_the_mean_and_the_covariance(fitted, source) -> None:
    density, parameters, factors = fitted
    number = 100_000
    if source == "density":
        draws = density.sample(parameters, seeded_generator(1), number)
        assert torch.equal(draws, density.sample(parameters, seeded_generator(1), number))
    else:
        density.write_back(parameters)
        draws = density.guide.get_posterior().sample((number,))
    assert draws.shape == (number, DIM) and not draws.requires_grad
    centred = draws - factors.mean
    products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
    covariance = torch.tensor(dense_covariance(factors))
    for values, expected in [(centred, torch.zeros(DIM)), (products, covariance)]:
        standard_error = values.std(0) / number**0.5
        assert ((values.mean(0) - expected).abs() < 5 * standard_error).all()


# -- factors and moments -------------------------------------------------------------------------


def test_moments_and_factors(fitted) -> None:
    density, parameters, factors = fitted
    mean, scale_tril = density.moments(parameters)
    torch.testing.assert_close(mean, factors.mean)
    covariance = dense_covariance(factors)
    np.testing.assert_allclose(scale_tril @ scale_tril.T, covariance, rtol=1e-10, atol=1e-14)
    np.testing.assert_array_equal(scale_tril, np.tril(scale_tril))

    found = density.factors(parameters)
    torch.testing.assert_close((found.mean, found.scale), (factors.mean, factors.scale))
    for name, (row, column) in found.matrices.items():
        given_row, given_column = factors.matrices[name]
        torch.testing.assert_close(torch.kron(row, column), torch.kron(given_row, given_column))
        # The shared scale is divided evenly, so that the factors are unique.
        levels = [factor.diagonal().log().mean() for factor in (row, column)]
        torch.testing.assert_close(*levels)
    again = density.set_factors(parameters, found)
    torch.testing.assert_close(again, parameters)


def test_start_is_a_normal_of_the_initial_scale() -> None:
    guide = AutoMatrixNormal(model, init_scale=0.3)
    density = flat_density(guide)
    parameters = density.initial_parameters()
    _, scale_tril = density.moments(parameters)
    torch.testing.assert_close(scale_tril, 0.3 * torch.eye(DIM))
    torch.testing.assert_close(
        density.set_factors(parameters, density.factors(parameters)), {**parameters}
    )


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ((3,), {"loc", "scale_unconstrained"}),
        (
            (3, 2),
            {
                "loc",
                "row_scale.x_unconstrained",
                "row_tril.x_unconstrained",
                "column_scale.x_unconstrained",
                "column_tril.x_unconstrained",
            },
        ),
    ],
)
def test_models_with_no_matrix_and_with_nothing_else(shape, names) -> None:
    guide = AutoMatrixNormal(lambda: pyro.sample("x", dist.Normal(torch.zeros(shape), 1.0)))
    density = flat_density(guide)
    parameters = {
        name: value + 0.3 * torch.randn_like(value)
        for name, value in density.initial_parameters().items()
    }
    assert parameters.keys() == names
    mean, scale_tril = density.moments(parameters)
    theta = density.sample(parameters, seeded_generator(0), 3)
    expected = dist.MultivariateNormal(mean, scale_tril=scale_tril).log_prob(theta)
    torch.testing.assert_close(density.log_prob(parameters, theta), expected)
    density.mean_square_residual(parameters, theta, theta)


def test_dtype() -> None:
    density = flat_density(AutoMatrixNormal(model), dtype=torch.float32)
    parameters = density.initial_parameters()
    theta = density.sample(parameters, seeded_generator(0), 3)
    assert theta.dtype == density.score(parameters, theta).dtype == torch.float32
    assert density.log_prob(parameters, theta).dtype == torch.float32
    assert density.guide.get_posterior().sample().dtype == torch.float32


@pytest.mark.parametrize("init_scale", [0, -1.0, math.inf, math.nan, "0.1", True, None])
def test_bad_initial_scales_are_refused(init_scale) -> None:
    with pytest.raises(ArgumentError, match="Expected init_scale > 0, found"):
        AutoMatrixNormal(model, init_scale=init_scale)


# -- the host ------------------------------------------------------------------------------------


def test_guide_is_usable_in_the_host(fitted) -> None:
    density, parameters, factors = fitted
    guide = density.guide
    density.write_back(parameters)
    mean, deviations = factors.mean, torch.tensor(dense_covariance(factors)).diagonal().sqrt()
    torch.testing.assert_close(guide.median()["w"], mean[1:7].reshape(3, 2))
    torch.testing.assert_close(guide.median()["a"], mean[0].exp())
    quantile = dist.Normal(mean, deviations).icdf(torch.tensor(0.9))
    quantiles = guide.quantiles([0.5, 0.9])
    torch.testing.assert_close(quantiles["w"][1], quantile[1:7].reshape(3, 2))
    torch.testing.assert_close(quantiles["r"][1], quantile[17:].reshape(1, 3))
    torch.testing.assert_close(quantiles["a"][1], quantile[0].exp())

    draws = Predictive(model, guide=guide, num_samples=400)()
    assert draws["p"].shape == (400, 2, 5)
    torch.testing.assert_close(draws["p"].sum(-1), torch.ones(400, 2))
    error = (draws["w"].mean(0) - mean[1:7].reshape(3, 2)).abs()
    assert (error < 5 * deviations[1:7].reshape(3, 2) / 400**0.5).all()

    before = density.initial_parameters()
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO(4, vectorize_particles=True))
    svi.step()
    # Adam's first step is the learning rate, from where we left the guide, in every parameter.
    for name, value in density.initial_parameters().items():
        moved = (value - before[name]).abs()
        assert 0 < moved.max() < 1.1e-3, name


def test_sites_of_modules_are_named_with_dots() -> None:
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

    network, x = Network(), torch.randn(5, 3)
    guide = AutoMatrixNormal(network)
    density = flat_density(guide, (x,))
    assert [block.name for block in density.blocks().matrices] == ["layers.0.weight"]
    assert "column_tril.layers.0.weight_unconstrained" in density.initial_parameters()
    theta = torch.randn(2, 8)
    torch.testing.assert_close(
        density.log_prob(density.initial_parameters(), theta), guide.get_posterior().log_prob(theta)
    )
    SVI(network, guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO()).step(x)
    assert guide.median()["layers.0.weight"].shape == (2, 3)


# -- a target of its own form --------------------------------------------------------------------

ROWS, COLUMNS, NUMBER = 3, 2, 10


def regression_problem() -> dict[str, torch.Tensor]:
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
    values = {"x": x, "y": y, "noise": noise, "mean": rows @ x.T @ y, "rows": rows}
    return {key: torch.tensor(value) for key, value in values.items()} | {
        "evidence": torch.tensor(evidence)
    }


PROBLEM = regression_problem()


def regression(x: torch.Tensor, y: torch.Tensor) -> None:
    prior = dist.MultivariateNormal(torch.zeros(ROWS, COLUMNS), 4 * PROBLEM["noise"])
    w = pyro.sample("w", prior.to_event(1))
    with pyro.plate("N", len(x)):
        pyro.sample("y", dist.MultivariateNormal(x @ w, PROBLEM["noise"]), obs=y)


def test_evidence_bound_is_the_evidence_at_the_exact_posterior() -> None:
    guide = AutoMatrixNormal(regression)
    data = PROBLEM["x"], PROBLEM["y"]
    density = flat_density(guide, data)
    factors = tuple(torch.linalg.cholesky(PROBLEM[name]) for name in ("rows", "noise"))
    exact = Factors(PROBLEM["mean"].reshape(-1), torch.empty(0), {"w": factors})
    density.write_back(density.set_factors(density.initial_parameters(), exact))
    # log p - log q is the same at every draw, so one draw shows it.
    loss = Trace_ELBO().loss(regression, guide, *data)
    assert loss == pytest.approx(-float(PROBLEM["evidence"]), rel=1e-10)


@pytest.mark.filterwarnings(*support.IGNORED)
def test_fit_of_a_matrix_normal_posterior() -> None:
    guide = AutoMatrixNormal(regression, init_scale=0.3)
    engine = ProximalScoreVI(regression, guide, seed=0)
    data = PROBLEM["x"], PROBLEM["y"]
    engine.run(300, *data, progress_bar=False)
    mean, scale_tril = engine.density.moments(engine.parameters)
    covariance = torch.kron(PROBLEM["rows"], PROBLEM["noise"])
    exact = dist.MultivariateNormal(PROBLEM["mean"].reshape(-1), covariance)
    fitted = dist.MultivariateNormal(mean, scale_tril=scale_tril)
    assert torch.distributions.kl_divergence(exact, fitted) < 1e-6

    result = to_arviz(engine, *data, num_samples=50)
    assert support.values(result, "posterior", "w").shape[-2:] == (ROWS, COLUMNS)
