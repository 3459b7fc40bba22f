"""Flipout for NumPyro; see :mod:`ppl_ext.guides.flipout`."""

from __future__ import annotations

import jax
from jax import Array

from numpyro_ext.guides.linear_sites import KeyedNoise, RowNoiseELBO
from ppl_ext.guides.flipout import FlipoutSigns, flipout_of


class FlipoutNoise(FlipoutSigns, KeyedNoise):
    def _random_signs(self, rows: int, length: int, like: Array) -> Array:
        return jax.random.rademacher(self.next_key(), (rows, length)).astype(like.dtype)


flipout = flipout_of(RowNoiseELBO, FlipoutNoise)
