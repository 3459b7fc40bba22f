"""LaplaceGGN: exact where the posterior is Normal, dense algebra, hyperparameters, errors."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import betabinom

from ppl_ext.curvature.program_curvature import GaussNewton
from ppl_ext.errors import ArgumentError
from ppl_ext.laplace import gaussian
from tests.backends import use_float64
from tests.density_support import strategies
from tests.guides_support import face_of
from tests.stein_support import Run, optimizer

use_float64()

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(40, 3))
Y = X @ np.array([1.0, -0.5, 0.3]) + 0.4 * GENERATOR.normal(size=40)


def start_at(face: Any, values: dict[str, Any]) -> Any:
    """Initial values by site."""
    given = {name: face.array(np.asarray(value)) for name, value in values.items()}
    return strategies(face.backend).init_to_value(values=given)


class Running(Run):
    """A ``LaplaceGGN`` of either package that has met its arguments, NumPy arrays among them."""

    def __init__(self, face: Any, model: Any, *args: Any, optim: Any = None, **options: Any):
        self.face = face
        optim = optimizer(face.backend, "adam", 0.1) if optim is None else optim
        options["args"] = self._given(args)
        super().__init__(face.backend, "LaplaceGGN", model, optim, **options)

    def _given(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self.face.array(a) if isinstance(a, np.ndarray) else a for a in args)

    def see(self, *args: Any) -> None:
        """Let the engine meet arguments, leaving the state as it is."""
        meet = self.engine.setup if self.is_pyro else partial(self.engine.update, self.state)
        meet(*self._given(args))

    def step(self, *args: Any) -> float:
        return super().step(*self._given(args))

    @property
    def position(self) -> np.ndarray:
        return self.particles[0]

    def mode(self) -> dict[str, np.ndarray]:
        return self.face.numpy(self.call("mode"))

    def evidence(self) -> float:
        return float(self.call("log_marginal_likelihood"))

    def fit(self, *args: Any) -> Any:
        return self.call("fit_curvature", *self._given(args))

    def covariance(self, dim: int, *args: Any) -> np.ndarray:
        """Of the draws, exactly: they are linear in the noise."""
        root = self.face.numpy(self.fit(*args).draws(self.face.array(np.eye(dim))))
        return root.T @ root


# -- Gaussians by structured precisions -----------------------------------------------------------


def part(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def positive(size: int) -> np.ndarray:
    return part(1, size, size) @ part(1, size, size).transpose(0, 2, 1) + 0.1 * np.eye(size)


def curvatures(face: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Curvatures of one position, and what they are taken for where that is not what they are."""
    own = face.backend.room("curvature")

    def kronecker(left: np.ndarray, right: np.ndarray, start: int) -> Any:
        return (own.KroneckerBlock(face.array(left), face.array(right), start),)

    def curvature(d: Any, matrix: Any = None, rows: Any = None, blocks: Any = ()) -> Any:
        arrays = (None if each is None else face.array(each) for each in (d, matrix, rows))
        return own.Curvature(*arrays, blocks)

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


