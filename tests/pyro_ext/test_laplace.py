"""LaplaceGGN: exact where the posterior is Normal, dense algebra, hyperparameters, errors."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide.initialization import init_to_value
from scipy.optimize import minimize
from scipy.stats import betabinom
from torch import Tensor

from ppl_ext.errors import ArgumentError
from pyro_ext import Full, LaplaceGGN, Minibatch
from pyro_ext.curvature import Curvature, GaussNewton, KroneckerBlock, row_structure
from pyro_ext.curvature.coordinates import Coordinates
from pyro_ext.density import LogDensity
from pyro_ext.laplace import precision_of
from pyro_ext.laplace.likelihood import LikelihoodCurvature
from pyro_ext.laplace.prior import ConditionalPrior, without_negative

torch.set_default_dtype(torch.float64)

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(40, 3))
Y = X @ np.array([1.0, -0.5, 0.3]) + 0.4 * GENERATOR.normal(size=40)
x, y = torch.from_numpy(X), torch.from_numpy(Y)


def adam(rate: float, steps: int) -> Any:
    return pyro.optim.CosineAnnealingLR(
        {"optimizer": torch.optim.Adam, "optim_args": {"lr": rate}, "T_max": steps}
    )


def covariance(precision: Any, dim: int) -> np.ndarray:
    """Of the draws, exactly: they are linear in the noise."""
    root = precision.draws(torch.eye(dim))
    return (root.T @ root).numpy()


# -- Gaussians by structured precisions -----------------------------------------------------------


def part(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def positive(size: int) -> np.ndarray:
    return part(1, size, size) @ part(1, size, size).transpose(0, 2, 1) + 0.1 * np.eye(size)


def kronecker(left: np.ndarray, right: np.ndarray, start: int) -> tuple[KroneckerBlock, ...]:
    return (KroneckerBlock(torch.from_numpy(left), torch.from_numpy(right), start),)


def curvature(d: Any, matrix: Any = None, rows: Any = None, blocks: Any = ()) -> Curvature:
    d, matrix, rows = (
        None if each is None else torch.from_numpy(each) for each in (d, matrix, rows)
    )
    return Curvature(d, matrix, rows, blocks)


def curvatures() -> tuple[dict[str, Curvature], dict[str, np.ndarray]]:
    """Curvatures of one position, and what they are taken for where that is not what they are."""
    d = np.exp(part(1, 8))
    separable = np.outer([0.5, 2.0], [1.0, 3.0, 0.2]).reshape(1, 6)
    column = part(1, 2, 1)
    singular = column @ column.transpose(0, 2, 1), np.ones((1, 3, 3))
    made = {
        "diagonal": curvature(d),
        "rows": curvature(d, rows=part(1, 3, 8)),
        "more rows": curvature(d, rows=part(1, 11, 8)),
        "matrix": curvature(d, positive(8)),
        "kronecker": curvature(
            np.hstack([separable, d[:, :2]]), blocks=kronecker(positive(2), positive(3), 0)
        ),
        "singular factors": curvature(np.full((1, 8), 0.3), blocks=kronecker(*singular, 1)),
        "whole block": curvature(d, blocks=kronecker(np.ones((1, 1, 1)), positive(5), 2)),
    }
    # A prior that does not fit the factors is replaced by the nearest that does.
    logs = part(2, 3)
    nearest = np.exp(logs.mean(1, keepdims=True) + logs.mean(0) - logs.mean()).reshape(6)
    left, right = positive(2), positive(3)
    made["nearest"] = curvature(np.exp(logs).reshape(1, 6), blocks=kronecker(left, right, 0))
    expected = {"nearest": np.kron(left[0], right[0]) + np.diag(nearest)}
    made["not definite, diagonal"] = curvature(np.asarray([[1.0, 0.0]]))
    made["not definite, matrix"] = curvature(np.zeros((1, 2)), np.ones((1, 2, 2)))
    made["not definite, factors"] = curvature(
        np.zeros((1, 4)), blocks=kronecker(np.ones((1, 2, 2)), positive(2), 0)
    )
    return made, expected


def test_determinants_and_draws_are_those_of_the_dense_matrix() -> None:
    def found(curvature: Curvature) -> Any:
        precision = precision_of(curvature)
        root = precision.draws(torch.eye(curvature.diagonal.shape[1]))
        return precision.log_determinant(), root.T @ root, precision.definite()

    made, expected = curvatures()
    for name, each in made.items():
        log_determinant, draws, definite = found(each)
        if name.startswith("not definite"):
            assert not bool(definite.all())
            continue
        dense = expected.get(name, np.asarray(made[name].dense()[0]))
        np.testing.assert_allclose(log_determinant, np.linalg.slogdet(dense)[1], rtol=1e-10)
        np.testing.assert_allclose(draws, np.linalg.inv(dense), rtol=1e-8, atol=1e-9)
        assert bool(definite.all())


def test_negative_curvature_is_removed_with_its_derivative() -> None:
    first, second = np.diag([2.0, 2.0, -1.0]), part(3, 3) + part(3, 3).T
    found = torch.autograd.functional.jvp(
        without_negative, torch.from_numpy(first), torch.from_numpy(second)
    )
    np.testing.assert_allclose(found[0], np.diag([2.0, 2.0, 0.0]), atol=1e-14)
    step = 1e-6
    ends = [without_negative(torch.from_numpy(first + s * second)).numpy() for s in (step, -step)]
    np.testing.assert_allclose(found[1], (ends[0] - ends[1]) / (2 * step), atol=1e-5)


# -- curvature of a program -----------------------------------------------------------------------


def network(x: Any, y: Any, batch: int | None = None) -> None:
    """A network of one layer, with a learnt noise that is not the same for all rows."""
    noise = pyro.sample("noise", dist.LogNormal(0.0, 1.0))
    width = pyro.sample("width", dist.LogNormal(0.0, 1.0))
    w = pyro.sample("w", dist.Normal(torch.zeros(3, 2), width).to_event(2))
    v = pyro.sample("v", dist.Normal(torch.zeros(2), 2.0).to_event(1))
    with pyro.plate("N", 40, subsample_size=batch) as i:
        pyro.sample(
            "y", dist.Normal(torch.tanh(x[i] @ w) @ v, noise ** (1.0 + 0.5 * x[i, 0])), obs=y[i]
        )


Z = 0.7 * np.random.default_rng(5).normal(size=10)
STRUCTURES = ("full", "diag", "kfac", "low_rank")


@functools.cache
def target_of(batch: int | None) -> tuple[LogDensity, Any]:
    target = LogDensity(network, (x, y, batch), data_chunk=batch and 16)
    return target, target.bind(x, y, batch)


def curvature_at(structure: Any, batch: int | None, rank: int = 3) -> Any:
    """Curvature of the weights, as a function of the position."""
    target, data = target_of(batch)
    options = GaussNewton(structure, ("w", "v"), rank)
    where = Coordinates(target, ("w", "v"))
    rows = row_structure(target, torch.from_numpy(Z), data, target.first_rows())
    likelihood = LikelihoodCurvature(target, where, options, rows)
    return lambda z: likelihood.at(z, data)


def nearest_factors(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A and B after three steps of the power method for the nearest A (x) B, from B = I."""
    right = np.eye(rows.shape[2])
    for _ in range(3):
        left = np.einsum("rab,bc,rdc->ad", rows, right, rows) / (right**2).sum()
        right = np.einsum("rab,ad,rdc->bc", rows, left, rows) / (left**2).sum()
    return left, right


