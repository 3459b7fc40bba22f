"""Curvature of programs: Fisher information of outputs, and Gauss-Newton matrices from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax
from scipy.stats import binom

from ppl_ext.curvature.outer_products import kronecker_factors
from ppl_ext.curvature.program_curvature import (
    NO_STRUCTURE,
    GaussNewton,
    PriorStructure,
    generic_direction,
)
from ppl_ext.errors import ArgumentError
from tests.backends import use_float64
from tests.curvature_support import (
    MIXTURE,
    SHARED,
    assert_is_fisher,
    gauss_newton,
    key_of,
    mixture_fisher,
    output_of_pyro,
    root_and_scores,
)

use_float64()

GENERATOR = np.random.default_rng(0)
X, Y = GENERATOR.normal(size=(12, 2)), GENERATOR.normal(size=12)
CHOSEN = np.array([0, 3, 4, 7, 11])


def handlers(backend: Any) -> Any:
    return backend.host.poutine if backend.name == "pyro" else backend.host.handlers


def jacobian(function: Any, z: np.ndarray) -> np.ndarray:
    """By complex steps."""
    return np.stack([function(z + 1e-30j * e).imag / 1e-30 for e in np.eye(len(z))], axis=-1)


# -- Fisher information -----------------------------------------------------------------------


@pytest.mark.parametrize("name", SHARED)
def test_fisher_information_is_the_covariance_of_the_score(backend: Any, name: str) -> None:
    made, moved, fixed = SHARED[name]
    root, scores = root_and_scores(backend, getattr(backend.dist, made), moved, fixed)
    assert_is_fisher(root.T @ root, scores)


def test_fisher_information_is_the_curvature_of_the_log_partition(backend: Any) -> None:
    host, dist, xp = backend.host, backend.dist, backend.xp

    def counts() -> None:
        z = host.sample("z", dist.Normal(xp.zeros(3), 1.0).to_event(1))
        host.sample("c", dist.Categorical(logits=z), obs=backend.array(1))
        host.sample("n", dist.Poisson(xp.exp(z[0])), obs=backend.array(2.0))
        host.sample("k", dist.Binomial(7, logits=z[1]), obs=backend.array(3.0))

    z = np.array([0.4, -1.0, 0.2])
    # The second derivatives of log sum exp(z) + exp(z_0) + 7 log(1 + exp(z_1)).
    chance, success = softmax(z), expit(z[1])
    expected = np.diag(chance) - np.outer(chance, chance)
    expected += np.diag([np.exp(z[0]), 7 * success * (1 - success), 0.0])
    np.testing.assert_allclose(gauss_newton(backend, counts, z), expected, atol=1e-12)


def test_probabilities_that_do_not_sum_to_one(backend: Any) -> None:
    """A common factor of the weights changes nothing; so it must not in the information."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model() -> None:
        z = host.sample("z", dist.Normal(xp.zeros(3), 1.0).to_event(1))
        weights = xp.exp(z)
        host.sample("y", dist.Categorical(probs=weights / weights.sum()), obs=backend.array(1))

    z = np.array([0.4, -1.0, 0.2])
    chance = softmax(z)
    expected = np.diag(chance) - np.outer(chance, chance)
    np.testing.assert_allclose(gauss_newton(backend, model, z), expected, atol=1e-12)
    probs = backend.array(chance)
    fn = dist.Categorical(probs=probs)
    if backend.name == "pyro":
        point = output_of_pyro(fn)
    else:
        from numpyro_ext.density.outputs import output_of

        site = {"fn": fn, "value": 1, "scale": None, "name": "y", "cond_indep_stack": []}
        point = output_of(site)
    found = backend.room("curvature").fisher_root(point, {"probs": probs}, *key_of(backend))
    np.testing.assert_allclose(backend.numpy(found), 0.0, atol=1e-12)


@pytest.mark.parametrize("gate", [0.3, 0.0])
def test_a_zero_inflated_binomial_and_a_certain_gate(backend: Any, gate: float) -> None:
    host, dist = backend.host, backend.dist

    def model() -> None:
        z = host.sample("z", dist.Normal(0.0, 1.0))
        inflated = dist.ZeroInflatedDistribution(
            dist.Binomial(5, logits=z), gate=backend.array(gate)
        )
        host.sample("y", inflated, obs=backend.array(0.0))

    mixed = (1 - gate) * binom.pmf(np.arange(6), 5, expit(0.3))
    changes = mixed * (np.arange(6) - 5 * expit(0.3))
    mixed[0] += gate
    found = gauss_newton(backend, model, np.array([0.3]))
    np.testing.assert_allclose(found, [[np.sum(changes**2 / mixed)]], rtol=1e-6)