@pytest.mark.parametrize("few", ["triangular", "singular values"])
def test_determinants_and_draws_are_those_of_the_dense_matrix(
    face: Any, few: str, monkeypatch: Any
) -> None:
    if few == "singular values":
        monkeypatch.setattr(gaussian, "TRIANGULAR_UP_TO", 0)
    precision_of = face.backend.room("laplace").precision_of

    def found(curvature: Any) -> Any:
        precision = precision_of(curvature)
        identity = face.array(np.eye(curvature.diagonal.shape[1]))
        root = precision.draws(identity)
        squares = precision.quadratic(identity), precision.quadratic(root)
        return precision.log_determinant(), root.T @ root, precision.definite(), squares

    made, expected = curvatures(face)
    results = face.call(lambda made: {name: found(each) for name, each in made.items()}, made)
    for name, (log_determinant, draws, definite, squares) in results.items():
        if name.startswith("not definite"):
            assert not definite.all()
            continue
        dense = expected.get(name, face.numpy(made[name].dense()[0]))
        np.testing.assert_allclose(log_determinant, np.linalg.slogdet(dense)[1], rtol=1e-10)
        np.testing.assert_allclose(draws, np.linalg.inv(dense), rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(squares[0], np.diagonal(dense), rtol=1e-8)
        np.testing.assert_allclose(squares[1], 1.0, rtol=1e-8)
        assert definite.all()


@pytest.mark.parametrize("rows", [30, 90])
def test_outputs_of_draws_are_within_the_noise_in_single_precision(face: Any, rows: int) -> None:
    """With H >= r r' of each row r, in units of the noise, r' H^-1 r is at most 1.

    Singular values from 1e5 to 1: their squares have no digit of the prior, of curvature 1.
    """
    dim = 60
    left = np.linalg.qr(np.random.default_rng(0).normal(size=(rows, min(rows, dim))))[0]
    right = np.linalg.qr(np.random.default_rng(1).normal(size=(dim, min(rows, dim))))[0]
    single = ((left * np.logspace(5, 0, min(rows, dim))) @ right.T).astype(np.float32)
    exact = single.astype(float)
    expected = np.einsum(
        "rd,rd->r", np.linalg.solve(np.eye(dim) + exact.T @ exact, exact.T).T, exact
    )
    array = torch.as_tensor if face.name == "pyro" else jnp.asarray
    ones, noise = (array(each.astype(np.float32)) for each in (np.ones((1, dim)), np.eye(dim)))
    precision = face.backend.room("laplace").precision_of(
        face.backend.room("curvature").Curvature(ones, rows=array(single[None]))
    )
    # Of the draws, exactly: they are linear in the noise.
    root = np.asarray(precision.draws(noise))
    assert root.dtype == np.float32
    root = root.astype(float)
    found = ((exact @ root.T) ** 2).sum(1)
    np.testing.assert_allclose(found, expected, rtol=0.05)


def test_rows_that_are_not_finite_are_no_precision(face: Any) -> None:
    ones, rows = face.array(np.ones((1, 4))), face.array(np.full((1, 2, 4), np.nan))
    precision = face.backend.room("laplace").precision_of(
        face.backend.room("curvature").Curvature(ones, rows=rows)
    )
    assert np.isnan(face.numpy(precision.log_determinant()))


def test_negative_curvature_is_removed_with_its_derivative(face: Any) -> None:
    without_negative = face.backend.room("laplace.gaussian").Algebra.without_negative
    first, second = np.diag([2.0, 2.0, -1.0]), part(3, 3) + part(3, 3).T
    pair = face.array(first), face.array(second)
    if face.name == "numpyro":
        found = jax.jvp(without_negative, pair[:1], pair[1:])
    else:
        found = torch.autograd.functional.jvp(without_negative, *pair)
    value, derivative = face.numpy(tuple(found))
    np.testing.assert_allclose(value, np.diag([2.0, 2.0, 0.0]), atol=1e-14)
    step = 1e-6
    up, down = (face.numpy(without_negative(face.array(first + s * second))) for s in (step, -step))
    np.testing.assert_allclose(derivative, (up - down) / (2 * step), atol=1e-5)


# -- curvature of a program -----------------------------------------------------------------------

Z = 0.7 * np.random.default_rng(5).normal(size=10)
WEIGHTS = ("w", "v")


@cache
def network_of(package: str) -> tuple[Any, Any, Any]:
    """Target, data of batches of 8 in chunks of 16, and the coordinates of the weights.

    A network of one layer, with a learnt noise that is not the same for all rows.
    """
    face = face_of(package)
    host, dist = face.host, face.dist

    def network(x: Any, y: Any, batch: int | None = None) -> None:
        noise = host.sample("noise", dist.LogNormal(0.0, 1.0))
        width = host.sample("width", dist.LogNormal(0.0, 1.0))
        w = host.sample("w", dist.Normal(face.zeros(3, 2), width).to_event(2))
        v = host.sample("v", dist.Normal(face.zeros(2), 2.0).to_event(1))
        with host.plate("N", 40, subsample_size=batch) as i:
            scale = noise ** (1.0 + 0.5 * x[i, 0])
            host.sample("y", dist.Normal(face.backend.xp.tanh(x[i] @ w) @ v, scale), obs=y[i])

    args = (face.array(X), face.array(Y), 8)
    target, data = face.backend.target(network, args, data_chunk=16)
    coordinates = face.backend.room("curvature.coordinates").Coordinates(target, WEIGHTS)
    return target, data, coordinates


def curvature_at(face: Any, structure: Any, rank: int = 3) -> Any:
    """Curvature of the weights, as a function of the position."""
    target, data, _ = network_of(face.name)
    make = face.backend.room("curvature").ProgramCurvature
    with jax.ensure_compile_time_eval():
        found = make(target, data, GaussNewton(structure, WEIGHTS, rank), often=False)
    if face.name == "pyro":
        return lambda z: found.of_all_rows(target, z, data)
    return lambda z: found.of_all_rows(target, z, data, jax.random.PRNGKey(0))


def nearest_factors(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A and B after three steps of the power method for the nearest A (x) B, from B = I."""
    right = np.eye(rows.shape[2])
    for _ in range(3):
        left = np.einsum("rab,bc,rdc->ad", rows, right, rows) / (right**2).sum()
        right = np.einsum("rab,ad,rdc->bc", rows, left, rows) / (left**2).sum()
    return left, right


def test_structures_are_of_the_whole_likelihood_whatever_the_chunks(face: Any) -> None:
    target, data, _ = network_of(face.name)
    room = face.backend.room("curvature.prior")
    with jax.ensure_compile_time_eval():
        positions = face.array(np.stack([Z, -Z]))
        ours = room.prior_structure(target, positions, data, sites=WEIGHTS)
    # Given the width the prior of the weights is diagonal, and found to be.
    assert ours.form == "diagonal" and ours.exact

    def found(z: Any) -> Any:
        made = {
            s: curvature_at(face, s)(z).dense()[0] for s in ("full", "diag", "kfac", "low_rank")
        }
        # All leading terms, so that merging loses nothing.
        made["all terms"] = curvature_at(face, "low_rank", rank=8)(z).dense()[0]
        made["prior"] = room.prior_curvature_of_one(target, ours, z, data)
        return made

    results = face.call(found, Z)
    # Of the mean over the scale of the noise, which is fixed.
    w, v = Z[2:8].reshape(3, 2), Z[8:]
    inner = np.tanh(X @ w)
    by_w = (X[:, :, None] * ((1 - inner**2) * v)[:, None, :]).reshape(40, 6)
    jacobian = np.hstack([by_w, inner]) / np.exp(Z[0] * (1.0 + 0.5 * X[:, :1]))
    full = jacobian.T @ jacobian
    np.testing.assert_allclose(results["full"], full, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(results["diag"], np.diag(np.diag(full)), rtol=1e-9)
    prior = np.diag([np.exp(-2.0 * Z[1])] * 6 + [0.25] * 2)
    np.testing.assert_allclose(np.diag(results["prior"]), prior, rtol=1e-10)
    kfac = np.zeros((8, 8))
    kfac[6:, 6:] = full[6:, 6:]
    kfac[:6, :6] = np.kron(*nearest_factors(jacobian[:, :6].reshape(-1, 3, 2)))
    np.testing.assert_allclose(results["kfac"], kfac, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(results["all terms"], full, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.diag(results["low_rank"]), np.diag(full), rtol=1e-9)


def test_slopes_of_log_determinants_are_finite_differences(face: Any) -> None:
    network_of(face.name)
    xp = face.backend.xp
    own, precision_of = face.backend.room("curvature"), face.backend.room("laplace").precision_of
    by_rows = face.backend.room("laplace.gaussian").RowPrecision

    def log_determinants(values: Any) -> Any:
        z = xp.concatenate([values, face.array(Z[2:])])
        widths = xp.exp(-2.0 * xp.concatenate([values[1:]] * 6))
        diagonal = xp.concatenate([widths, face.array([0.25, 0.25])])
        found = []
        # The others are plain sums, which a whole run follows below.
        for structure in ("kfac", "low_rank"):
            curvature = curvature_at(face, structure)(z)
            total = own.Curvature(
                curvature.diagonal + diagonal, curvature.matrix, curvature.rows, curvature.blocks
            )
            found.append(precision_of(total).log_determinant())
        found.append(by_rows.of(total.diagonal[0], total.rows[0]).log_determinant())
        return xp.stack(found)

    if face.name == "numpyro":
        # One program for the values and the slopes.
        both = jax.jit(lambda v: (log_determinants(v), jax.jacfwd(log_determinants)(v)))
        slopes = face.numpy(both(jnp.asarray(Z[:2])))[1]
    else:
        slopes = face.jacobian(log_determinants, Z[:2])

        def both(values: Any) -> Any:
            return (log_determinants(values),)

    step = 1e-5
    for i, move in enumerate(step * np.eye(2)):
        up, down = (face.numpy(both(face.array(Z[:2] + sign * move)))[0] for sign in (1, -1))
        np.testing.assert_allclose(slopes[:, i], (up - down) / (2.0 * step), rtol=1e-6, atol=1e-6)


# -- the engine ----------------------------------------------------------------------------------


def regression_of(face: Any) -> Any:
    def regression(x: Any, y: Any) -> None:
        w = face.host.sample("w", face.dist.Normal(face.zeros(3), 2.0).to_event(1))
        face.host.sample("y", face.dist.Normal(x @ w, 0.5).to_event(1), obs=y)

    return regression


def test_linear_regression_is_exact(face: Any) -> None:
    precision = X.T @ X / 0.25 + np.eye(3) / 4.0
    mean = np.linalg.solve(precision, X.T @ Y / 0.25)
    start = start_at(face, {"w": mean})
    fit = Running(face, regression_of(face), X, Y, init_strategy=start)
    if face.name == "pyro":
        with pytest.raises(RuntimeError, match="arguments"):
            face.backend.public.LaplaceGGN(
                regression_of(face), face.backend.adam(0.1)
            ).get_samples()
    np.testing.assert_allclose(fit.mode()["w"], mean, rtol=1e-12)
    marginal = 4.0 * X @ X.T + 0.25 * np.eye(40)
    evidence = (
        -0.5 * Y @ np.linalg.solve(marginal, Y) - 0.5 * np.linalg.slogdet(2 * np.pi * marginal)[1]
    )
    np.testing.assert_allclose(fit.evidence(), evidence, atol=1e-6)
    number = 20_000
    draws = fit.samples(number)["w"]
    whitened = (draws - mean) @ np.linalg.cholesky(precision)
    assert np.abs(whitened.mean(0)).max() < 4.5 / number**0.5
    assert np.abs(np.cov(whitened.T) - np.eye(3)).max() < 4.5 * (2.0 / number) ** 0.5
    if face.name == "numpyro":
        np.testing.assert_array_equal(fit.samples(number)["w"], draws)
    assert fit.samples()["w"].shape == (1000, 3)
    assert fit.engine.arviz_attributes() == {"sample_kind": "independent draws"}
    # The Gaussian is the posterior: every ratio p/q is the evidence.
    public, state = face.backend.public, () if face.name == "pyro" else (fit.state,)
    bound = public.elbo(fit.engine, *state, num_samples=20)
    np.testing.assert_allclose([bound.value, bound.standard_error], [evidence, 0.0], atol=1e-6)
    assert public.psis_khat(fit.engine, *state).khat < 0.3


def scaled_regression_of(face: Any) -> Any:
    host, dist = face.host, face.dist

    def scaled_regression(x: Any, y: Any, batch: int | None = None) -> None:
        tau = host.sample("tau", dist.LogNormal(0.0, 1.0))
        w = host.sample("w", dist.Normal(face.zeros(3), tau).to_event(1))
        noise = host.sample("noise", dist.LogNormal(0.0, 1.0))
        with host.plate("N", 40, subsample_size=batch) as i:
            host.sample("y", dist.Normal(x[i] @ w, noise), obs=y[i])

    return scaled_regression


def scaled(face: Any, **options: Any) -> Running:
    return Running(
        face,
        scaled_regression_of(face),
        X,
        Y,
        8,
        optim=optimizer(face.backend, "adam", 0.1, steps=500, cosine=True),
        hyperparameters=["tau", "noise"],
        hyperparameters_every=5,
        estimator=face.backend.public.Full(),
        data_chunk=20,
        **options,
    )


@pytest.mark.in_one_package
def test_hyperparameters_maximise_the_evidence(face: Any, tmp_path: Path) -> None:
    def loss(logs: np.ndarray) -> float:
        """Minus the exact log evidence and log density of the logarithms."""
        marginal = np.exp(2 * logs[0]) * X @ X.T + np.exp(2 * logs[1]) * np.eye(40)
        fit = 0.5 * Y @ np.linalg.solve(marginal, Y)
        size = 0.5 * np.linalg.slogdet(2 * np.pi * marginal)[1]
        return float(fit + size + 0.5 * logs @ logs + np.log(2 * np.pi))

    # Resuming is exact, and a new engine finds the same Gaussian.
    fit = scaled(face).run(13)
    other = scaled(face).load_from(fit, tmp_path / "state")
    np.testing.assert_array_equal(other.samples()["w"], fit.samples()["w"])
    np.testing.assert_array_equal(other.run(7).particles, fit.run(7).particles)
    with pytest.raises(ArgumentError, match="curvature"):
        scaled(face, curvature="diag").load_from(fit, tmp_path / "state")

    best = minimize(loss, np.zeros(2), tol=1e-12)
    mode = fit.run(480).mode()
    np.testing.assert_allclose([mode["tau"], mode["noise"]], np.exp(best.x), rtol=1e-5)
    np.testing.assert_allclose(fit.evidence(), -best.fun, atol=1e-6)
    assert np.ptp(fit.samples()["tau"]) == 0.0


def test_steps_that_are_not_finite_leave_the_gradient_of_the_determinant(face: Any) -> None:
    bad = X.copy()
    bad[3, 1] = np.nan
    found = []
    # Bad ones where the gradient is kept, and where it is to be renewed.
    for designs in ((X, X, X, X, X), (X, bad, X, X, bad, X, X)):
        options = {"hyperparameters": ["tau", "noise"], "hyperparameters_every": 3}
        options |= {"optim": optimizer(face.backend, "sgd", 1e-3), "on_nonfinite": "skip"}
        fit = Running(face, scaled_regression_of(face), X, Y, **options)
        for design in designs:
            fit.step(design, Y)
        assert fit.skipped == len(designs) - 5
        found.append(fit.position)
    np.testing.assert_array_equal(*found)


def test_logistic_regression_and_chosen_sites(face: Any) -> None:
    def classification(x: Any, y: Any) -> None:
        w = face.host.sample("w", face.dist.Normal(face.zeros(3), 1.5).to_event(1))
        b = face.host.sample("b", face.dist.Normal(0.0, 3.0))
        face.host.sample("y", face.dist.Bernoulli(logits=x @ w + b).to_event(1), obs=y)

    labels = (Y > 0).astype(float)
    fit = Running(face, classification, X, labels, likelihood_temperature=2.0)
    mode = fit.position
    design = np.hstack([X, np.ones((40, 1))])
    chances = 1.0 / (1.0 + np.exp(-design @ mode))
    variances = chances * (1 - chances)
    dense = (design.T * variances) @ design / 2.0 + np.diag([1.5**-2] * 3 + [1.0 / 9.0])
    np.testing.assert_allclose(fit.covariance(4), np.linalg.inv(dense), rtol=1e-8)
    log_likelihood = (labels * np.log(chances) + (1 - labels) * np.log(1 - chances)).sum()
    scales = np.asarray([1.5] * 3 + [3.0])
    log_prior = -0.5 * ((mode / scales) ** 2).sum() - np.log(scales).sum() - 2 * np.log(2 * np.pi)
    expected = log_prior + log_likelihood / 2.0 + 2 * np.log(2 * np.pi)
    expected -= 0.5 * np.linalg.slogdet(dense)[1]
    np.testing.assert_allclose(fit.evidence(), expected, rtol=1e-10)

    options = {"curvature": GaussNewton(sites=["b"]), "likelihood_temperature": 2.0}
    last = Running(face, classification, X, labels, **options)
    np.testing.assert_allclose(last.covariance(1), 1.0 / dense[3:, 3:], rtol=1e-8)
    draws = last.samples(50)
    assert np.ptp(draws["w"], axis=0).max() == 0.0
    assert np.ptp(draws["b"]) > 0.0


def test_jacobians_of_constrained_sites_count(face: Any) -> None:
    def proportion(successes: Any) -> None:
        chance = face.host.sample("chance", face.dist.Beta(2.0, 3.0))
        face.host.sample("y", face.dist.Binomial(20, probs=chance), obs=successes)

    # In the logit the density is chance^8 (1 - chance)^17 with the Jacobian.
    chance = 8.0 / 25.0
    start = start_at(face, {"chance": chance})
    fit = Running(face, proportion, np.array(6.0), init_strategy=start)
    np.testing.assert_allclose(fit.mode()["chance"], chance, rtol=1e-12)
    precision = 25.0 * chance * (1 - chance)
    np.testing.assert_allclose(fit.covariance(1)[0, 0], 1.0 / precision, rtol=1e-10)
    # Stirling's series for the three Gamma functions, to its first term.
    error = (1 / 8.0 + 1 / 17.0 - 1 / 25.0) / 12.0
    exact = betabinom.logpmf(6, 20, 2.0, 3.0)
    np.testing.assert_allclose(fit.evidence(), exact - error, atol=1e-5)
    draws = fit.samples()["chance"]
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
def test_options_are_checked(face: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        face.backend.public.LaplaceGGN(regression_of(face), face.backend.adam(0.1), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hyperparameters": ["nothing"]}, "nothing"),
        ({"hyperparameters": ["w"]}, "leave some"),
        ({"curvature": GaussNewton("diag", prior="hessian")}, "hessian"),
    ],
)
def test_sites_are_checked(face: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Running(face, regression_of(face), X, Y, **options)


def improper(face: Any, name: str, number: int) -> Any:
    real = face.dist.constraints.real_vector
    return face.host.sample(name, face.dist.ImproperUniform(real, (), (number,)))


@pytest.mark.parametrize("structure", ["full", "kfac"])
def test_a_singular_curvature_names_its_site(face: Any, structure: Any) -> None:
    def unbounded(x: Any, y: Any) -> None:
        face.host.sample("bounded", face.dist.Normal(0.0, 1.0))
        w = improper(face, "w", 3)
        face.host.sample("y", face.dist.Normal(x @ w, 0.5).to_event(1), obs=y)

    design = np.concatenate([X[:, :2], X[:, :1] + X[:, 1:2]], 1)
    start = start_at(face, {"bounded": 0.0, "w": np.ones(3)})
    fit = Running(face, unbounded, design, Y, curvature=structure, init_strategy=start)
    with pytest.raises(ArgumentError, match="latent site 'w' in some"):
        fit.samples()
    with pytest.raises(ArgumentError, match="singular"):
        fit.evidence()


@pytest.mark.parametrize("first", [8, 40])
def test_batches_as_arguments_want_the_curvature_of_all_rows(face: Any, first: int) -> None:
    def batches(x: Any, y: Any) -> None:
        w = face.host.sample("w", face.dist.Normal(face.zeros(3), 2.0).to_event(1))
        with face.host.plate("N", 40, subsample_size=len(x)):
            face.host.sample("y", face.dist.Normal(x @ w, 0.5), obs=y)

    refused = "plate 'N' has 40 rows, found arguments with 8.*fit_curvature"
    # Whether the first arguments were a batch or all rows must not matter.
    fit = Running(face, batches, X[:first], Y[:first])
    fit.step(X[:8], Y[:8])
    with pytest.raises(ArgumentError, match=refused):
        fit.samples()
    with pytest.raises(ArgumentError, match=refused):
        fit.fit(X[:8], Y[:8])
    dense = X.T @ X / 0.25 + np.eye(3) / 4.0
    np.testing.assert_allclose(fit.covariance(3, X, Y), np.linalg.inv(dense), rtol=1e-8)
    # Both stay, whatever is given next, until the mode moves.
    fit.see(X[8:16], Y[8:16])
    assert fit.samples(5)["w"].shape == (5, 3)
    mode = fit.mode()["w"]
    squares = ((Y - X @ mode) ** 2).sum() / 0.25 + mode @ mode / 4.0
    expected = -0.5 * (squares + np.linalg.slogdet(dense)[1]) - 3 * np.log(2.0)
    expected -= 40 * np.log(0.5 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(fit.evidence(), expected, rtol=1e-10)
    fit.step(X[:8], Y[:8])
    with pytest.raises(ArgumentError, match=refused):
        fit.samples()


def test_latents_of_rows(face: Any) -> None:
    def local(y: Any, batch: int | None = None) -> None:
        mu = face.host.sample("mu", face.dist.Normal(0.0, 3.0))
        with face.host.plate("N", 8, subsample_size=batch) as i:
            z = face.host.sample("z", face.dist.Normal(mu, 1.0))
            face.host.sample("y", face.dist.Normal(z, 0.5), obs=y[i])

    estimator = face.backend.public.Minibatch()
    fit = Running(face, local, Y[:8], 3, estimator=estimator, data_chunk=4)
    prior = np.zeros((9, 9))
    prior[0, 0] = 1.0 / 9.0 + 8.0
    prior[0, 1:] = prior[1:, 0] = -1.0
    prior[1:, 1:] = 5.0 * np.eye(8)
    np.testing.assert_allclose(fit.covariance(9), np.linalg.inv(prior), rtol=1e-8)


@pytest.mark.parametrize("single", [False, True])
def test_a_direction_of_many_coordinates_that_nothing_bounds_is_noticed(
    face: Any, single: bool
) -> None:
    def model() -> None:
        b = improper(face, "b", 120)
        with face.host.plate("rows", 240):
            rows = face.backend.array(np.arange(240) % 120)
            face.host.sample("y", face.dist.Categorical(logits=b), obs=rows)

    torch.set_default_dtype(torch.float32 if single else torch.float64)
    try:
        with jax.enable_x64(not single):
            fit = Running(face, model)
            with pytest.raises(ArgumentError, match="bounds latent site 'b' in some direction"):
                fit.samples()
    finally:
        torch.set_default_dtype(torch.float64)