def test_structures_are_of_the_whole_likelihood_whatever_the_chunks() -> None:
    target, data = target_of(8)
    ours = ConditionalPrior(target, data, Coordinates(target, ("w", "v")), GaussNewton())
    # Given the width the prior of the weights is diagonal, and found to be.
    assert ours.form == "diagonal" and ours.exact

    def outputs(weights: Tensor) -> Tensor:
        mean = torch.tanh(x @ weights[:6].reshape(3, 2)) @ weights[6:]
        return mean / torch.exp(Z[0] * (1.0 + 0.5 * x[:, 0]))

    z = torch.from_numpy(Z)
    made = {s: curvature_at(s, 8)(z) for s in STRUCTURES}
    # All leading terms, so that merging loses nothing.
    made["all terms"] = curvature_at("low_rank", 8, rank=8)(z)
    made["prior"] = ours.at(z, data)
    results = {name: each.dense()[0].numpy() for name, each in made.items()}
    jacobian = torch.func.jacrev(outputs)(z[2:]).numpy()
    full = jacobian.T @ jacobian
    np.testing.assert_allclose(results["full"], full, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(results["diag"], np.diag(np.diag(full)), rtol=1e-9)
    prior = np.diag([np.exp(-2.0 * Z[1])] * 6 + [0.25] * 2)
    np.testing.assert_allclose(results["prior"], prior, rtol=1e-10)
    kfac = np.zeros((8, 8))
    kfac[6:, 6:] = full[6:, 6:]
    kfac[:6, :6] = np.kron(*nearest_factors(jacobian[:, :6].reshape(-1, 3, 2)))
    np.testing.assert_allclose(results["kfac"], kfac, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(results["all terms"], full, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.diag(results["low_rank"]), np.diag(full), rtol=1e-9)


def test_slopes_of_log_determinants_are_finite_differences() -> None:
    def log_determinants(values: Tensor) -> Tensor:
        z = torch.cat([values, torch.from_numpy(Z[2:])])
        prior = torch.cat([torch.exp(-2.0 * values[1]).expand(6), torch.full((2,), 0.25)])
        found = []
        # The others are plain sums, which a whole run follows below.
        for structure in ("kfac", "low_rank"):
            curvature = curvature_at(structure, 8)(z)
            total = Curvature(
                curvature.diagonal + prior, curvature.matrix, curvature.rows, curvature.blocks
            )
            found.append(precision_of(total).log_determinant())
        return torch.stack(found)

    values, step = torch.from_numpy(Z[:2]), 1e-5
    slopes = torch.autograd.functional.jacobian(log_determinants, values)
    with torch.no_grad():
        for i, move in enumerate(step * torch.eye(2)):
            ends = log_determinants(values + move), log_determinants(values - move)
            rise = (ends[0] - ends[1]) / (2.0 * step)
            np.testing.assert_allclose(slopes[:, i], rise, rtol=1e-6, atol=1e-6)


# -- the engine ----------------------------------------------------------------------------------


def regression(x: Any, y: Any) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    pyro.sample("y", dist.Normal(x @ w, 0.5).to_event(1), obs=y)


def test_linear_regression_is_exact() -> None:
    precision = X.T @ X / 0.25 + np.eye(3) / 4.0
    mean = np.linalg.solve(precision, X.T @ Y / 0.25)
    start = init_to_value(values={"w": torch.from_numpy(mean)})
    engine = LaplaceGGN(regression, adam(0.1, 10), init_strategy=start, seed=1)
    with pytest.raises(RuntimeError, match="arguments"):
        engine.get_samples()
    engine.setup(x, y)
    np.testing.assert_allclose(engine.mode()["w"], mean, rtol=1e-12)
    marginal = 4.0 * X @ X.T + 0.25 * np.eye(40)
    evidence = (
        -0.5 * Y @ np.linalg.solve(marginal, Y) - 0.5 * np.linalg.slogdet(2 * np.pi * marginal)[1]
    )
    np.testing.assert_allclose(engine.log_marginal_likelihood(), evidence, atol=1e-6)
    number = 20_000
    draws = np.asarray(engine.get_samples(number)["w"])
    whitened = (draws - mean) @ np.linalg.cholesky(precision)
    assert np.abs(whitened.mean(0)).max() < 4.5 / number**0.5
    assert np.abs(np.cov(whitened.T) - np.eye(3)).max() < 4.5 * (2.0 / number) ** 0.5
    assert engine.get_samples()["w"].shape == (1000, 3)
    assert engine.arviz_attributes() == {"sample_kind": "independent draws"}


def scaled_regression(x: Any, y: Any, batch: int | None = None) -> None:
    tau = pyro.sample("tau", dist.LogNormal(0.0, 1.0))
    w = pyro.sample("w", dist.Normal(torch.zeros(3), tau).to_event(1))
    noise = pyro.sample("noise", dist.LogNormal(0.0, 1.0))
    with pyro.plate("N", 40, subsample_size=batch) as i:
        pyro.sample("y", dist.Normal(x[i] @ w, noise), obs=y[i])


def scaled_engine(**options: Any) -> LaplaceGGN:
    return LaplaceGGN(
        scaled_regression,
        adam(0.1, 500),
        seed=0,
        hyperparameters=["tau", "noise"],
        hyperparameters_every=5,
        estimator=Full(),
        data_chunk=20,
        **options,
    )


def test_hyperparameters_maximise_the_evidence(tmp_path: Path) -> None:
    def loss(logs: np.ndarray) -> float:
        """Minus the exact log evidence and log density of the logarithms."""
        marginal = np.exp(2 * logs[0]) * X @ X.T + np.exp(2 * logs[1]) * np.eye(40)
        fit = 0.5 * Y @ np.linalg.solve(marginal, Y)
        size = 0.5 * np.linalg.slogdet(2 * np.pi * marginal)[1]
        return float(fit + size + 0.5 * logs @ logs + np.log(2 * np.pi))

    best = minimize(loss, np.zeros(2), tol=1e-12)
    engine = scaled_engine()
    engine.run(500, x, y, 8, progress_bar=False)
    mode = engine.mode()
    np.testing.assert_allclose([mode["tau"], mode["noise"]], np.exp(best.x), rtol=1e-5)
    np.testing.assert_allclose(engine.log_marginal_likelihood(), -best.fun, atol=1e-6)
    draws = engine.get_samples()
    assert np.ptp(np.asarray(draws["tau"])) == 0.0

    # Resuming is exact, and a new engine finds the same Gaussian.
    first = scaled_engine()
    first.run(13, x, y, 8, progress_bar=False)
    first.save(tmp_path / "state")
    other = scaled_engine()
    other.load(tmp_path / "state")
    other.setup(x, y, 8)
    np.testing.assert_array_equal(other.get_samples()["w"], first.get_samples()["w"])
    first.run(7, x, y, 8, progress_bar=False)
    other.run(7, x, y, 8, progress_bar=False)
    np.testing.assert_array_equal(other.particles, first.particles)
    wrong = scaled_engine(curvature="diag")
    wrong.load(tmp_path / "state")
    with pytest.raises(ArgumentError, match="curvature"):
        wrong.setup(x, y, 8)


def test_steps_that_are_not_finite_leave_the_gradient_of_the_determinant() -> None:
    bad = x.clone()
    bad[3, 1] = torch.nan
    found = []
    # Bad ones where the gradient is kept, and where it is to be renewed.
    for designs in ((x, x, x, x, x), (x, bad, x, x, bad, x, x)):
        engine = LaplaceGGN(
            scaled_regression,
            pyro.optim.SGD({"lr": 1e-3}),
            seed=0,
            hyperparameters=["tau", "noise"],
            hyperparameters_every=3,
            on_nonfinite="skip",
        )
        for design in designs:
            engine.step(design, y)
        assert engine.num_skipped == len(designs) - 5
        found.append(engine.particles)
    np.testing.assert_array_equal(*found)


def classification(x: Any, y: Any) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.5).to_event(1))
    b = pyro.sample("b", dist.Normal(0.0, 3.0))
    pyro.sample("y", dist.Bernoulli(logits=x @ w + b).to_event(1), obs=y)


