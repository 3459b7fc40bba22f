"""Time series in NumPyro: autoregression, GARCH(1, 1), and two hidden Markov models.

Each program takes the data of its posterior as a dict, and where its observations are independent
given what came before, `subsample_size`, the number of them that are evaluated at once. The
recursions over time are `lax.scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import logsumexp
from numpyro.distributions import constraints

Data = Mapping[str, Any]


def arK(data: Data, subsample_size: int | None = None) -> None:
    """Autoregression of order K; the first K values are given.

    Sites: `alpha`, `beta` (K,), whose first entry belongs to the value just before, and `sigma`.
    """
    order, y = data["K"], np.asarray(data["y"])
    count = len(y) - order
    before = jnp.asarray(np.stack([y[order - lag :][:count] for lag in range(1, order + 1)], -1))
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([order]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    after = jnp.asarray(y[order:])
    with numpyro.plate("time", count, subsample_size=subsample_size) as rows:
        numpyro.sample("y", dist.Normal(alpha + before[rows] @ beta, sigma), obs=after[rows])


def garch11(data: Data) -> None:
    """GARCH(1, 1): the variance follows the last squared deviation and the last variance.

    Sites: `mu`, `alpha0` > 0, and `alpha1`, `beta1` uniform on the triangle where both are
    positive and their sum is below one: the first margin of that is Beta(1, 2).
    """
    y = jnp.asarray(data["y"], float)
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
    alpha0 = numpyro.sample("alpha0", dist.ImproperUniform(constraints.positive, (), ()))
    alpha1 = numpyro.sample("alpha1", dist.Beta(1.0, 2.0))
    beta1 = numpyro.sample("beta1", dist.Uniform(0.0, 1.0 - alpha1))

    def step(variance: Array, deviation: Array) -> tuple[Array, Array]:
        return alpha0 + alpha1 * deviation**2 + beta1 * variance, variance

    first = jnp.asarray(data["sigma1"], y.dtype) ** 2
    _, variance = jax.lax.scan(step, first, y - mu)
    with numpyro.plate("time", len(y)):
        numpyro.sample("y", dist.Normal(mu, jnp.sqrt(variance)), obs=y)


class HiddenMarkov(dist.Distribution):
    """Observations of a hidden Markov model of K states, whose states are summed out.

    The log density is the forward algorithm's.

    Parameters
    ----------
    theta : array (K, K)
        Row j holds the probabilities of the next state after state j.
    emission : distribution of batch shape (K,)
    duration : int
        Number of observations T.
    first : array (K,), optional
        Probabilities of the first state. Default: equal ones.
    """

    pytree_data_fields = ("theta", "emission", "first")
    pytree_aux_fields = ("duration",)

    def __init__(
        self,
        theta: Array,
        emission: Any,
        duration: int,
        first: Array | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.theta, self.emission, self.duration = theta, emission, duration
        self.first = jnp.full(len(theta), 1.0 / len(theta)) if first is None else first
        super().__init__((), (duration, *emission.event_shape), validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> Any:
        """Support of the series."""
        rank = self.event_dim - self.emission.event_dim
        return constraints.independent(self.emission.support, rank)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw series, each (T, ...)."""
        if sample_shape:
            keys = jax.random.split(key, sample_shape)
            draw = self.sample
            for _ in sample_shape:
                draw = jax.vmap(draw)
            return draw(keys)
        key_first, key_next, key_values = jax.random.split(key, 3)
        log_theta = jnp.log(self.theta)

        def step(state: Array, key: Array) -> tuple[Array, Array]:
            return jax.random.categorical(key, log_theta[state]), state

        first = jax.random.categorical(key_first, jnp.log(self.first))
        states = jax.lax.scan(step, first, jax.random.split(key_next, self.duration))[1]
        values = self.emission.sample(key_values, (self.duration,))
        return values[jnp.arange(self.duration), states]

    def log_prob(self, value: Array) -> Array:
        """Log density of a series (T, ...)."""
        rank = value.ndim - self.emission.event_dim
        given_state = self.emission.log_prob(jnp.expand_dims(value, rank))
        log_theta = jnp.log(self.theta)

        def step(forward: Array, given_state: Array) -> tuple[Array, None]:
            return logsumexp(forward[:, None] + log_theta, 0) + given_state, None

        first = given_state[0] + jnp.log(self.first)
        return logsumexp(jax.lax.scan(step, first, given_state[1:])[0])


def hmm_example(data: Data) -> None:
    """Two hidden states with Normal observations of unit variance.

    Sites: `theta1`, `theta2`, the rows of the transition matrix, and `mu` (K,), positive and
    increasing.
    """
    states, y = data["K"], data["y"]
    rows = [
        numpyro.sample(f"theta{j + 1}", dist.Dirichlet(jnp.ones(states))) for j in range(states)
    ]
    ordered = constraints.positive_ordered_vector
    mu = numpyro.sample("mu", dist.ImproperUniform(ordered, (), (states,)))
    prior = dist.Normal(jnp.array([3.0, 10.0]), 1.0)
    numpyro.factor("mu_prior", prior.log_prob(mu).sum())
    numpyro.sample("y", HiddenMarkov(jnp.stack(rows), dist.Normal(mu, 1.0), len(y)), obs=y)


def hmm_drive_0(data: Data) -> None:
    """Two hidden states of a basketball player, with two Exponential observations at each time.

    Sites: `theta1`, `theta2`, the rows of the transition matrix, and the rates `phi` (K,) of `u`
    and `lambda` (K,) of `v`, both positive and increasing.
    """
    states = data["K"]
    observed = np.stack([data["u"], data["v"]], -1)
    concentration = jnp.asarray(data["alpha"], float)
    rows = [
        numpyro.sample(f"theta{j + 1}", dist.Dirichlet(concentration[j])) for j in range(states)
    ]
    ordered = constraints.positive_ordered_vector
    prior = dist.Normal(jnp.array([0.0, 3.0]), 1.0)
    rates = []
    for name in ("phi", "lambda"):
        rates.append(numpyro.sample(name, dist.ImproperUniform(ordered, (), (states,))))
        numpyro.factor(f"{name}_prior", prior.log_prob(rates[-1]).sum())
    emission = dist.Exponential(jnp.stack(rates, -1)).to_event(1)
    chain = HiddenMarkov(jnp.stack(rows), emission, len(observed))
    numpyro.sample("uv", chain, obs=observed)


PROGRAMS: dict[str, Callable[..., None]] = {
    "arK": arK,
    "garch11": garch11,
    "hmm_drive_0": hmm_drive_0,
    "hmm_example": hmm_example,
}