@pytest.mark.parametrize("rows", [2, 5])  # two: as many as components, whose shapes then agree
def test_distributions_made_of_others_are_refused_by_name(backend: Any, rows: int) -> None:
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model() -> None:
        loc = host.sample("loc", dist.Normal(xp.zeros(2), 1.0).to_event(1))
        parts = dist.Normal(loc, 1.0).mask(backend.array(np.array([True, False])))
        mixed = dist.MixtureSameFamily(dist.Categorical(xp.ones(2) / 2), parts)
        with host.plate("N", rows):
            host.sample("y", mixed, obs=xp.zeros(rows))

    expected = r"Site 'y': expected .* \[\] .* found MixtureSameFamily .*register_output_fisher"
    with pytest.raises(ArgumentError, match=expected):
        gauss_newton(backend, model, np.zeros(2))


def test_fisher_information_of_a_mixture(backend: Any) -> None:
    """Of one whose components overlap, by integration; 16 draws for each of 1,000 elements."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model() -> None:
        z = host.sample("z", dist.Normal(xp.zeros(5), 1.0).to_event(1))
        weights = dist.Categorical(logits=xp.stack([z[0], backend.array(0.0)]))
        mixed = dist.MixtureSameFamily(weights, dist.Normal(z[1:3], xp.exp(z[3:])))
        with host.plate("N", 1000):
            host.sample("y", mixed, obs=xp.zeros(1000))

    expected, deviation = mixture_fisher()
    found = gauss_newton(backend, model, MIXTURE) / 1000
    assert (np.abs(found - expected) < 5 * deviation / np.sqrt(16_000)).all()


def test_fisher_information_of_a_mixture_of_vectors(backend: Any) -> None:
    """Far apart it is that of the components times their weights."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model() -> None:
        z = host.sample("z", dist.Normal(xp.zeros((2, 3)), 1.0).to_event(2))
        weights = dist.Categorical(probs=backend.array([0.3, 0.7]))
        mixed = dist.MixtureSameFamily(weights, dist.Normal(z, 0.5).to_event(1))
        host.sample("y", mixed.expand([1000]).to_event(1), obs=xp.zeros((1000, 3)))

    found = gauss_newton(backend, model, np.array([0.0, 0.1, 0.2, 90.0, 91.0, 92.0])) / 1000
    weights = np.repeat([0.3, 0.7], 3)
    # Of a squared standard normal number times an event of this chance, over the scale.
    deviation = 4.0 * np.sqrt(3.0 * weights - weights**2)
    error = 5 * deviation / np.sqrt(16_000)
    assert (np.abs(np.diag(found) - 4.0 * weights) < error).all()
    assert np.abs(found - np.diag(np.diag(found))).max() < error.max()


def test_unknown_distributions_have_a_monte_carlo_fisher_information(backend: Any) -> None:
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model() -> None:
        z = host.sample("z", dist.Normal(0.0, 1.0))
        pareto = dist.Pareto(backend.array(1.0), xp.exp(z)).expand([2000])
        host.sample("y", pareto, obs=2 * xp.ones(2000))

    # In the logarithm of its exponent the score is 1 - E, with E standard exponential: its square
    # has mean 1 and variance 8, and each of 2,000 elements has 16 draws.
    found = gauss_newton(backend, model, np.array([0.3]))[0, 0] / 2000
    assert abs(found - 1.0) < 5 * np.sqrt(8 / (16 * 2000))


# -- Gauss-Newton matrices --------------------------------------------------------------------


def naive(z: np.ndarray, x: np.ndarray, factor: float) -> np.ndarray:
    """J^T F J of the model below, site by site."""

    def mean(z: np.ndarray) -> np.ndarray:
        return x @ z[:2] + np.sin(z[0])

    of_mean, of_logits = jacobian(mean, z), jacobian(lambda z: mean(z) * np.exp(z[2]), z)
    scale = np.exp(z[2])
    chance = expit(mean(z) * scale)
    total = factor * (
        of_mean.T @ of_mean / scale**2
        + of_logits.T @ ((chance * (1 - chance))[:, None] * of_logits)
    )
    # The scale's own Fisher information 2 / s^2 for each row, times (ds / dz)^2 = s^2.
    total[2, 2] += factor * 2.0 * len(x)
    total[0, 0] += np.exp(z[0])
    return total