def test_logistic_regression_and_chosen_sites() -> None:
    labels = (Y > 0).astype(float)
    engine = LaplaceGGN(classification, adam(0.1, 10), likelihood_temperature=2.0, seed=0)
    engine.setup(x, torch.from_numpy(labels))
    mode = engine.particles[0].numpy()
    design = np.hstack([X, np.ones((40, 1))])
    chances = 1.0 / (1.0 + np.exp(-design @ mode))
    variances = chances * (1 - chances)
    dense = (design.T * variances) @ design / 2.0 + np.diag([1.5**-2] * 3 + [1.0 / 9.0])
    precision = engine.fit_curvature()
    np.testing.assert_allclose(covariance(precision, 4), np.linalg.inv(dense), rtol=1e-8)
    log_likelihood = (labels * np.log(chances) + (1 - labels) * np.log(1 - chances)).sum()
    scales = np.asarray([1.5] * 3 + [3.0])
    log_prior = -0.5 * ((mode / scales) ** 2).sum() - np.log(scales).sum() - 2 * np.log(2 * np.pi)
    expected = log_prior + log_likelihood / 2.0 + 2 * np.log(2 * np.pi)
    expected -= 0.5 * np.linalg.slogdet(dense)[1]
    np.testing.assert_allclose(engine.log_marginal_likelihood(), expected, rtol=1e-10)

    last = LaplaceGGN(
        classification,
        adam(0.1, 10),
        curvature=GaussNewton(sites=["b"]),
        likelihood_temperature=2.0,
        seed=0,
    )
    last.setup(x, torch.from_numpy(labels))
    np.testing.assert_allclose(covariance(last.fit_curvature(), 1), 1.0 / dense[3:, 3:], rtol=1e-8)
    draws = last.get_samples(50)
    assert np.ptp(np.asarray(draws["w"]), axis=0).max() == 0.0
    assert np.ptp(np.asarray(draws["b"])) > 0.0


