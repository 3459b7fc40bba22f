"""LaplaceGGN: exact where the posterior is Normal, dense algebra, hyperparameters, errors."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from scipy.optimize import minimize
from scipy.stats import betabinom

from numpyro_ext import Full, LaplaceGGN, Minibatch
from numpyro_ext.curvature import Curvature, GaussNewton, KroneckerBlock, row_structure
from numpyro_ext.curvature.coordinates import Coordinates
from numpyro_ext.density import LogDensity
from numpyro_ext.laplace import precision_of
from numpyro_ext.laplace.likelihood import LikelihoodCurvature
from numpyro_ext.laplace.prior import ConditionalPrior, without_negative
from ppl_ext.errors import ArgumentError

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(0)
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(40, 3))
Y = X @ np.array([1.0, -0.5, 0.3]) + 0.4 * GENERATOR.normal(size=40)


def adam(rate: float, steps: int) -> Any:
    return optax.adam(optax.cosine_decay_schedule(rate, steps))


@jax.jit
def covariances(precision: Any, unit: jax.Array) -> jax.Array:
    root = precision.draws(unit)
    return root.T @ root


def covariance(precision: Any, dim: int) -> np.ndarray:
    """Of the draws, exactly: they are linear in the noise."""
    return np.asarray(covariances(precision, jnp.eye(dim)))


# -- Gaussians by structured precisions -----------------------------------------------------------


def part(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def positive(size: int) -> np.ndarray:
    return part(1, size, size) @ part(1, size, size).transpose(0, 2, 1) + 0.1 * np.eye(size)


def kronecker(left: np.ndarray, right: np.ndarray, start: int) -> tuple[KroneckerBlock, ...]:
    return (KroneckerBlock(jnp.asarray(left), jnp.asarray(right), start),)


def curvature(d: Any, matrix: Any = None, rows: Any = None, blocks: Any = ()) -> Curvature:
    d, matrix, rows = (None if each is None else jnp.asarray(each) for each in (d, matrix, rows))
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
        root = precision.draws(jnp.eye(curvature.diagonal.shape[1]))
        return precision.log_determinant(), root.T @ root, precision.definite()

    made, expected = curvatures()
    results = jax.jit(lambda made: {name: found(each) for name, each in made.items()})(made)
    for name, (log_determinant, draws, definite) in results.items():
        if name.startswith("not definite"):
            assert not bool(definite.all())
            continue
        dense = expected.get(name, np.asarray(made[name].dense()[0]))
        np.testing.assert_allclose(log_determinant, np.linalg.slogdet(dense)[1], rtol=1e-10)
        np.testing.assert_allclose(draws, np.linalg.inv(dense), rtol=1e-8, atol=1e-9)
        assert bool(definite.all())


def test_negative_curvature_is_removed_with_its_derivative() -> None:
    first, second = np.diag([2.0, 2.0, -1.0]), part(3, 3) + part(3, 3).T
    found = jax.jvp(without_negative, (jnp.asarray(first),), (jnp.asarray(second),))
    np.testing.assert_allclose(found[0], np.diag([2.0, 2.0, 0.0]), atol=1e-14)
    step = 1e-6
    ends = [np.asarray(without_negative(jnp.asarray(first + s * second))) for s in (step, -step)]
    np.testing.assert_allclose(found[1], (ends[0] - ends[1]) / (2 * step), atol=1e-5)


# -- curvature of a program -----------------------------------------------------------------------


def network(x: Any, y: Any, batch: int | None = None) -> None:
    """A network of one layer, with a learnt noise that is not the same for all rows."""
    noise = numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
    width = numpyro.sample("width", dist.LogNormal(0.0, 1.0))
    w = numpyro.sample("w", dist.Normal(jnp.zeros((3, 2)), width).to_event(2))
    v = numpyro.sample("v", dist.Normal(jnp.zeros(2), 2.0).to_event(1))
    with numpyro.plate("N", 40, subsample_size=batch) as i:
        numpyro.sample(
            "y", dist.Normal(jnp.tanh(x[i] @ w) @ v, noise ** (1.0 + 0.5 * x[i, 0])), obs=y[i]
        )


Z = 0.7 * np.random.default_rng(5).normal(size=10)


@functools.cache
def target_of(batch: int | None) -> tuple[LogDensity, Any]:
    target = LogDensity(network, KEY, (X, Y, batch), data_chunk=batch and 16)
    return target, target.bind(X, Y, batch)


def curvature_at(structure: Any, batch: int | None, rank: int = 3) -> Any:
    """Curvature of the weights, as a function of the position."""
    target, data = target_of(batch)
    options = GaussNewton(structure, ("w", "v"), rank)
    where = Coordinates(target, ("w", "v"))
    with jax.ensure_compile_time_eval():
        rows = row_structure(target, jnp.asarray(Z), data, target.first_rows())
    likelihood = LikelihoodCurvature(target, where, options, rows)
    return lambda z: likelihood.at(z, data, jax.random.PRNGKey(0))


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

    def found(z: jax.Array) -> Any:
        made = {s: curvature_at(s, 8)(z).dense()[0] for s in ("full", "diag", "kfac")}
        made["low_rank"] = curvature_at("low_rank", 8)(z).dense()[0]
        # All leading terms, so that merging loses nothing.
        made["all terms"] = curvature_at("low_rank", 8, rank=8)(z).dense()[0]
        made["prior"] = ours.at(z, data).dense()[0]
        return made

    def outputs(weights: jax.Array) -> jax.Array:
        mean = jnp.tanh(X @ weights[:6].reshape(3, 2)) @ weights[6:]
        return mean / jnp.exp(Z[0] * (1.0 + 0.5 * X[:, 0]))

    results = {name: np.asarray(value) for name, value in jax.jit(found)(jnp.asarray(Z)).items()}
    jacobian = np.asarray(jax.jacfwd(outputs)(jnp.asarray(Z[2:])))
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
    target_of(8)

    def log_determinants(values: jax.Array) -> jax.Array:
        z = jnp.asarray(Z).at[:2].set(values)
        prior = jnp.concatenate([jnp.full(6, jnp.exp(-2.0 * values[1])), jnp.full(2, 0.25)])
        found = []
        # The others are plain sums, which a whole run follows below.
        for structure in ("kfac", "low_rank"):
            curvature = curvature_at(structure, 8)(z)
            total = Curvature(
                curvature.diagonal + prior, curvature.matrix, curvature.rows, curvature.blocks
            )
            found.append(precision_of(total).log_determinant())
        return jnp.stack(found)

    step = 1e-5

    @jax.jit
    def both(values: jax.Array) -> Any:
        ends = jnp.concatenate([values + step * jnp.eye(2), values - step * jnp.eye(2)])
        slopes = jax.jacfwd(log_determinants)(values)
        return slopes, jax.lax.map(log_determinants, ends)

    slopes, ends = both(jnp.asarray(Z[:2]))
    rises = (np.asarray(ends[:2]) - np.asarray(ends[2:])) / (2.0 * step)
    np.testing.assert_allclose(slopes.T, rises, rtol=1e-6, atol=1e-6)


# -- the engine ----------------------------------------------------------------------------------


def regression(x: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 2.0).to_event(1))
    numpyro.sample("y", dist.Normal(x @ w, 0.5).to_event(1), obs=y)


def test_linear_regression_is_exact() -> None:
    precision = X.T @ X / 0.25 + np.eye(3) / 4.0
    mean = np.linalg.solve(precision, X.T @ Y / 0.25)
    start = numpyro.infer.init_to_value(values={"w": mean})
    engine = LaplaceGGN(regression, adam(0.1, 10), init_strategy=start)
    state = engine.init(KEY, X, Y)
    np.testing.assert_allclose(engine.mode(state)["w"], mean, rtol=1e-12)
    marginal = 4.0 * X @ X.T + 0.25 * np.eye(40)
    evidence = (
        -0.5 * Y @ np.linalg.solve(marginal, Y) - 0.5 * np.linalg.slogdet(2 * np.pi * marginal)[1]
    )
    np.testing.assert_allclose(engine.log_marginal_likelihood(state), evidence, atol=1e-6)
    number = 20_000
    draws = np.asarray(engine.get_samples(state, jax.random.key(1), number)["w"])
    whitened = (draws - mean) @ np.linalg.cholesky(precision)
    assert np.abs(whitened.mean(0)).max() < 4.5 / number**0.5
    assert np.abs(np.cov(whitened.T) - np.eye(3)).max() < 4.5 * (2.0 / number) ** 0.5
    again = engine.get_samples(state, jax.random.key(1), number)["w"]
    np.testing.assert_array_equal(again, draws)
    assert engine.get_samples(state)["w"].shape == (1000, 3)
    assert engine.arviz_attributes() == {"sample_kind": "independent draws"}


def scaled_regression(x: Any, y: Any, batch: int | None = None) -> None:
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 1.0))
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), tau).to_event(1))
    noise = numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("N", 40, subsample_size=batch) as i:
        numpyro.sample("y", dist.Normal(x[i] @ w, noise), obs=y[i])


def scaled_engine(**options: Any) -> LaplaceGGN:
    return LaplaceGGN(
        scaled_regression,
        adam(0.1, 500),
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
    result = engine.run(KEY, 500, X, Y, 8, progress_bar=False)
    mode = engine.mode(result.state)
    np.testing.assert_allclose([mode["tau"], mode["noise"]], np.exp(best.x), rtol=1e-5)
    found = engine.log_marginal_likelihood(result.state)
    np.testing.assert_allclose(found, -best.fun, atol=1e-6)
    draws = engine.get_samples(result.state)
    assert np.ptp(np.asarray(draws["tau"])) == 0.0

    # Resuming is exact, and a new engine finds the same Gaussian.
    first = engine.run(KEY, 13, X, Y, 8, progress_bar=False).state
    engine.save(tmp_path / "state", first)
    other = scaled_engine()
    loaded = other.load(tmp_path / "state", X, Y, 8)
    np.testing.assert_array_equal(other.get_samples(loaded)["w"], engine.get_samples(first)["w"])
    for_one = engine.run(KEY, 20, X, Y, 8, progress_bar=False).state
    resumed = engine.run(KEY, 7, X, Y, 8, init_state=loaded, progress_bar=False).state
    np.testing.assert_array_equal(engine.particles(resumed), engine.particles(for_one))
    with pytest.raises(ArgumentError, match="curvature"):
        scaled_engine(curvature="diag").load(tmp_path / "state", X, Y, 8)


def test_steps_that_are_not_finite_leave_the_gradient_of_the_determinant() -> None:
    bad = X.copy()
    bad[3, 1] = np.nan
    engine = LaplaceGGN(
        scaled_regression,
        optax.sgd(1e-3),
        hyperparameters=["tau", "noise"],
        hyperparameters_every=3,
        on_nonfinite="skip",
    )
    start, found = engine.init(KEY, X, Y), []
    # Bad ones where the gradient is kept, and where it is to be renewed.
    for designs in ((X, X, X, X, X), (X, bad, X, X, bad, X, X)):
        state = start
        for design in designs:
            state, _ = engine.update(state, design, Y)
        assert int(state.skipped) == len(designs) - 5
        found.append(engine.particles(state))
    np.testing.assert_array_equal(*found)


def classification(x: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1.5).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 3.0))
    numpyro.sample("y", dist.Bernoulli(logits=x @ w + b).to_event(1), obs=y)


def test_logistic_regression_and_chosen_sites() -> None:
    labels = (Y > 0).astype(float)
    engine = LaplaceGGN(classification, adam(0.1, 10), likelihood_temperature=2.0)
    state = engine.init(KEY, X, labels)
    mode = np.asarray(engine.particles(state)[0])
    design = np.hstack([X, np.ones((40, 1))])
    chances = 1.0 / (1.0 + np.exp(-design @ mode))
    variances = chances * (1 - chances)
    dense = (design.T * variances) @ design / 2.0 + np.diag([1.5**-2] * 3 + [1.0 / 9.0])
    precision = engine.fit_curvature(state)
    np.testing.assert_allclose(covariance(precision, 4), np.linalg.inv(dense), rtol=1e-8)
    log_likelihood = (labels * np.log(chances) + (1 - labels) * np.log(1 - chances)).sum()
    scales = np.asarray([1.5] * 3 + [3.0])
    log_prior = -0.5 * ((mode / scales) ** 2).sum() - np.log(scales).sum() - 2 * np.log(2 * np.pi)
    expected = log_prior + log_likelihood / 2.0 + 2 * np.log(2 * np.pi)
    expected -= 0.5 * np.linalg.slogdet(dense)[1]
    np.testing.assert_allclose(engine.log_marginal_likelihood(state), expected, rtol=1e-10)

    last = LaplaceGGN(
        classification,
        adam(0.1, 10),
        curvature=GaussNewton(sites=["b"]),
        likelihood_temperature=2.0,
    )
    state = last.init(KEY, X, labels)
    np.testing.assert_allclose(
        covariance(last.fit_curvature(state), 1), 1.0 / dense[3:, 3:], rtol=1e-8
    )
    draws = last.get_samples(state, KEY, 50)
    assert np.ptp(np.asarray(draws["w"]), axis=0).max() == 0.0
    assert np.ptp(np.asarray(draws["b"])) > 0.0


def proportion(successes: Any) -> None:
    chance = numpyro.sample("chance", dist.Beta(2.0, 3.0))
    numpyro.sample("y", dist.Binomial(20, probs=chance), obs=successes)


def test_jacobians_of_constrained_sites_count() -> None:
    # In the logit the density is chance^8 (1 - chance)^17 with the Jacobian.
    chance = 8.0 / 25.0
    start = numpyro.infer.init_to_value(values={"chance": chance})
    engine = LaplaceGGN(proportion, adam(0.1, 10), init_strategy=start)
    state = engine.init(KEY, jnp.asarray(6))
    np.testing.assert_allclose(engine.mode(state)["chance"], chance, rtol=1e-12)
    precision = 25.0 * chance * (1 - chance)
    found = covariance(engine.fit_curvature(state), 1)[0, 0]
    np.testing.assert_allclose(found, 1.0 / precision, rtol=1e-10)
    # Stirling's series for the three Gamma functions, to its first term.
    error = (1 / 8.0 + 1 / 17.0 - 1 / 25.0) / 12.0
    exact = betabinom.logpmf(6, 20, 2.0, 3.0)
    np.testing.assert_allclose(engine.log_marginal_likelihood(state), exact - error, atol=1e-5)
    draws = np.asarray(engine.get_samples(state)["chance"])
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
        LaplaceGGN(regression, adam(0.1, 10), **options).init(KEY, X, Y)


def unbounded(x: Any, y: Any) -> None:
    numpyro.sample("bounded", dist.Normal(0.0, 1.0))
    w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real_vector, (), (3,)))
    numpyro.sample("y", dist.Normal(x @ w, 0.5).to_event(1), obs=y)


@pytest.mark.parametrize("structure", ["full", "kfac"])
def test_a_singular_curvature_names_its_site(structure: Any) -> None:
    design = np.concatenate([X[:, :2], X[:, :1] + X[:, 1:2]], 1)
    engine = LaplaceGGN(
        unbounded,
        adam(0.1, 10),
        curvature=structure,
        init_strategy=numpyro.infer.init_to_value(values={"bounded": 0.0, "w": jnp.ones(3)}),
    )
    state = engine.init(KEY, design, Y)
    with pytest.raises(ArgumentError, match="latent site 'w' in some"):
        engine.get_samples(state)
    with pytest.raises(ArgumentError, match="singular"):
        engine.log_marginal_likelihood(state)


def batches(x: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 2.0).to_event(1))
    with numpyro.plate("N", 40, subsample_size=len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


@pytest.mark.parametrize("first", [8, 40])
def test_batches_as_arguments_want_the_curvature_of_all_rows(first: int) -> None:
    refused = "plate 'N' has 40 rows, found arguments with 8.*fit_curvature"
    engine = LaplaceGGN(batches, adam(0.1, 10))
    # Whether the first arguments were a batch or all rows must not matter.
    state = engine.init(KEY, X[:first], Y[:first])
    state, _ = engine.update(state, X[:8], Y[:8])
    with pytest.raises(ArgumentError, match=refused):
        engine.get_samples(state)
    with pytest.raises(ArgumentError, match=refused):
        engine.fit_curvature(state, X[:8], Y[:8])
    precision = engine.fit_curvature(state, X, Y)
    dense = X.T @ X / 0.25 + np.eye(3) / 4.0
    np.testing.assert_allclose(covariance(precision, 3), np.linalg.inv(dense), rtol=1e-8)
    # Both stay, whatever is given next, until the mode moves.
    engine.update(state, X[8:16], Y[8:16])
    assert engine.get_samples(state, KEY, 5)["w"].shape == (5, 3)
    mode = np.asarray(engine.mode(state)["w"])
    squares = ((Y - X @ mode) ** 2).sum() / 0.25 + mode @ mode / 4.0
    expected = -0.5 * (squares + np.linalg.slogdet(dense)[1]) - 3 * np.log(2.0)
    expected -= 40 * np.log(0.5 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(engine.log_marginal_likelihood(state), expected, rtol=1e-10)
    state, _ = engine.update(state, X[:8], Y[:8])
    with pytest.raises(ArgumentError, match=refused):
        engine.get_samples(state)


def local(y: Any, batch: int | None = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("N", 8, subsample_size=batch) as i:
        z = numpyro.sample("z", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(z, 0.5), obs=y[i])


def test_latents_of_rows() -> None:
    engine = LaplaceGGN(local, adam(0.1, 10), estimator=Minibatch(), data_chunk=4)
    state = engine.init(KEY, Y[:8], 3)
    prior = np.zeros((9, 9))
    prior[0, 0] = 1.0 / 9.0 + 8.0
    prior[0, 1:] = prior[1:, 0] = -1.0
    prior[1:, 1:] = 5.0 * np.eye(8)
    found = covariance(engine.fit_curvature(state), 9)
    np.testing.assert_allclose(found, np.linalg.inv(prior), rtol=1e-8)


def test_a_direction_of_many_coordinates_that_nothing_bounds_is_noticed() -> None:
    def model() -> None:
        b = numpyro.sample("b", dist.ImproperUniform(dist.constraints.real_vector, (), (120,)))
        with numpyro.plate("rows", 240):
            numpyro.sample("y", dist.Categorical(logits=b), obs=jnp.arange(240) % 120)

    engine = LaplaceGGN(model, optax.adam(0.1))
    state = engine.init(KEY)
    with pytest.raises(ArgumentError, match="bounds latent site 'b' in some direction"):
        engine.get_samples(state)