@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("batch", [None, 5])
def test_gauss_newton_is_the_naive_product(
    backend: Any, batch: int | None, temperature: float
) -> None:
    host, dist, xp, room = backend.host, backend.dist, backend.xp, backend.room("curvature")

    def model(x: Any, y: Any, c: Any, batch: int | None = None) -> None:
        """Two sites in a plate, one of them heteroscedastic, and one site outside."""
        w = host.sample("w", dist.Normal(xp.zeros(2), 1.0).to_event(1))
        s = host.sample("s", dist.LogNormal(0.0, 1.0))
        host.sample("extra", dist.Poisson(xp.exp(w[0])), obs=backend.array(3.0))
        with host.plate("N", len(y), subsample_size=batch) as i:
            mean = x[i] @ w + xp.sin(w[0])
            host.sample("y", dist.Normal(mean, s), obs=y[i])
            host.sample("c", dist.Bernoulli(logits=mean * s), obs=c[i])

    args = tuple(map(backend.array, (X, Y, (Y > 0.3).astype(float))))
    options = {"likelihood_temperature": temperature}
    target, data = backend.target(model, args, {"batch": batch}, **options)
    indices = {} if batch is None else {"N": backend.array(CHOSEN)}
    positions = np.random.default_rng(1).normal(size=(3, 3))
    vectors = np.random.default_rng(2).normal(size=(3, 3))
    structure = room.row_structure(target, backend.array(positions[0]), data, indices)
    assert structure.by_row == {"y", "c"}
    assert structure.arguments == ((0, 1, 2) if batch is None else ())
    key = key_of(backend)

    def both(z: Any, vectors: Any) -> Any:
        rows = room.jacobian_rows(target, z, data, indices, *key, structure)
        return rows, room.gauss_newton_products(target, z, data, indices, *key)(vectors)

    computed = backend.compiled(both)(backend.array(positions), backend.array(vectors))
    found, products = map(backend.numpy, computed)
    # One row for the scale of all of y, and one for the site outside.
    assert found.shape == (3, 2 * (batch or 12) + 2, 3)
    x = X if batch is None else X[CHOSEN]
    for each, position, vector, product in zip(found, positions, vectors, products, strict=True):
        expected = naive(position, x, 12 / len(x)) / temperature
        np.testing.assert_allclose(each.T @ each, expected, rtol=1e-10)
        np.testing.assert_allclose(product, expected @ vector, rtol=1e-10)


@pytest.mark.parametrize("batch", [pytest.param(None, marks=pytest.mark.slow), 5])
def test_merged_rows_have_the_same_products(backend: Any, batch: int | None) -> None:
    host, dist, xp, room = backend.host, backend.dist, backend.xp, backend.room("curvature")

    def model(x: Any, y: Any, batch: int | None = None) -> None:
        """Two responses for each row, with parameters shared by all rows or by all elements."""
        w = host.sample("w", dist.Normal(xp.zeros(2), 1.0).to_event(1))
        s = host.sample("s", dist.LogNormal(xp.zeros(2), 1.0).to_event(1))
        with host.plate("N", 12, subsample_size=batch) as i:
            mean = xp.sin(x[i] * w)
            seen = dist.Normal(mean, s).mask(y[i] > -0.5).to_event(1)
            host.sample("columns", seen, obs=y[i])
            host.sample("tails", dist.StudentT(3.0 + s[0], mean[:, 0], s[1]), obs=y[i, 0])
            # The information mixes concentration and rate; one component has the shared one alone.
            positive = dist.Gamma(s[0], xp.exp(mean[:, 1]))
            host.sample("mixed", positive, obs=xp.exp(y[i, 1]))
            unseen = dist.Normal(mean[:, 0], s[0]).mask(backend.array(np.array(False)))
            host.sample("unseen", unseen, obs=y[i, 0])

    args = tuple(backend.array(np.random.default_rng(seed).normal(size=(12, 2))) for seed in (3, 4))
    target, data = backend.target(model, args, {"batch": batch})
    indices = {} if batch is None else {"N": backend.array(CHOSEN)}
    z = backend.array(np.random.default_rng(1).normal(size=(2, 4)))
    structure = room.row_structure(target, z[0], data, indices)
    merged = {name: {each.axes for each in found} for name, found in structure.repeated.items()}
    assert merged == {name: {(0,)} for name in ("columns", "tails", "mixed", "unseen")}
    columns = {("w",): slice(2), ("s",): slice(2, 4), ("s", "w"): slice(4)}
    key = key_of(backend)

    def every(z: Any) -> Any:
        given = [(structure, None), (NO_STRUCTURE, None)] + [(structure, each) for each in columns]
        return [room.jacobian_rows(target, z, data, indices, *key, *each) for each in given]

    found, plain, *parts = map(backend.numpy, backend.compiled(every)(z))
    assert found.shape[1] < plain.shape[1]
    np.testing.assert_allclose(found.mT @ found, plain.mT @ plain, rtol=1e-9, atol=1e-9)
    for part, where in zip(parts, columns.values(), strict=True):
        np.testing.assert_allclose(part, found[..., where], rtol=1e-9, atol=1e-9)


