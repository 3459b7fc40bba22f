"""The proximal objective (equation 8 of the proximal score-matching paper) and its gradient."""

from __future__ import annotations

import jax
from jax import Array

from numpyro_ext.guides.flat_density import FlatDensity, Parameters


def blended_target(score: Array, present_score: Array, weight: Array | float) -> Array:
    """The one regression target that stands for both terms of the proximal objective.

    With b = (s + alpha g_t) / (1 + alpha),
    ``alpha |g - g_t|^2 + |g - s|^2 = (1 + alpha) |g - b|^2 + a constant``,
    so that the inner steps need a single array of scores.

    Parameters
    ----------
    score, present_score : arrays (S, D)
        Score s of the target, and g_t of the present guide, at the same points.
    weight : float
        Proximal weight alpha.
    """
    return (score + weight * present_score) / (1.0 + weight)


def proximal_gradient(
    density: FlatDensity,
    parameters: Parameters,
    theta: Array,
    target: Array,
    weight: Array | float,
) -> tuple[Array, Parameters]:
    """Proximal objective (up to a constant) and its gradient in the guide's parameters.

    Equation 8 of the paper, for draws ``theta`` (S, D) held fixed, with ``target`` from
    :func:`blended_target`.
    """
    value, gradient = density.mean_square_residual(parameters, theta, target)
    factor = 1.0 + weight
    return factor * value, jax.tree.map(lambda entry: factor * entry, gradient)
