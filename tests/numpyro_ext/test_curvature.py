"""Curvature of programs: Fisher information of outputs, and Gauss-Newton matrices from it."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.special import logsumexp
from numpyro import handlers

from numpyro_ext.curvature import (
    GaussNewton,
    PriorStructure,
    RowStructure,
    fisher_root,
    gauss_newton_products,
    jacobian_rows,
    prior_curvature,
    prior_structure,
    register_output_fisher,
    row_structure,
    whitened_outputs,
)
from numpyro_ext.curvature import fisher as fisher_module
from numpyro_ext.density import LogDensity
from numpyro_ext.density.outputs import Output, output_of
from ppl_ext.errors import ArgumentError
from tests.curvature_support import (
    DRAWS,
    MIXTURE,
    SHARED,
    assert_is_fisher,
    directions,
    flatten,
    mixture_fisher,
)

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(0)


def zero_inflated(mean: Any, concentration: Any, gate_logits: Any) -> Any:
    base = dist.NegativeBinomial2(mean, concentration)
    return dist.ZeroInflatedDistribution(base, gate_logits=gate_logits)


OWN = {
    "NegativeBinomial2": (dist.NegativeBinomial2, {"mean": 2.3, "concentration": 1.4}, {}),
    "NegativeBinomial2, nearly Poisson": (
        dist.NegativeBinomial2,
        {"mean": 4.0, "concentration": 25.0},
        {},
    ),
    "NegativeBinomialProbs": (dist.NegativeBinomialProbs, {"total_count": 1.4, "probs": 0.6}, {}),
    "NegativeBinomialLogits": (
        dist.NegativeBinomialLogits,
        {"total_count": 3.4, "logits": -0.6},
        {},
    ),
    "zero-inflated": (
        zero_inflated,
        {"mean": 2.3, "concentration": 1.4, "gate_logits": -0.5},
        {},
    ),
}
CASES = {name: (getattr(dist, case[0]), *case[1:]) for name, case in SHARED.items()} | OWN


def gauss_newton(model: Any, z: Any, *args: Any) -> np.ndarray:
    target = LogDensity(model, KEY, args)
    data = target.bind(*args)
    rows = jax.jit(lambda z: jacobian_rows(target, z, data, {}, KEY)[0])(jnp.asarray(z)[None])
    return np.asarray(rows.T @ rows)


@pytest.mark.parametrize("name", CASES)
def test_fisher_information_is_the_covariance_of_the_score(name: str) -> None:
    make, moved, fixed = CASES[name]
    flat, slices = flatten(moved)

    def build(vector: Any) -> Any:
        values = {
            each: vector[where].reshape(np.shape(moved[each])) for each, where in slices.items()
        }
        return make(**values, **fixed)

    values = build(jnp.asarray(flat)).sample(jax.random.key(1), (DRAWS,))

    def output(vector: Any) -> Output:
        site = {"fn": build(vector), "value": values[0], "scale": None, "name": "y"}
        return output_of({**site, "cond_indep_stack": []})

    point = output(jnp.asarray(flat))

    def root(vector: Any) -> Any:
        parameters = output(vector).parameters
        return fisher_root(point, jax.tree.map(lambda x: x * 1.0, parameters), KEY).reshape(-1)

    columns = directions(moved)
    jacobian = np.asarray(jax.jit(jax.jacfwd(root))(jnp.asarray(flat))) @ columns
    scores = jax.jit(jax.jacfwd(lambda vector: build(vector).log_prob(values)))(jnp.asarray(flat))
    assert_is_fisher(jacobian.T @ jacobian, np.asarray(scores) @ columns)


def test_fisher_information_is_the_curvature_of_the_log_partition() -> None:
    def counts() -> None:
        z = numpyro.sample("z", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        numpyro.sample("c", dist.Categorical(logits=z), obs=1)
        numpyro.sample("n", dist.Poisson(jnp.exp(z[0])), obs=2)
        numpyro.sample("k", dist.Binomial(total_count=7, logits=z[1]), obs=3)

    z = jnp.array([0.4, -1.0, 0.2])

    def partition(z: Any) -> Any:
        return logsumexp(z) + jnp.exp(z[0]) + 7 * jax.nn.softplus(z[1])

    np.testing.assert_allclose(gauss_newton(counts, z), jax.hessian(partition)(z), atol=1e-12)


def _data() -> tuple[Any, Any, Any]:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(12, 2)), generator.normal(size=12)
    return jnp.asarray(x), jnp.asarray(y), jnp.asarray(y > 0.3, float)


def rows(x: Any, y: Any, c: Any, batch: int | None = None) -> None:
    """Two sites in a plate, one of them heteroscedastic, and one site outside."""
    w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    s = numpyro.sample("s", dist.LogNormal(0.0, 1.0))
    numpyro.sample("extra", dist.Poisson(jnp.exp(w[0])), obs=3)
    with numpyro.plate("N", len(y), subsample_size=batch) as i:
        mean = x[i] @ w + jnp.sin(w[0])
        numpyro.sample("y", dist.Normal(mean, s), obs=y[i])
        numpyro.sample("c", dist.Bernoulli(logits=mean * s), obs=c[i])


@jax.jit
def naive(z: Any, x: Any, factor: float) -> Any:
    """J^T F J of ``rows``, site by site."""

    def mean(z: Any) -> Any:
        return x @ z[:2] + jnp.sin(z[0])

    jacobian, logits = jax.jacfwd(mean)(z), jax.jacfwd(lambda z: mean(z) * jnp.exp(z[2]))(z)
    scale = jnp.exp(z[2])
    chance = jax.nn.sigmoid(mean(z) * scale)
    total = factor * (
        jacobian.T @ jacobian / scale**2 + logits.T @ ((chance * (1 - chance))[:, None] * logits)
    )
    # The scale's own Fisher information 2 / s^2 for each row, times (ds / dz)^2 = s^2.
    total = total.at[2, 2].add(factor * 2.0 * len(x))
    return total.at[0, 0].add(jnp.exp(z[0]))


@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("batch", [None, 5])
def test_gauss_newton_is_the_naive_product(batch: int | None, temperature: float) -> None:
    args = _data()
    target = LogDensity(rows, KEY, args, {"batch": batch}, likelihood_temperature=temperature)
    data = target.bind(*args, batch=batch)
    chosen = jnp.array([0, 3, 4, 7, 11])
    indices = {} if batch is None else {"N": chosen}
    z = jnp.asarray(np.random.default_rng(1).normal(size=(3, 3)))
    structure = row_structure(target, z[0], data, indices)
    assert structure.by_row == (set() if batch is None else {"y", "c"})
    found = jax.jit(lambda z: jacobian_rows(target, z, data, indices, KEY, structure))(z)
    # One row for the scale of all of y, and one for the site outside.
    assert found.shape == (3, 2 * (batch or 12) + 2, 3)
    x = args[0] if batch is None else args[0][chosen]
    vectors = jnp.asarray(np.random.default_rng(2).normal(size=(3, 3)))
    products = jax.jit(gauss_newton_products(target, z, data, indices, KEY))(vectors)
    for each, position, vector, product in zip(found, z, vectors, products, strict=True):
        expected = naive(position, x, 12 / len(x)) / temperature
        np.testing.assert_allclose(each.T @ each, expected, rtol=1e-10)
        np.testing.assert_allclose(product, expected @ vector, rtol=1e-10)


def shared(x: Any, y: Any, batch: int | None = None) -> None:
    """Two responses for each row, with parameters shared by all rows or by all elements."""
    w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    s = numpyro.sample("s", dist.LogNormal(jnp.zeros(2), 1.0).to_event(1))
    with numpyro.plate("N", 12, subsample_size=batch) as i:
        mean = jnp.sin(x[i] * w)
        seen = dist.Normal(mean, s).mask(y[i] > -0.5).to_event(1)
        numpyro.sample("columns", seen, obs=y[i])
        numpyro.sample("tails", dist.StudentT(3.0 + s[0], mean[:, 0], s[1]), obs=y[i, 0])
        # The information mixes concentration and rate; one component has the shared one alone.
        positive = dist.Gamma(s[0], jnp.exp(mean[:, 1]))
        numpyro.sample("mixed", positive, obs=jnp.exp(y[i, 1]))
        numpyro.sample("unseen", dist.Normal(mean[:, 0], s[0]).mask(False), obs=y[i, 0])


def test_merged_rows_have_the_same_products() -> None:
    x, y = (np.random.default_rng(seed).normal(size=(12, 2)) for seed in (3, 4))
    args = jnp.asarray(x), jnp.asarray(y)
    target = LogDensity(shared, KEY, args, {"batch": 5})
    data = target.bind(*args, batch=5)
    indices = {"N": jnp.array([0, 3, 4, 7, 11])}
    z = jnp.asarray(np.random.default_rng(1).normal(size=(2, 4)))
    structure = row_structure(target, z[0], data, indices)
    merged = {name: {each.axes for each in found} for name, found in structure.repeated.items()}
    assert merged == {name: {(0,)} for name in ("columns", "tails", "mixed", "unseen")}
    columns = {("w",): slice(2), ("s",): slice(2, 4), ("s", "w"): slice(4)}

    def rows_of(z: Any, structure: RowStructure, latents: Any = None) -> Any:
        return jacobian_rows(target, z, data, indices, KEY, structure, latents)

    @jax.jit
    def computed(z: Any) -> Any:
        parts = {latents: rows_of(z, structure, latents) for latents in columns}
        return rows_of(z, structure), rows_of(z, RowStructure()), parts

    found, plain, parts = jax.tree.map(np.asarray, computed(z))
    assert found.shape[1] < plain.shape[1]
    np.testing.assert_allclose(found.mT @ found, plain.mT @ plain, rtol=1e-9, atol=1e-9)
    for latents, where in columns.items():
        np.testing.assert_allclose(parts[latents], found[..., where], rtol=1e-9, atol=1e-9)


def test_rows_that_depend_on_each_other_are_not_taken_apart() -> None:
    def model(x: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        with numpyro.plate("N", 12, subsample_size=5) as i:
            mean = x[i] @ w
            numpyro.sample("centred", dist.Normal(mean - mean.mean(), 1.0), obs=x[i, 1])
            numpyro.sample("written", dist.Normal(mean, jnp.ones(5)), obs=jnp.zeros(5))
            numpyro.sample("apart", dist.Normal(mean, 1.0), obs=x[i, 0])
            # Next to large values a small one is known to their rounding only.
            rounding = 1e-8 if len(i) > 1 else 0.0
            numpyro.sample("large", dist.Normal(1e6 * mean + rounding, 1.0), obs=x[i, 0])

    x = jnp.asarray(_data()[0]).at[0].set(0.0)
    target = LogDensity(model, KEY, (x,))
    data, indices = target.bind(x), {"N": jnp.array([0, 3, 4, 7, 11])}
    assert row_structure(target, jnp.array([0.3, -0.2]), data, indices).by_row == {"apart", "large"}


def test_batches_of_one_row_do_not_hide_rows_that_depend_on_each_other() -> None:
    def model(x: Any, batch: int) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        with numpyro.plate("N", 12, subsample_size=batch) as i:
            mean = x[i] @ w
            numpyro.sample("centred", dist.Normal(mean - mean.mean(), 1.0), obs=x[i, 1])
            numpyro.sample("apart", dist.Normal(mean, 1.0), obs=x[i, 0])

    x = _data()[0]
    target = LogDensity(model, KEY, (x, 1))
    structure = row_structure(
        target, jnp.array([0.3, -0.2]), target.bind(x, 1), target.first_rows()
    )
    assert structure.by_row == {"apart"}
    assert set(structure.repeated) == {"centred", "apart"}


def test_elements_have_their_own_scales_and_several_masks() -> None:
    weights = jnp.array([0.5, 2.0, 3.0])

    def model() -> None:
        z = numpyro.sample("z", dist.Normal(jnp.zeros((3, 2)), 1.0).to_event(2))
        with numpyro.plate("N", 3), handlers.scale(scale=weights):
            inner = dist.Normal(z, 1.0).mask(jnp.array([[True, False], [True, True], [True, True]]))
            outer = inner.to_event(1).mask(jnp.array([True, True, False]))
            numpyro.sample("y", outer, obs=jnp.zeros((3, 2)))

    expected = np.diag([0.5, 0.0, 2.0, 2.0, 0.0, 0.0])
    np.testing.assert_allclose(gauss_newton(model, np.zeros(6)), expected)


def test_probabilities_that_do_not_sum_to_one() -> None:
    """A common factor of the weights changes nothing; so it must not in the information."""

    def model() -> None:
        z = numpyro.sample("z", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        numpyro.sample("y", dist.Categorical(probs=jnp.exp(z) / jnp.exp(z).sum()), obs=1)

    z = jnp.array([0.4, -1.0, 0.2])
    chance = jax.nn.softmax(z)
    expected = jnp.diag(chance) - jnp.outer(chance, chance)
    np.testing.assert_allclose(gauss_newton(model, z), expected, atol=1e-12)
    parameters = {"probs": chance}
    point = output_of(
        {"fn": dist.Categorical(probs=chance), "value": 1, "scale": None, "name": "y"}
        | {"cond_indep_stack": []}
    )
    np.testing.assert_allclose(fisher_root(point, parameters, KEY), 0.0, atol=1e-12)


def test_a_zero_inflated_binomial_and_a_certain_gate() -> None:
    def model(gate: Any) -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        base = dist.Binomial(5, logits=z)
        numpyro.sample("y", dist.ZeroInflatedDistribution(base, gate=gate), obs=0)

    chances = np.exp(dist.Binomial(5, logits=0.3).log_prob(np.arange(6)))
    slopes = np.arange(6) - 5 * float(jax.nn.sigmoid(0.3))
    for gate in (0.3, 0.0):
        mixed = (1 - gate) * chances
        changes = mixed * slopes
        mixed[0] += gate
        found = gauss_newton(model, np.array([0.3]), gate)
        np.testing.assert_allclose(found, [[np.sum(changes**2 / mixed)]], rtol=1e-6)


def test_arguments_that_are_lost_are_noticed() -> None:
    def model() -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        walk = dist.GaussianRandomWalk(jnp.exp(z), num_steps=12)
        numpyro.sample("y", walk, obs=jnp.ones(12))

    with pytest.raises(ArgumentError, match=r"GaussianRandomWalk.*events of shape"):
        gauss_newton(model, np.zeros(1))


def test_distributions_made_of_others_are_refused_by_name() -> None:
    def model() -> None:
        loc = numpyro.sample("loc", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        parts = dist.Normal(loc, 1.0).mask(jnp.array([True, False]))
        mixed = dist.MixtureSameFamily(dist.Categorical(jnp.ones(2) / 2), parts)
        with numpyro.plate("N", 5):
            numpyro.sample("y", mixed, obs=jnp.zeros(5))

    expected = r"Site 'y': expected .* \[\] .* found MixtureSameFamily .*register_output_fisher"
    with pytest.raises(ArgumentError, match=expected):
        gauss_newton(model, np.zeros(2))


def test_fisher_information_of_a_mixture() -> None:
    """Of one whose components overlap, by integration; 16 draws for each of 1,000 elements."""

    def model() -> None:
        z = numpyro.sample("z", dist.Normal(jnp.zeros(5), 1.0).to_event(1))
        weights = dist.Categorical(logits=jnp.stack([z[0], 0.0]))
        mixed = dist.MixtureSameFamily(weights, dist.Normal(z[1:3], jnp.exp(z[3:])))
        with numpyro.plate("N", 1000):
            numpyro.sample("y", mixed, obs=jnp.zeros(1000))

    expected, deviation = mixture_fisher()
    found = gauss_newton(model, MIXTURE) / 1000
    assert (np.abs(found - expected) < 5 * deviation / np.sqrt(16_000)).all()


def test_fisher_information_of_a_mixture_of_vectors() -> None:
    """Far apart it is that of the components times their weights."""

    def model() -> None:
        z = numpyro.sample("z", dist.Normal(jnp.zeros((2, 3)), 1.0).to_event(2))
        weights = dist.Categorical(probs=jnp.array([0.3, 0.7]))
        mixed = dist.MixtureSameFamily(weights, dist.Normal(z, 0.5).to_event(1))
        numpyro.sample("y", mixed.expand([1000]).to_event(1), obs=jnp.zeros((1000, 3)))

    found = gauss_newton(model, np.array([0.0, 0.1, 0.2, 90.0, 91.0, 92.0])) / 1000
    weights = np.repeat([0.3, 0.7], 3)
    # Of a squared standard normal number times an event of this chance, over the scale.
    deviation = 4.0 * np.sqrt(3.0 * weights - weights**2)
    error = 5 * deviation / np.sqrt(16_000)
    assert (np.abs(np.diag(found) - 4.0 * weights) < error).all()
    assert np.abs(found - np.diag(np.diag(found))).max() < error.max()


def test_masks_scales_and_declared_dimensions() -> None:
    keep = np.array([True, False, True])

    def model() -> None:
        z = numpyro.sample("z", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        with handlers.scale(scale=2.5):
            inside = dist.Normal(z, 0.5).mask(keep).to_event(1)
            numpyro.sample("a", inside, obs=jnp.zeros(3))
        outside = dist.Normal(z[:, None] * jnp.ones(2), 2.0).to_event(1).mask(~keep)
        numpyro.sample("b", outside, obs=jnp.zeros((3, 2)))
        numpyro.sample("c", dist.Exponential(jnp.exp(z[0])).expand([4]), obs=jnp.ones(4))

    expected = np.diag([2.5 * 4.0 + 4.0, 2 * 0.25, 2.5 * 4.0])
    np.testing.assert_allclose(gauss_newton(model, np.array([0.1, 0.2, 0.3])), expected)


def test_unknown_distributions_have_a_monte_carlo_fisher_information() -> None:
    def model() -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Pareto(1.0, jnp.exp(z)).expand([2000]), obs=2 * jnp.ones(2000))

    # In the logarithm of its exponent the score is 1 - E, with E standard exponential: its square
    # has mean 1 and variance 8, and each of 2,000 elements has 16 draws.
    found = gauss_newton(model, np.array([0.3]))[0, 0] / 2000
    assert abs(found - 1.0) < 5 * np.sqrt(8 / (16 * 2000))


def test_a_distribution_of_the_user() -> None:
    class Shifted(dist.Distribution):
        arg_constraints: ClassVar = {"shift": dist.constraints.real}
        support = dist.constraints.real

        def __init__(self, shift: Any) -> None:
            self.shift = shift
            super().__init__(jnp.shape(shift))

        def log_prob(self, value: Any) -> Any:
            return -(jnp.abs(value - self.shift) ** 3)

    def model() -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("y", Shifted(2 * z), obs=1.0)

    with pytest.raises(ArgumentError, match=r"Site 'y'.*Shifted.*register_output_fisher"):
        gauss_newton(model, np.zeros(1))
    try:
        register_output_fisher(Shifted)(lambda p, t: 3.0 * t["shift"][..., None])
        np.testing.assert_allclose(gauss_newton(model, np.zeros(1)), [[36.0]])
    finally:
        del fisher_module._ROOTS[Shifted]
    with pytest.raises(ArgumentError, match="not one of its objects"):
        register_output_fisher(dist.Normal(0.0, 1.0))  # type: ignore[arg-type]


def test_a_program_without_observations_has_no_whitened_outputs() -> None:
    def model() -> None:
        numpyro.sample("z", dist.Normal(jnp.zeros(2), 1.0).to_event(1))

    target = LogDensity(model, KEY, ())
    z = jnp.ones((3, 2))
    assert jacobian_rows(target, z, target.bind(), {}, KEY).shape == (3, 0, 2)
    assert whitened_outputs(target, z[0], target.bind(), {}, KEY)(z[0]).shape == (0,)


def independent() -> None:
    numpyro.sample("a", dist.Normal(jnp.arange(3.0), jnp.array([1.0, 2.0, 0.5])).to_event(1))
    numpyro.sample("b", dist.Gamma(2.0, 3.0))
    numpyro.sample("t", dist.StudentT(3.0, 0.0, 1.0))


def hierarchical() -> None:
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    with numpyro.plate("J", 3):
        numpyro.sample("effects", dist.Normal(0.0, scale))
    covariance = jnp.array([[1.0, 0.6], [0.6, 2.0]])
    numpyro.sample("pair", dist.MultivariateNormal(jnp.zeros(2), covariance))


@pytest.mark.parametrize("model", [independent, hierarchical])
def test_prior_curvature_is_the_clipped_hessian(model: Any) -> None:
    target = LogDensity(model, KEY)
    data = target.bind()
    z = 2.0 * jnp.asarray(np.random.default_rng(3).normal(size=(4, target.dim)))
    exact = -jax.jit(jax.vmap(jax.hessian(lambda z: target.evaluate(z, data)[0])))(z)
    assert float(jnp.linalg.eigvalsh(exact).min()) < 0  # so that something is clipped

    def computed(structure: PriorStructure) -> Any:
        return jax.jit(lambda z: prior_curvature(target, structure, z, data))(z)

    structure = prior_structure(target, z, data)
    found = np.asarray(computed(structure))
    diagonal = np.maximum(np.diagonal(exact, axis1=1, axis2=2), 0.0)
    if model is independent:
        assert structure == PriorStructure(
            ("a", "b", "t"), "diagonal", True, ("a", "b", "t"), constant=False
        )
        np.testing.assert_allclose(found, diagonal, atol=1e-12)
        return
    assert structure == PriorStructure(
        ("scale", "effects", "pair"), "hessian", True, ("scale", "effects"), constant=False
    )
    values, vectors = np.linalg.eigh(exact)
    clipped = np.einsum("pij,pj,pkj->pik", vectors, np.maximum(values, 0.0), vectors)
    np.testing.assert_allclose(found, clipped, atol=1e-10)
    structure = prior_structure(target, z, data, "diagonal")
    assert not structure.exact
    found = np.asarray(computed(structure))
    np.testing.assert_allclose(found, diagonal, atol=1e-10)
    # Given the scale the effects are independent, and the pair is no concern of theirs.
    structure = prior_structure(target, z, data, sites=("effects",))
    assert structure == PriorStructure(("effects",), "diagonal", True, ("effects",), constant=False)
    np.testing.assert_allclose(np.asarray(computed(structure)), diagonal[:, 1:4], atol=1e-10)
    structure = prior_structure(target, z, data, sites=("scale", "pair"))
    assert structure.form == "hessian"
    where = [0, 4, 5]
    values, vectors = np.linalg.eigh(np.asarray(exact)[:, where][:, :, where])
    clipped = np.einsum("pij,pj,pkj->pik", vectors, np.maximum(values, 0.0), vectors)
    np.testing.assert_allclose(np.asarray(computed(structure)), clipped, atol=1e-10)
    with pytest.raises(ArgumentError, match="prior to be one of 'diagonal'.*found 'full'"):
        GaussNewton(prior="full")  # type: ignore[arg-type]