def test_rows_that_depend_on_each_other_are_not_taken_apart(backend: Any) -> None:
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(x: Any) -> None:
        w = host.sample("w", dist.Normal(xp.zeros(2), 1.0).to_event(1))
        with host.plate("N", 12, subsample_size=5) as i:
            mean = x[i] @ w
            host.sample("centred", dist.Normal(mean - mean.mean(), 1.0), obs=x[i, 1])
            if backend.name == "numpyro":  # Pyro's plate refuses a row that has five elements
                host.sample("written", dist.Normal(mean, xp.ones(5)), obs=xp.zeros(5))
            host.sample("apart", dist.Normal(mean, 1.0), obs=x[i, 0])
            # Next to large values a small one is known to their rounding only.
            rounding = 1e-8 if len(i) > 1 else 0.0
            host.sample("large", dist.Normal(1e6 * mean + rounding, 1.0), obs=x[i, 0])

    x = X.copy()
    x[0] = 0.0
    target, data = backend.target(model, (backend.array(x),))
    position, indices = backend.array([0.3, -0.2]), {"N": backend.array(CHOSEN)}
    structure = backend.room("curvature").row_structure(target, position, data, indices)
    assert structure.by_row == {"apart", "large"}


def test_rows_of_arguments_are_taken_apart_where_they_stand_alone(backend: Any) -> None:
    """Without a subsampled plate a row is a model of one row of the arguments, if it is one."""
    host, dist, xp = backend.host, backend.dist, backend.xp
    scale = handlers(backend).scale

    def model(x: Any, y: Any, centre: Any, total: int | None = None) -> None:
        w = host.sample("w", dist.Normal(xp.zeros(2), 1.0).to_event(1))
        with host.plate("N", total or len(y), subsample_size=total and len(y)):
            mean = (x - centre) @ w
            host.sample("apart", dist.Normal(mean, 1.0), obs=y)
            host.sample("centred", dist.Normal(mean - mean.mean(), 1.0), obs=y)
            with scale(scale=1.0 / len(y)):
                host.sample("share", dist.Normal(mean, 1.0), obs=y)
        host.sample("outside", dist.Normal(w[0], 1.0), obs=y.sum())

    room, key = backend.room("curvature"), key_of(backend)
    args = tuple(map(backend.array, (X[:6], Y[:6], np.array([0.1, 0.5]))))
    z = backend.array(np.array([[0.3, -0.2]]))
    for total in (None, 30):
        target, data = backend.target(model, (*args, total))
        structure = room.row_structure(target, z[0], data, {})
        assert structure.by_row == {"apart"} and structure.arguments == (0, 1)
        assert structure.scaled_up == (total is not None)
        found = room.jacobian_rows(target, z, data, {}, *key, structure)
        plain = room.jacobian_rows(target, z, data, {}, *key)
        found, plain = (backend.numpy(rows) for rows in (found, plain))
        np.testing.assert_allclose(found.mT @ found, plain.mT @ plain, rtol=1e-10)


@pytest.mark.parametrize("truth", [False, True])
def test_rows_that_depend_through_weights_alone_are_not_taken_apart(
    backend: Any, truth: bool
) -> None:
    """Weights that are all one, as in a batch without padding, hide what they are divided by."""
    host, dist, xp, room = backend.host, backend.dist, backend.xp, backend.room("curvature")
    scale = handlers(backend).scale

    def model(x: Any, y: Any, weights: Any) -> None:
        w = host.sample("w", dist.Normal(xp.zeros(2), 1.0).to_event(1))
        with host.plate("N", len(y)), scale(scale=weights / weights.sum()):
            host.sample("share", dist.Normal(x @ w, 1.0), obs=y)

    weights = np.ones(6, dtype=bool if truth else float)
    target, data = backend.target(model, tuple(map(backend.array, (X[:6], Y[:6], weights))))
    position = backend.array([0.3, -0.2])
    assert room.row_structure(target, position, data, {}).by_row == set()


def test_rows_of_a_minibatch_that_share_their_weight_are_not_taken_apart(backend: Any) -> None:
    host, dist, xp = backend.host, backend.dist, backend.xp
    scale = handlers(backend).scale

    def model(x: Any, weights: Any) -> None:
        w = host.sample("w", dist.Normal(xp.zeros(2), 1.0).to_event(1))
        with host.plate("N", 12, subsample_size=5) as i:
            host.sample("apart", dist.Normal(x[i] @ w, 1.0), obs=x[i, 1])
            with scale(scale=weights[i] / weights[i].sum()):
                host.sample("share", dist.Normal(x[i] @ w, 1.0), obs=x[i, 1])

    args = backend.array(X), backend.array(np.arange(1.0, 13.0))
    with pytest.warns(backend.public.DataWarning, match="depends on the other rows"):
        target, data = backend.target(model, args)
    position, indices = backend.array([0.3, -0.2]), {"N": backend.array(CHOSEN)}
    structure = backend.room("curvature").row_structure(target, position, data, indices)
    assert structure.by_row == {"apart"}


