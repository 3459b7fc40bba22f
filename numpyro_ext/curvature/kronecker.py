"""Kronecker factors on JAX's arrays, see :mod:`ppl_ext.curvature.outer_products`."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from jax import lax

from numpyro_ext.curvature.curvature import Curvature
from ppl_ext.curvature import outer_products

_ROWS = outer_products.OuterProducts(
    jnp,
    lambda direction, like: jnp.asarray(direction, like.dtype),
    Curvature,
    lambda steps, step, start: lax.fori_loop(0, steps, lambda _, tree: step(tree), start),
    lax.cond,
)
outer_vectors, rank_one_sites = _ROWS.vectors, _ROWS.sites
kronecker_factors = partial(outer_products.kronecker_factors, _ROWS)
