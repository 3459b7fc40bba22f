"""Distances of all pairs of particles, which hold far from the origin and where they coincide."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def centre(particles: Float[Tensor, "P D"]) -> Float[Tensor, "P D"]:
    """Particles (P, D) minus their mean.

    The first particle is subtracted before the mean is taken. Far from the origin that
    difference is exact, whereas a mean of large numbers is not; and coincident particles
    become exact zeros.
    """
    shifted = particles - particles[:1]
    return shifted - shifted.mean(dim=0)


def squared_distances(
    centred: Float[Tensor, "P D"], products: Float[Tensor, "P P"] | None = None
) -> Float[Tensor, "P P"]:
    """Squared Euclidean distances of all pairs, shape (P, P), by one matrix product.

    Expects centred points of shape (P, D), or their inner products (P, P), because
    |x|^2 + |y|^2 - 2 x.y cancels when the points sit far from the origin. Distances that
    are not above the rounding error of that formula are set to zero, so coincident particles
    have distance zero exactly.
    """
    if products is None:
        products = centred @ centred.T
    norms = products.diagonal()
    totals = norms.unsqueeze(1) + norms
    squared = torch.add(totals, products, alpha=-2.0)
    rounding = 8.0 * torch.finfo(centred.dtype).eps
    return squared.masked_fill(squared <= rounding * totals, 0.0)
