"""The proximal objective (equation 8 of the proximal score-matching paper) and its gradient."""

from __future__ import annotations

import jax
from jax import Array
from jaxtyping import Float

from numpyro_ext.guides.flat_density import FlatDensity, Parameters
from ppl_ext.score_matching.proximal import blended_target


def proximal_gradient(
    density: FlatDensity,
    parameters: Parameters,
    theta: Float[Array, "S D"],
    target: Float[Array, "S D"],
    weight: Float[Array, ""] | float,
) -> tuple[Float[Array, ""], Parameters]:
    """Proximal objective (up to a constant) and its gradient in the guide's parameters.

    Equation 8 of the paper, for draws ``theta`` held fixed, with ``target`` from
    :func:`blended_target`.
    """
    value, gradient = density.mean_square_residual(parameters, theta, target)
    # α |g - g_t|^2 + |g - s|^2 = (1 + α) |g - (α g_t + s) / (1 + α)|^2 and terms without g: one
    # square to the blended target.
    factor = 1.0 + weight
    return factor * value, jax.tree.map(lambda entry: factor * entry, gradient)


__all__ = ["blended_target", "proximal_gradient"]