def test_other_arguments_have_the_rows_of_their_own(backend: Any) -> None:
    """Batches of other sizes, names in another order, and six prior scales beside six rows."""
    host, dist, xp, room = backend.host, backend.dist, backend.xp, backend.room("curvature")

    def model(x: Any, y: Any, prior: Any, centre: Any) -> None:
        w = host.sample("w", dist.Normal(xp.zeros(6), prior).to_event(1))
        with host.plate("N", len(y)):
            host.sample("y", dist.Normal((x - centre[0]) @ w, 1.0), obs=y)

    generator = np.random.default_rng(5)
    held = {"prior": np.arange(1.0, 7.0), "centre": np.array([0.3, 0.1])}
    batches = [
        {"x": generator.normal(size=(n, 6)), "y": generator.normal(size=n)} for n in (6, 6, 1, 4)
    ]
    orders = [("x", "y", "prior", "centre"), *[("centre", "prior", "y", "x")] * 3]
    all_ = [
        {name: backend.array({**batch, **held}[name]) for name in names}
        for batch, names in zip(batches, orders, strict=True)
    ]
    target, data = backend.target(model, (), all_[0])
    z, key = backend.array(generator.normal(size=(1, 6))), key_of(backend)
    structure = room.row_structure(target, z[0], data, {})
    assert structure.by_row == {"y"} and len(structure.arguments) == 3
    for each in all_:
        data = target.bind(**each)
        found = room.jacobian_rows(target, z, data, {}, *key, structure)
        plain = room.jacobian_rows(target, z, data, {}, *key)
        found, plain = (backend.numpy(rows) for rows in (found, plain))
        np.testing.assert_allclose(found.mT @ found, plain.mT @ plain, rtol=1e-10, atol=1e-12)


def test_a_constant_prior_follows_the_arguments(backend: Any) -> None:
    """Also those that are written into, where the host's arrays can be."""
    host, dist, xp, room = backend.host, backend.dist, backend.xp, backend.room("curvature")

    def model(prior: Any, y: Any) -> None:
        w = host.sample("w", dist.Normal(xp.zeros(2), prior).to_event(1))
        with host.plate("N", len(y)):
            host.sample("y", dist.Normal(w.sum(), 1.0), obs=y)

    prior, y, z = (backend.array(each) for each in ([0.5, 2.0], np.ones(3), np.zeros((2, 2))))
    target, data = backend.target(model, (prior, y))
    curvature = room.ProgramCurvature(target, data, GaussNewton("diag"))
    assert curvature.prior.constant

    def found(prior: Any) -> Any:
        at = curvature.at(target, z, target.bind(prior, y), {}, *key_of(backend))
        return backend.numpy(at.diagonals())[0] - 3.0

    np.testing.assert_allclose(found(backend.array([1.0, 0.1])), [1.0, 100.0], rtol=1e-12)
    for _ in range(2):
        np.testing.assert_allclose(found(prior), [4.0, 0.25], rtol=1e-12)
    if backend.name == "pyro":
        prior *= 2.0
        np.testing.assert_allclose(found(prior), [1.0, 0.0625], rtol=1e-12)


def test_products_with_kronecker_blocks_are_those_of_the_matrix(backend: Any) -> None:
    """Of blocks with two factors and with one, which take other ways, and beside and among them."""
    room, rng = backend.room("curvature"), np.random.default_rng(0)
    sizes, start, blocks = ((2, 3), (1, 4)), 0, []
    for rows, columns in sizes:
        roots = [rng.normal(size=(3, size, size)) for size in (rows, columns)]
        factors = [backend.array(each @ each.swapaxes(1, 2)) for each in roots]
        blocks.append(room.KroneckerBlock(*factors, start))
        start += rows * columns + 1
    diagonal = backend.array(rng.uniform(size=(1, start)))
    long = backend.array(rng.normal(size=(3, 2, start)))
    alone = room.Curvature(diagonal, blocks=tuple(blocks))
    beside = room.Curvature(diagonal, long.mT @ long, long, tuple(blocks[::-1]))
    vectors = rng.normal(size=(3, 2, start))
    several, one = backend.array(vectors), backend.array(vectors[:, 0])
    for found in (alone, beside):
        dense = backend.numpy(found.dense())
        wanted = vectors @ dense
        np.testing.assert_allclose(backend.numpy(found.products(several)), wanted, rtol=1e-10)
        np.testing.assert_allclose(backend.numpy(found.product(one)), wanted[:, 0], rtol=1e-10)
        np.testing.assert_allclose(
            backend.numpy(found.mean_products(several[0])),
            vectors[0] @ dense.mean(axis=0),
            rtol=1e-10,
        )
        np.testing.assert_allclose(
            backend.numpy(found.quadratic(one)), (wanted * vectors).sum(axis=2)[:, 0], rtol=1e-10
        )
        np.testing.assert_allclose(
            backend.numpy(found.diagonals()), np.diagonal(dense, axis1=1, axis2=2), rtol=1e-10
        )


