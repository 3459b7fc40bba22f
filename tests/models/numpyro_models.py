"""The model zoo in NumPyro; data and moments are in ``zoo``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.contrib.module import random_eqx_module, random_flax_module, random_nnx_module

from tests.models import zoo

Model = Callable[..., Any]


def conjugate_normal(y: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def conjugate_normal_subsampled(y: jax.Array, subsample_size: int | None = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("N", len(y), subsample_size=subsample_size) as rows:
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[rows])


def gaussian_one_site() -> None:
    numpyro.sample(
        "z",
        dist.MultivariateNormal(
            jnp.asarray(zoo.GAUSSIAN_3D_MEAN), jnp.asarray(zoo.GAUSSIAN_3D_COVARIANCE)
        ),
    )


def gaussian_two_sites() -> None:
    mean, covariance = jnp.asarray(zoo.GAUSSIAN_3D_MEAN), jnp.asarray(zoo.GAUSSIAN_3D_COVARIANCE)
    weights, scale = zoo.conditional_gaussian()
    a = numpyro.sample("a", dist.MultivariateNormal(mean[:2], covariance[:2, :2]))
    numpyro.sample("b", dist.Normal(mean[2] + ((a - mean[:2]) * weights).sum(-1), scale))


def gaussian_five() -> None:
    numpyro.sample(
        "z",
        dist.MultivariateNormal(
            jnp.asarray(zoo.GAUSSIAN_5D_MEAN), jnp.asarray(zoo.GAUSSIAN_5D_COVARIANCE)
        ),
    )


def lognormal() -> None:
    numpyro.sample("x", dist.LogNormal(0.0, 0.5))


def exponential() -> None:
    numpyro.sample("x", dist.Exponential(1.0))


def dirichlet() -> None:
    numpyro.sample("p", dist.Dirichlet(jnp.asarray(zoo.DIRICHLET_CONCENTRATION)))


def lkj_cholesky() -> None:
    numpyro.sample("L", dist.LKJCholesky(3, zoo.LKJ_CONCENTRATION))


def dependent_uniform() -> None:
    a = numpyro.sample("a", dist.LogNormal(0.0, 0.5))
    numpyro.sample("b", dist.Uniform(0.0, a))


def gamma_poisson(counts: jax.Array) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5))
    with numpyro.plate("N", len(counts)):
        numpyro.sample("counts", dist.Poisson(rate), obs=counts)


def nested_plates(y: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with numpyro.plate("groups", y.shape[1], dim=-1):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        with numpyro.plate("rows", y.shape[0], dim=-2):
            numpyro.sample("y", dist.Normal(theta, 0.7), obs=y)


def nested_plates_subsampled(
    y: jax.Array, row_subsample_size: int | None = None, column_subsample_size: int | None = None
) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    column_plate = numpyro.plate(
        "columns", y.shape[1], subsample_size=column_subsample_size, dim=-1
    )
    row_plate = numpyro.plate("rows", y.shape[0], subsample_size=row_subsample_size, dim=-2)
    with column_plate as columns, row_plate as rows:
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[rows][:, columns])


def masked_observations(y: jax.Array, mask: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("N", len(y)), handlers.mask(mask=mask):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def scaled_observations(y: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("N", len(y)), handlers.scale(scale=0.25):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def scaled_latent(y: jax.Array) -> None:
    with handlers.scale(scale=0.5):
        s = numpyro.sample("s", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(0.0, s), obs=y)


def factor_outside_plate() -> None:
    z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    numpyro.factor("f", -2.0 * (z - 1.0) ** 2)


def factor_in_plate(y: jax.Array, subsample_size: int | None = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("N", len(y), subsample_size=subsample_size) as rows:
        numpyro.factor("f", -0.5 * (y[rows] - mu) ** 2)


def deterministic(y: jax.Array, subsample_size: int | None = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    numpyro.deterministic("twice", 2.0 * mu)
    with numpyro.plate("N", len(y), subsample_size=subsample_size) as rows:
        numpyro.deterministic("residual", y[rows] - mu)
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[rows])


def eight_schools_centered(error: jax.Array, effect: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(error)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("effect", dist.Normal(theta, error), obs=effect)


def eight_schools_noncentered(error: jax.Array, effect: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(error)):
        base = numpyro.sample("theta_base", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * base)
        numpyro.sample("effect", dist.Normal(theta, error), obs=effect)


def _coefficients() -> tuple[jax.Array, jax.Array]:
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    return w, numpyro.sample("b", dist.Normal(0.0, 2.0))


def logistic_regression(x: jax.Array, y: jax.Array) -> None:
    w, b = _coefficients()
    with numpyro.plate("N", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w + b), obs=y)


def logistic_regression_subsampled(
    x: jax.Array, y: jax.Array, subsample_size: int | None = None
) -> None:
    w, b = _coefficients()
    with numpyro.plate("N", len(x), subsample_size=subsample_size) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ w + b), obs=y[rows])


def logistic_regression_batch_arguments(x: jax.Array, y: jax.Array) -> None:
    w, b = _coefficients()
    with numpyro.plate("N", 60, subsample_size=len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w + b), obs=y)


def local_latents(y: jax.Array, subsample_size: int | None = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("N", len(y), subsample_size=subsample_size) as rows:
        z = numpyro.sample("z", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(z, 0.5), obs=y[rows])


def local_positive_latents(counts: jax.Array, subsample_size: int | None = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("N", len(counts), subsample_size=subsample_size) as rows:
        rate = numpyro.sample("rate", dist.LogNormal(mu, 1.0))
        numpyro.sample("counts", dist.Poisson(rate), obs=counts[rows])


def zero_inflated_poisson(counts: jax.Array) -> None:
    gate = numpyro.sample("gate", dist.Beta(2.0, 2.0))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5))
    with numpyro.plate("N", len(counts)):
        numpyro.sample("counts", dist.ZeroInflatedPoisson(gate, rate), obs=counts)


def _regression(
    network: Callable[[jax.Array], jax.Array],
    x: jax.Array,
    y: jax.Array | None,
    subsample_size: int | None,
) -> None:
    plate = numpyro.plate("N", len(x), subsample_size=subsample_size)
    with plate as rows:
        batch = x[rows]
    mean = network(batch).squeeze(-1)
    sigma = numpyro.sample("sigma", dist.LogNormal(-1.0, 0.5))
    with plate:
        numpyro.sample("y", dist.Normal(mean, sigma), obs=None if y is None else y[rows])


def _nnx_network() -> Model:
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.fc1 = nnx.Linear(2, 4, rngs=rngs)
            self.fc2 = nnx.Linear(4, 1, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.fc2(jnp.tanh(self.fc1(x)))

    module = Network(nnx.Rngs(0))

    def bnn(x: jax.Array, y: jax.Array | None = None, subsample_size: int | None = None) -> None:
        network = random_nnx_module("net", module, prior=dist.Normal(0.0, 1.0))
        _regression(network, x, y, subsample_size)

    return bnn


def _linen_network() -> Model:
    import flax.linen as nn

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return nn.Dense(1, name="fc2")(jnp.tanh(nn.Dense(4, name="fc1")(x)))

    module = Network()

    def bnn_linen(x: jax.Array, y: jax.Array | None = None) -> None:
        network = random_flax_module("net", module, prior=dist.Normal(0.0, 1.0), input_shape=(1, 2))
        _regression(network, x, y, None)

    return bnn_linen


def _equinox_network() -> Model:
    import equinox as eqx

    module = eqx.nn.MLP(2, 1, 4, 1, activation=jnp.tanh, key=jax.random.key(0))

    def bnn_equinox(x: jax.Array, y: jax.Array | None = None) -> None:
        network = random_eqx_module("net", module, prior=dist.Normal(0.0, 1.0))
        _regression(jax.vmap(network), x, y, None)

    return bnn_equinox


def scan_autoregression(y: jax.Array) -> None:
    phi = numpyro.sample("phi", dist.Uniform(-1.0, 1.0))

    def step(state: jax.Array, observed: jax.Array) -> tuple[jax.Array, None]:
        state = numpyro.sample("x", dist.Normal(phi * state, zoo.AR_STATE_STD))
        numpyro.sample("y", dist.Normal(state, zoo.AR_NOISE_STD), obs=observed)
        return state, None

    scan(step, jnp.zeros((), y.dtype), y)


_NETWORKS: dict[str, Callable[[], Model]] = {
    "bnn": _nnx_network,
    "bnn_linen": _linen_network,
    "bnn_equinox": _equinox_network,
}


def build(name: str) -> Model:
    """The model called ``name``; a network is built anew."""
    if name in _NETWORKS:
        return _NETWORKS[name]()
    model: Model = globals()[name]
    return model


def arguments(name: str) -> tuple[Any, ...]:
    """The model's positional arguments as JAX arrays, float64 when x64 is on."""
    return tuple(
        jnp.asarray(value) if isinstance(value, np.ndarray) else value
        for value in zoo.ZOO[name].data()
    )
