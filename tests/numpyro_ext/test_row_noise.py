"""Flipout and the local reparameterisation in NumPyro, against closed forms and plain draws."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen, nnx
from numpyro import handlers
from numpyro.contrib.module import random_eqx_module, random_flax_module, random_nnx_module
from numpyro.infer import SVI, RenyiELBO, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal, AutoNormal

from numpyro_ext.guides import flipout, local_reparameterization
from numpyro_ext.guides.local_reparameterization import _sqrt
from ppl_ext.errors import ArgumentError

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(0)
DRAWS = np.random.default_rng(0)
ROWS, INPUTS, OUTPUTS, NOISE = 32, 4, 3, 0.5
X = DRAWS.normal(size=(ROWS, INPUTS)) + 0.5
LOC = DRAWS.normal(size=(INPUTS, OUTPUTS))
SCALE = DRAWS.uniform(0.1, 0.4, (INPUTS, OUTPUTS))
Y = X @ LOC + NOISE * DRAWS.normal(size=(ROWS, OUTPUTS))
METHODS = [flipout, local_reparameterization]


def regression(x: Any = X, y: Any = Y) -> None:
    w = numpyro.sample("w", dist.Normal(jnp.zeros((INPUTS, OUTPUTS)), 1.0).to_event(2))
    with numpyro.plate("N", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, NOISE).to_event(1), obs=y)


def exact_loss(loc: jax.Array, scale: jax.Array) -> jax.Array:
    """Negative evidence lower bound of the regression."""
    fit = dist.Normal(X @ loc, NOISE).log_prob(Y).sum()
    fit -= (np.square(X) @ jnp.square(scale)).sum() / (2 * NOISE**2)
    prior = 0.5 * (jnp.square(scale) + jnp.square(loc) - 1.0) - jnp.log(scale)
    return prior.sum() - fit


# -- gradients -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_guide", [AutoNormal, AutoDiagonalNormal])
def test_gradients_are_unbiased_and_quieter(make_guide) -> None:
    guide = make_guide(regression)
    if make_guide is AutoNormal:
        params = {"w_auto_loc": LOC, "w_auto_scale": SCALE}
    else:
        params = {"auto_loc": LOC.reshape(-1), "auto_scale": SCALE.reshape(-1)}
    with handlers.seed(rng_seed=0):
        guide._setup_prototype()
    number = 2000
    objectives = (Trace_ELBO(), *(method(Trace_ELBO(), ["w"]) for method in METHODS))

    @jax.jit
    @jax.vmap
    def gradients(key: jax.Array) -> list[list[jax.Array]]:
        found = []
        for elbo in objectives:
            grad = jax.grad(lambda p, elbo=elbo: elbo.loss(key, p, regression, guide))(params)
            found.append([grad[name].reshape(-1) for name in params])
        return found

    exact = [g.reshape(-1) for g in jax.grad(exact_loss, (0, 1))(LOC, SCALE)]
    variances = []
    for found in gradients(jax.random.split(KEY, number)):
        for values, expected in zip(found, exact, strict=True):
            error = np.abs(values.mean(0) - expected)
            assert (error < 5 * values.std(0) / number**0.5).all()
        variances.append([float(values.var(0).sum()) for values in found])
    plain, flipped, local = variances
    # Rows have noise of their own, over which the gradient in the mean is averaged.
    assert flipped[0] < plain[0] / 4 and local[0] < plain[0] / 4
    # In the scale flipout's rows share the squares of the weights' noise.
    assert flipped[1] < plain[1] and local[1] < plain[1] / 4


# -- outputs ---------------------------------------------------------------------------------------


def outputs(model: Any, method: Any, number: int, **sites: np.ndarray) -> np.ndarray:
    """Draws of the mean of the observed site, under a guide with these standard deviations."""

    def guide() -> None:
        for name, scale in sites.items():
            fn = dist.Normal(0.3 + jnp.zeros(scale.shape), scale).to_event(scale.ndim)
            numpyro.sample(name, fn)

    elbo = method(Trace_ELBO()) if method is not None else None

    def single(key: jax.Array) -> jax.Array:
        noisy, recorded = (model, guide) if elbo is None else elbo._handled(model, guide)
        first, second = jax.random.split(key)
        drawn = handlers.trace(handlers.seed(recorded, first)).get_trace()
        replayed = handlers.replay(handlers.seed(noisy, second), drawn)
        trace = handlers.trace(replayed).get_trace()
        assert trace.keys() >= {"N", "y", *sites}
        assert all(trace[name]["value"] is drawn[name]["value"] for name in sites)
        assert trace["y"]["cond_indep_stack"][0].name == "N"
        fn = trace["y"]["fn"]
        return (fn.base_dist if isinstance(fn, dist.Independent) else fn).loc

    return np.asarray(jax.jit(jax.vmap(single))(jax.random.split(KEY, number)))


def assert_same_moments(found: np.ndarray, expected: np.ndarray) -> None:
    """Mean and covariance of two samples (S, K) agree within Monte Carlo error."""
    products = []
    for values in (found, expected):
        centred = values - values.mean(0)
        products.append(centred[:, :, None] * centred[:, None, :])
    for one, other in ((found, expected), tuple(products)):
        error = np.sqrt(one.var(0) / len(one) + other.var(0) / len(other))
        assert (np.abs(one.mean(0) - other.mean(0)) < 5 * error).all()


def test_rows_keep_their_distribution_and_lose_their_correlation() -> None:
    """A convolution with several places, and a weight that is applied twice, once transposed."""
    x = DRAWS.normal(size=(3, 4, 2))
    number = 5000

    def model() -> None:
        kernel = numpyro.sample("k", dist.Normal(jnp.zeros((2, 2, 3)), 1.0).to_event(3))
        w = numpyro.sample("w", dist.Normal(jnp.zeros((9, 2)), 1.0).to_event(2))
        hidden = jax.lax.conv_general_dilated(
            x, kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
        )
        hidden = jnp.tanh(hidden.reshape(3, 9))
        hidden = jnp.concatenate([hidden, jnp.tanh(hidden @ w) @ w.T], -1)
        with numpyro.plate("N", 3):
            numpyro.sample("y", dist.Normal(hidden, 1.0).to_event(1), obs=jnp.zeros((3, 18)))

    scales = {"k": DRAWS.uniform(0.3, 1.0, (2, 2, 3)), "w": DRAWS.uniform(0.3, 1.0, (9, 2))}
    plain = outputs(model, None, number, **scales)
    found = outputs(model, flipout, number, **scales)
    for row in range(3):
        assert_same_moments(found[:, row], plain[:, row])

    def correlation(values: np.ndarray) -> float:
        return np.abs(np.corrcoef(values[:, 0].T, values[:, 1].T)[:18, 18:]).max()

    assert correlation(plain) > 0.3
    # Not zero: rows share the size of the weights' noise.
    assert correlation(found) < correlation(plain) / 4


def test_local_noise_has_the_variance_of_the_weights() -> None:
    """Of a vector of weights and of a matrix, with a row of zeros."""
    x = DRAWS.normal(size=(3, 4))
    x[2] = 0.0
    number = 5000

    def model() -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros((4, 2)), 1.0).to_event(2))
        v = numpyro.sample("v", dist.Normal(jnp.zeros(4), 1.0).to_event(1))
        result = jnp.concatenate([x @ w, (x @ v)[:, None]], -1)
        with numpyro.plate("N", 3):
            numpyro.sample("y", dist.Normal(result, 1.0).to_event(1), obs=jnp.zeros((3, 3)))

    scales = {"w": DRAWS.uniform(0.3, 1.0, (4, 2)), "v": DRAWS.uniform(0.3, 1.0, 4)}
    found = outputs(model, local_reparameterization, number, **scales)
    both = np.concatenate([scales["w"], scales["v"][:, None]], -1)
    variance = np.square(x) @ np.square(both)
    np.testing.assert_allclose(found.mean(0), 0.3 * x.sum(-1)[:, None] + np.zeros(3), atol=0.1)
    assert (np.abs(found.var(0) - variance) <= 5 * variance * (2 / number) ** 0.5).all()
    rows = found[:, :2].reshape(number, -1)
    correlations = np.corrcoef(rows.T) - np.eye(6)
    assert np.abs(correlations).max() < 5 / number**0.5

    # A row without noise leaves the gradient finite.
    assert jax.grad(_sqrt)(0.0) == 0.0 and jax.grad(_sqrt)(4.0) == 0.25


# -- programs --------------------------------------------------------------------------------------


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.relu(linen.Conv(2, (2,))(x[..., None]))
        return linen.Dense(1)(x.reshape(len(x), -1))


class Nnx(nnx.Module):
    def __init__(self) -> None:
        self.conv = nnx.Conv(1, 2, (2,), rngs=nnx.Rngs(0))
        self.dense = nnx.Linear(2 * INPUTS, 1, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        x = nnx.relu(self.conv(x[..., None]))
        return self.dense(x.reshape(len(x), -1))


def network(kind: str) -> Any:
    prior = dist.Normal(0.0, 1.0)
    if kind == "linen":
        return random_flax_module("net", Linen(), prior, input_shape=(1, INPUTS))
    if kind == "nnx":
        return random_nnx_module("net", Nnx(), prior)
    mlp = eqx.nn.MLP(INPUTS, 1, 3, 1, key=KEY)
    return jax.vmap(random_eqx_module("net", mlp, prior))


@pytest.mark.parametrize("kind", ["linen", "nnx", "eqx"])
def test_weights_of_the_hosts_networks_are_met(kind) -> None:
    def model(x: Any, y: Any) -> None:
        mean = network(kind)(x)[:, 0]
        with numpyro.plate("N", len(x)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    guide = AutoDiagonalNormal(model)
    elbo = flipout(TraceGraph_ELBO(num_particles=2))
    state = jax.eval_shape(
        lambda: SVI(model, guide, numpyro.optim.Adam(0.1), elbo).init(KEY, X, Y[:, 0])
    )
    names = sorted(name for name in guide._init_locs if np.ndim(guide._init_locs[name]) > 1)
    assert state is not None and len(names) == 2
    for methods in (flipout(Trace_ELBO(2), names), elbo):
        svi = SVI(model, guide, numpyro.optim.Adam(0.1), methods)
        jax.eval_shape(lambda svi=svi: svi.update(svi.init(KEY, X, Y[:, 0]), X, Y[:, 0]))


def test_rows_of_a_minibatch_belong_together() -> None:
    """Fits to their own targets are near perfect only if both come from the same rows."""
    w = DRAWS.normal(size=(INPUTS, 1))

    def model(x: Any, y: Any) -> None:
        weights = numpyro.sample("w", dist.Normal(jnp.zeros((INPUTS, 1)), 1.0).to_event(2))
        with numpyro.plate("N", len(x), subsample_size=8) as rows:
            mean = numpyro.deterministic("mean", (x[rows] @ weights)[:, 0])
            numpyro.sample("y", dist.Normal(mean, 1e-3), obs=y[rows])

    def guide(x: Any, y: Any) -> None:
        numpyro.sample("w", dist.Normal(jnp.asarray(w), 1e-9).to_event(2))

    loss = flipout(Trace_ELBO()).loss(KEY, {}, model, guide, X, (X @ w)[:, 0])
    entropy = dist.Normal(w, 1e-9).entropy().sum() + dist.Normal(0.0, 1.0).log_prob(w).sum()
    perfect = ROWS * dist.Normal(0.0, 1e-3).log_prob(0.0)
    assert -loss == pytest.approx(float(perfect + entropy), abs=INPUTS * 4)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_objectives_that_are_not_linear_are_refused(method) -> None:
    for elbo in (RenyiELBO(), Trace_ELBO(multi_sample_guide=True)):
        with pytest.raises(ArgumentError, match="linear in the log likelihood"):
            method(elbo)
    with pytest.raises(ArgumentError, match="list of names"):
        method(TraceMeanField_ELBO(), "w")


def loss_of(elbo: Any, model: Any, guide: Any = None) -> None:
    guide = AutoNormal(model) if guide is None else guide
    svi = SVI(model, guide, numpyro.optim.Adam(0.1), elbo)
    jax.eval_shape(lambda: svi.update(svi.init(KEY)))


def model_of(function: Any) -> Any:
    """A regression on a function of the weights and the inputs."""

    def model() -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros((INPUTS, OUTPUTS)), 1.0).to_event(2))
        with numpyro.plate("N", ROWS):
            numpyro.sample("y", dist.Normal(function(w), 1.0).to_event(1), obs=Y)

    return model


def test_weights_that_are_not_met_are_refused() -> None:
    scaled = model_of(lambda w: X @ (2.0 * w))
    for sites in (None, ["w"]):
        with pytest.raises(ArgumentError, match=r"product or convolution.*'w': \['mul'\]"):
            loss_of(flipout(Trace_ELBO(), sites), scaled)
    with pytest.raises(ArgumentError, match=r"names of latent sites.*\['v'\]"):
        loss_of(flipout(Trace_ELBO(), ["v"]), regression)
    looped = model_of(lambda w: jax.lax.map(lambda row: row @ w, X))
    with pytest.raises(ArgumentError, match=r"'w': \['scan'\]"):
        loss_of(flipout(Trace_ELBO()), looped)


def test_weights_with_one_draw_for_all_rows_elsewhere_are_refused() -> None:
    for method in METHODS:
        with pytest.raises(ArgumentError, match=r"'w' in linear operations only.*sum"):
            loss_of(method(Trace_ELBO()), model_of(lambda w: X @ w + w.sum()))


def test_rows_that_are_not_those_of_the_data_are_refused() -> None:
    basis = jnp.ones((5, INPUTS))
    for method in METHODS:
        with pytest.raises(ArgumentError, match=r"length 5, to be the rows .*\[3, 32\]"):
            loss_of(method(Trace_ELBO()), model_of(lambda w: jnp.ones((ROWS, 5)) @ (basis @ w)))


def test_guides_with_correlated_weights_are_refused() -> None:
    with pytest.raises(ArgumentError, match="factorised Normal, found 'w' from Multivariate"):
        loss_of(flipout(Trace_ELBO()), regression, AutoMultivariateNormal(regression))


def test_local_noise_is_refused_where_it_is_not_exact() -> None:
    square = model_of(lambda w: jnp.tanh(X @ w) @ w.T @ w)
    with pytest.raises(ArgumentError, match="applied once, found a second use"):
        loss_of(local_reparameterization(Trace_ELBO()), square)
    loss_of(flipout(Trace_ELBO()), square)
    places = model_of(lambda w: (jnp.stack([X, X + 1.0], 1) @ w).sum(1))
    with pytest.raises(ArgumentError, match="once a row, found 2 places"):
        loss_of(local_reparameterization(Trace_ELBO()), places)
    loss_of(local_reparameterization(Trace_ELBO(), independent_places=True), places)
    stacked = model_of(lambda w: X @ w + (jnp.concatenate([X, X]) @ w)[:ROWS])
    with pytest.raises(ArgumentError, match="one number of rows, found 32 and 64"):
        loss_of(flipout(Trace_ELBO()), stacked)