def proportion(successes: Any) -> None:
    chance = pyro.sample("chance", dist.Beta(2.0, 3.0))
    pyro.sample("y", dist.Binomial(20, probs=chance), obs=successes)


def test_jacobians_of_constrained_sites_count() -> None:
    # In the logit the density is chance^8 (1 - chance)^17 with the Jacobian.
    chance = 8.0 / 25.0
    start = init_to_value(values={"chance": torch.tensor(chance)})
    engine = LaplaceGGN(proportion, adam(0.1, 10), init_strategy=start)
    engine.setup(torch.tensor(6.0))
    np.testing.assert_allclose(engine.mode()["chance"], chance, rtol=1e-12)
    precision = 25.0 * chance * (1 - chance)
    found = covariance(engine.fit_curvature(), 1)[0, 0]
    np.testing.assert_allclose(found, 1.0 / precision, rtol=1e-10)
    # Stirling's series for the three Gamma functions, to its first term.
    error = (1 / 8.0 + 1 / 17.0 - 1 / 25.0) / 12.0
    exact = betabinom.logpmf(6, 20, 2.0, 3.0)
    np.testing.assert_allclose(engine.log_marginal_likelihood(), exact - error, atol=1e-5)
    draws = np.asarray(engine.get_samples()["chance"])
    assert draws.min() > 0.0 and draws.max() < 1.0


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"curvature": "dense"}, "curvature"),
        ({"curvature": GaussNewton(every=2)}, "every=1"),
        ({"curvature": GaussNewton(sites=["w"]), "hyperparameters": ["w"]}, "both"),
        ({"hyperparameters_every": 0}, "hyperparameters_every"),
        ({"num_particles": 3}, "num_particles"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        LaplaceGGN(regression, adam(0.1, 10), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hyperparameters": ["nothing"]}, "nothing"),
        ({"hyperparameters": ["w"]}, "leave some"),
        ({"curvature": GaussNewton("diag", prior="hessian")}, "hessian"),
    ],
)
def test_sites_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        LaplaceGGN(regression, adam(0.1, 10), **options).setup(x, y)