@pytest.mark.parametrize("chosen", [["a", "b", "c", "d"], ["b"], ["a", "b", "d"]])
def test_coordinates_of_sites_are_taken_and_put_back(backend: Any, chosen: list[str]) -> None:
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        for name, size in zip("abcd", (2, 1, 3, 2), strict=True):
            host.sample(name, dist.Normal(backend.xp.zeros(size), 1.0).to_event(1))
        host.sample("y", dist.Normal(0.0, 1.0).expand(y.shape).to_event(1), obs=y)

    target, _ = backend.target(model, (backend.array(Y),))
    where = backend.room("curvature.coordinates").Coordinates(target, chosen)
    z = backend.array(np.arange(16.0).reshape(2, 8))
    numbers = np.asarray(where.numbers)
    part = where.part(z)
    np.testing.assert_array_equal(backend.numpy(part), backend.numpy(z)[:, numbers])
    expected = backend.numpy(z).copy()
    expected[:, numbers] *= -1.0
    np.testing.assert_array_equal(backend.numpy(where.placed(z, -part)), expected)


def test_outer_products_are_found_from_vectors_orthogonal_to_a_direction(backend: Any) -> None:
    """In single precision, where what is left of rounding would look like a second term."""
    rng = np.random.default_rng(0)
    products = backend.room("curvature.curvature").OUTER_PRODUCTS
    left, right = rng.normal(size=(1, 6, 4)), rng.normal(size=(1, 6, 5))
    for number in (0, 1):
        direction = generic_direction(5, number)
        along = right @ direction / (direction @ direction)
        orthogonal = right - (1.0 - 1e-6) * along[..., None] * direction
        outer = left[..., None] * orthogonal[..., None, :]
        matrices = backend.xp.asarray(outer.astype(np.float32))
        u, v = map(backend.numpy, products.vectors(matrices))
        found = u[..., None] * v[..., None, :]
        np.testing.assert_allclose(found, outer, atol=1e-5 * np.abs(outer).max())
        rows = matrices.reshape(1, 6, 20)
        assert bool(products.sites(rows, {"w": slice(0, 20)}, {"w": (4, 5)})["w"])


@pytest.mark.parametrize("size", [1e-17, 1e-36])
def test_outer_products_without_squares_are_outer_products(backend: Any, size: float) -> None:
    """Of a network whose weights are all next to zero: what is left of them is not exact."""
    rng = np.random.default_rng(0)
    products = backend.room("curvature.curvature").OUTER_PRODUCTS
    outer = rng.normal(size=(2, 6, 4, 1)) * rng.normal(size=(2, 6, 1, 5))
    rows = backend.xp.asarray((size * outer).reshape(2, 6, 20).astype(np.float32))
    assert bool(products.sites(rows, {"w": slice(0, 20)}, {"w": (4, 5)})["w"])


def test_a_constant_prior_follows_the_names_of_arguments(backend: Any) -> None:
    host, dist, xp, room = backend.host, backend.dist, backend.xp, backend.room("curvature")

    def model(y: Any, scales: Any) -> None:
        scale = scales["above"] / scales["below"]
        w = host.sample("w", dist.Normal(xp.zeros(2), scale).to_event(1))
        with host.plate("N", len(y)):
            host.sample("y", dist.Normal(w.sum(), 1.0), obs=y)

    y, z, one, two = (backend.array(each) for each in (np.ones(3), np.zeros((2, 2)), 1.0, 2.0))
    target, data = backend.target(model, (y, {"above": one, "below": two}))
    curvature = room.ProgramCurvature(target, data, GaussNewton("diag"))
    for scales, expected in (
        ({"above": one, "below": two}, 4.0),
        ({"below": one, "above": two}, 0.25),
    ):
        at = curvature.at(target, z, target.bind(y, scales), {}, *key_of(backend))
        np.testing.assert_allclose(backend.numpy(at.diagonals())[0] - 3.0, expected, rtol=1e-12)


def test_batches_of_one_row_do_not_hide_rows_that_depend_on_each_other(backend: Any) -> None:
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(x: Any, batch: int) -> None:
        w = host.sample("w", dist.Normal(xp.zeros(2), 1.0).to_event(1))
        with host.plate("N", 12, subsample_size=batch) as i:
            mean = x[i] @ w
            host.sample("centred", dist.Normal(mean - mean.mean(), 1.0), obs=x[i, 1])
            host.sample("apart", dist.Normal(mean, 1.0), obs=x[i, 0])

    target, data = backend.target(model, (backend.array(X), 1))
    position = backend.array([0.3, -0.2])
    structure = backend.room("curvature").row_structure(target, position, data, target.first_rows())
    assert structure.by_row == {"apart"}
    assert set(structure.repeated) == {"centred", "apart"}


def test_elements_have_their_own_scales_and_several_masks(backend: Any) -> None:
    host, dist, xp = backend.host, backend.dist, backend.xp
    inside = np.array([[True, False], [True, True], [True, True]])

    def model() -> None:
        z = host.sample("z", dist.Normal(xp.zeros((3, 2)), 1.0).to_event(2))
        weights = backend.array([0.5, 2.0, 3.0])
        with host.plate("N", 3), handlers(backend).scale(scale=weights):
            inner = dist.Normal(z, 1.0).mask(backend.array(inside))
            outer = inner.to_event(1).mask(backend.array(np.array([True, True, False])))
            host.sample("y", outer, obs=xp.zeros((3, 2)))

    expected = np.diag([0.5, 0.0, 2.0, 2.0, 0.0, 0.0])
    np.testing.assert_allclose(gauss_newton(backend, model, np.zeros(6)), expected)


