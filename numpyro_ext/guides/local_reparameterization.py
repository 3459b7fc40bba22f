"""The local reparameterisation for NumPyro; see :mod:`ppl_ext.guides.local_reparameterization`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from numpyro_ext.guides.linear_sites import KeyedNoise, RowNoiseELBO
from ppl_ext.guides.local_reparameterization import NormalOutputs, local_reparameterization_of


class OutputNoise(NormalOutputs, KeyedNoise):
    def _normal(self, mean: Array, variance: Array) -> Array:
        return mean + _sqrt(variance) * jax.random.normal(self.next_key(), mean.shape, mean.dtype)


def _sqrt(variance: Array) -> Array:
    """Square root with derivative 0 at 0, where a row of zeros has no noise."""
    positive = variance > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)


local_reparameterization = local_reparameterization_of(RowNoiseELBO, OutputNoise)