def unbounded(x: Any, y: Any) -> None:
    pyro.sample("bounded", dist.Normal(0.0, 1.0))
    w = pyro.sample("w", dist.ImproperUniform(dist.constraints.real_vector, (), (3,)))
    pyro.sample("y", dist.Normal(x @ w, 0.5).to_event(1), obs=y)


@pytest.mark.parametrize("structure", ["full", "kfac"])
def test_a_singular_curvature_names_its_site(structure: Any) -> None:
    design = torch.cat([x[:, :2], x[:, :1] + x[:, 1:2]], 1)
    engine = LaplaceGGN(
        unbounded,
        adam(0.1, 10),
        curvature=structure,
        init_strategy=init_to_value(values={"bounded": torch.zeros(()), "w": torch.ones(3)}),
    )
    engine.setup(design, y)
    with pytest.raises(ArgumentError, match="latent site 'w' in some"):
        engine.get_samples()
    with pytest.raises(ArgumentError, match="singular"):
        engine.log_marginal_likelihood()


def batches(x: Any, y: Any) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    with pyro.plate("N", 40, subsample_size=len(x)):
        pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


@pytest.mark.parametrize("first", [8, 40])
def test_batches_as_arguments_want_the_curvature_of_all_rows(first: int) -> None:
    refused = "plate 'N' has 40 rows, found arguments with 8.*fit_curvature"
    engine = LaplaceGGN(batches, adam(0.1, 10))
    # Whether the first arguments were a batch or all rows must not matter.
    engine.setup(x[:first], y[:first])
    engine.step(x[:8], y[:8])
    with pytest.raises(ArgumentError, match=refused):
        engine.get_samples()
    with pytest.raises(ArgumentError, match=refused):
        engine.fit_curvature(x[:8], y[:8])
    precision = engine.fit_curvature(x, y)
    dense = X.T @ X / 0.25 + np.eye(3) / 4.0
    np.testing.assert_allclose(covariance(precision, 3), np.linalg.inv(dense), rtol=1e-8)
    # Both stay, whatever is given next, until the mode moves.
    engine.setup(x[8:16], y[8:16])
    assert engine.get_samples(5)["w"].shape == (5, 3)
    mode = engine.mode()["w"].numpy()
    squares = ((Y - X @ mode) ** 2).sum() / 0.25 + mode @ mode / 4.0
    expected = -0.5 * (squares + np.linalg.slogdet(dense)[1]) - 3 * np.log(2.0)
    expected -= 40 * np.log(0.5 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(engine.log_marginal_likelihood(), expected, rtol=1e-10)
    engine.step(x[:8], y[:8])
    with pytest.raises(ArgumentError, match=refused):
        engine.get_samples()


def local(y: Any, batch: int | None = None) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    with pyro.plate("N", 8, subsample_size=batch) as i:
        z = pyro.sample("z", dist.Normal(mu, 1.0))
        pyro.sample("y", dist.Normal(z, 0.5), obs=y[i])


def test_latents_of_rows() -> None:
    engine = LaplaceGGN(local, adam(0.1, 10), estimator=Minibatch(), data_chunk=4)
    engine.setup(y[:8], 3)
    prior = np.zeros((9, 9))
    prior[0, 0] = 1.0 / 9.0 + 8.0
    prior[0, 1:] = prior[1:, 0] = -1.0
    prior[1:, 1:] = 5.0 * np.eye(8)
    found = covariance(engine.fit_curvature(), 9)
    np.testing.assert_allclose(found, np.linalg.inv(prior), rtol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_direction_of_many_coordinates_that_nothing_bounds_is_noticed(dtype: torch.dtype) -> None:
    def model() -> None:
        b = pyro.sample("b", dist.ImproperUniform(dist.constraints.real_vector, (), (120,)))
        with pyro.plate("rows", 240):
            pyro.sample("y", dist.Categorical(logits=b), obs=torch.arange(240) % 120)

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        engine = LaplaceGGN(model, pyro.optim.Adam({"lr": 0.1}), seed=0)
        engine.run(2, progress_bar=False)
        with pytest.raises(ArgumentError, match="bounds latent site 'b' in some direction"):
            engine.get_samples()
    finally:
        torch.set_default_dtype(before)