def test_masks_scales_and_declared_dimensions(backend: Any) -> None:
    host, dist, xp = backend.host, backend.dist, backend.xp
    kept = np.array([True, False, True])

    def model() -> None:
        z = host.sample("z", dist.Normal(xp.zeros(3), 1.0).to_event(1))
        with handlers(backend).scale(scale=2.5):
            inside = dist.Normal(z, 0.5).mask(backend.array(kept)).to_event(1)
            host.sample("a", inside, obs=xp.zeros(3))
        outside = dist.Normal(z[:, None] * xp.ones(2), 2.0).to_event(1)
        host.sample("b", outside.mask(backend.array(~kept)), obs=xp.zeros((3, 2)))
        host.sample("c", dist.Exponential(xp.exp(z[0])).expand([4]), obs=xp.ones(4))

    expected = np.diag([2.5 * 4.0 + 4.0, 2 * 0.25, 2.5 * 4.0])
    found = gauss_newton(backend, model, np.array([0.1, 0.2, 0.3]))
    np.testing.assert_allclose(found, expected)


def test_a_program_without_observations_has_no_whitened_outputs(backend: Any) -> None:
    host, dist, xp, room = backend.host, backend.dist, backend.xp, backend.room("curvature")

    def model() -> None:
        host.sample("z", dist.Normal(xp.zeros(2), 1.0).to_event(1))

    (target, data), key = backend.target(model), key_of(backend)
    z = xp.ones((3, 2))
    assert room.jacobian_rows(target, z, data, {}, *key).shape == (3, 0, 2)
    assert room.whitened_outputs(target, z[0], data, {}, *key)(z[0]).shape == (0,)


# -- the prior --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["independent", "hierarchical"])
def test_prior_curvature_is_the_clipped_hessian(backend: Any, kind: str) -> None:
    host, dist, xp, room = backend.host, backend.dist, backend.xp, backend.room("curvature")

    def independent() -> None:
        scales = backend.array([1.0, 2.0, 0.5])
        host.sample("a", dist.Normal(backend.array([0.0, 1.0, 2.0]), scales).to_event(1))
        host.sample("b", dist.Gamma(2.0, 3.0))
        host.sample("t", dist.StudentT(3.0, 0.0, 1.0))

    def hierarchical() -> None:
        scale = host.sample("scale", dist.HalfCauchy(1.0))
        with host.plate("J", 3):
            host.sample("effects", dist.Normal(0.0, scale))
        covariance = backend.array([[1.0, 0.6], [0.6, 2.0]])
        host.sample("pair", dist.MultivariateNormal(xp.zeros(2), covariance))

    target, data = backend.target({"independent": independent}.get(kind, hierarchical))
    positions = 2.0 * np.random.default_rng(3).normal(size=(4, target.dim))
    z = backend.array(positions)

    def log_prior(z: Any) -> Any:
        return target.evaluate(z, data)[0]

    if backend.name == "pyro":
        from torch.func import jacrev, vmap

        exact = -vmap(jacrev(jacrev(log_prior)))(z).numpy()
    else:
        import jax

        exact = -np.asarray(jax.jit(jax.vmap(jax.hessian(log_prior)))(z))
    assert np.linalg.eigvalsh(exact).min() < 0  # so that something is clipped
    diagonal = np.maximum(np.diagonal(exact, axis1=1, axis2=2), 0.0)

    def computed(structure: PriorStructure) -> np.ndarray:
        found = backend.compiled(lambda z: room.prior_curvature(target, structure, z, data))(z)
        return np.asarray(backend.numpy(found))

    def clipped(where: list[int]) -> np.ndarray:
        values, vectors = np.linalg.eigh(exact[:, where][:, :, where])
        return np.einsum("pij,pj,pkj->pik", vectors, np.maximum(values, 0.0), vectors)

    structure = room.prior_structure(target, z, data)
    if kind == "independent":
        sites = ("a", "b", "t")
        assert structure == PriorStructure(sites, "diagonal", True, sites, constant=False)
        np.testing.assert_allclose(computed(structure), diagonal, atol=1e-12)
        return
    assert structure == PriorStructure(
        ("scale", "effects", "pair"), "hessian", True, ("scale", "effects"), constant=False
    )
    np.testing.assert_allclose(computed(structure), clipped(list(range(6))), atol=1e-10)
    structure = room.prior_structure(target, z, data, "diagonal")
    assert not structure.exact
    np.testing.assert_allclose(computed(structure), diagonal, atol=1e-10)
    # Given the scale the effects are independent, and the pair is no concern of theirs.
    structure = room.prior_structure(target, z, data, sites=("effects",))
    assert structure == PriorStructure(("effects",), "diagonal", True, ("effects",), constant=False)
    np.testing.assert_allclose(computed(structure), diagonal[:, 1:4], atol=1e-10)
    structure = room.prior_structure(target, z, data, sites=("scale", "pair"))
    assert structure.form == "hessian"
    np.testing.assert_allclose(computed(structure), clipped([0, 4, 5]), atol=1e-10)


