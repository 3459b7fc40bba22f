"""Recursions over time in NumPyro, which are `lax.scan`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import logsumexp
from numpyro.distributions import constraints


def variances(first: Array, alpha0: Array, alpha1: Array, beta1: Array, deviations: Array) -> Array:
    """Variances (T,) of GARCH(1, 1), of deviations (T,) from the mean, the first one given."""

    def step(variance: Array, deviation: Array) -> tuple[Array, Array]:
        return alpha0 + alpha1 * deviation**2 + beta1 * variance, variance

    found: Array = jax.lax.scan(step, first, deviations)[1]
    return found


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
