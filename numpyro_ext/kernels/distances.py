"""Distances of all pairs of particles, which hold far from the origin and where they coincide."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def centre(particles: Float[Array, "P D"]) -> Float[Array, "P D"]:
    """Particles (P, D) minus their mean.

    The first particle is subtracted before the mean is taken. Far from the origin that
    difference is exact, whereas a mean of large numbers is not; and coincident particles
    become exact zeros.
    """
    shifted = particles - particles[:1]
    return shifted - shifted.mean(axis=0)


def squared_distances(
    centred: Float[Array, "P D"], products: Float[Array, "P P"] | None = None
) -> Float[Array, "P P"]:
    """Squared Euclidean distances of all pairs, shape (P, P), by one matrix product.

    Expects centred points of shape (P, D), or their inner products (P, P), because
    |x|^2 + |y|^2 - 2 x.y cancels when the points sit far from the origin. Distances that
    are not above the rounding error of that formula are set to zero, so coincident particles
    have distance zero exactly.
    """
    if products is None:
        # Accelerators multiply in reduced precision unless told otherwise, which the
        # cancellation does not forgive.
        products = jnp.matmul(centred, centred.T, precision="highest")
    norms = jnp.diagonal(products)
    totals = norms[:, None] + norms
    squared = totals - 2.0 * products
    rounding = 8.0 * jnp.finfo(centred.dtype).eps
    return jnp.where(squared <= rounding * totals, 0.0, squared)