def test_kronecker_factors_of_outer_products_are_those_of_any_rows(backend: Any) -> None:
    products = backend.room("curvature.curvature").OUTER_PRODUCTS
    generator = np.random.default_rng(5)
    left, right = generator.normal(size=(2, 7, 3, 1)), generator.normal(size=(2, 7, 1, 4))
    left[:, 2] = 0.0  # a row whose unit is dead
    right[:, :, :, 1:] *= generator.random((2, 7, 1, 3)) < 0.5
    shapes, slices = {"w": (3, 4)}, {"w": slice(0, 12)}
    outer = (left * right).reshape(2, 7, 12)
    mixed = outer + np.roll(outer, 1, axis=1)
    for matrices, holds in ((outer, True), (mixed, False), (0.0 * outer, False)):
        rows = backend.array(matrices)
        found = products.sites(rows, slices, shapes)
        assert bool(found["w"]) == holds

    rows = backend.array(outer)

    def total(function: Any, *held: Any) -> Any:
        return function(rows, *held)

    plain, quick, at_once = (
        backend.numpy(kronecker_factors(products, total, slices, shapes, rows, *way).dense())
        for way in ((), (("w",),), (("w",), rows))
    )
    np.testing.assert_allclose(quick, plain, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(at_once, plain, rtol=1e-9, atol=1e-12)
    # Rows of other arguments may not be what they were.
    rows = backend.array(mixed)
    plain, *claimed = (
        backend.numpy(kronecker_factors(products, total, slices, shapes, rows, *way).dense())
        for way in ((), (("w",),), (("w",), rows))
    )
    for each in claimed:
        np.testing.assert_allclose(each, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [1e-18, 1e-21, 1e-25, 0.0])
def test_vectors_of_small_rows_are_finite_in_single_precision(backend: Any, size: float) -> None:
    """Rows of a classifier that is certain are this small; their squares have no reciprocals."""
    outer_vectors = backend.room("curvature.curvature").OUTER_PRODUCTS.vectors
    matrix = np.outer([1.0, 0.5, 0.0], [1.0, 2.0])
    rows = backend.xp.asarray((size * matrix)[None, None].astype(np.float32))
    left, right = map(backend.numpy, outer_vectors(rows))
    found = left[..., None].astype(float) * right[..., None, :]
    np.testing.assert_allclose(found[0, 0], size * matrix, rtol=1e-5)


def test_rows_of_linear_layers_are_found_to_be_outer_products(backend: Any) -> None:
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(x: Any, y: Any) -> None:
        w = host.sample("w", dist.Normal(xp.zeros((2, 3)), 1.0).to_event(2))
        shared = host.sample("shared", dist.Normal(xp.zeros((3, 3)), 1.0).to_event(2))
        hidden = xp.tanh(x @ w)
        hidden = xp.tanh(xp.tanh(hidden @ shared) @ shared)
        with host.plate("N", len(y)):
            host.sample("y", dist.Normal(hidden.sum(-1), 1.0), obs=y)

    room = backend.room("curvature")
    target, data = backend.target(model, tuple(map(backend.array, (X, Y))))
    assert room.ProgramCurvature(target, data, GaussNewton("kfac")).rank_one == {"w"}
    assert room.ProgramCurvature(target, data, GaussNewton()).rank_one == set()


def test_rows_are_compared_in_the_precision_of_the_target() -> None:
    """Pyro's targets may have another than torch's default: what couples rows shows in it."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("pyro")
    import pyro

    import pyro_ext
    from pyro_ext.curvature.row_structure import row_structure

    def model(x: Any, y: Any) -> None:
        weights = pyro.sample(
            "weights", pyro.distributions.Normal(0.0, 1.0).expand([3]).to_event(1)
        )
        with pyro.plate("rows", 20, subsample_size=5) as rows:
            loc = x[rows] @ weights
            coupled = loc + 1e-5 * loc.mean()
            pyro.sample("y", pyro.distributions.Normal(coupled, 1.0), obs=y[rows])

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        generator = torch.Generator().manual_seed(0)
        x, y, z = (
            torch.randn(*shape, generator=generator, dtype=torch.float64)
            for shape in ((20, 3), (20,), (3,))
        )
        target = pyro_ext.LogDensity(model, (x, y), dtype=torch.float64)
        assert not row_structure(target, z, target.bind(x, y), target.first_rows()).by_row
    finally:
        torch.set_default_dtype(before)
