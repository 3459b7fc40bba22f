"""The proximal objective (equation 8 of the proximal score-matching paper) and its gradient."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ppl_ext.score_matching.proximal import blended_target
from pyro_ext.guides.flat_density import FlatDensity, Parameters


def proximal_gradient(
    density: FlatDensity,
    parameters: Parameters,
    theta: Float[Tensor, "S D"],
    target: Float[Tensor, "S D"],
    weight: float,
) -> tuple[Float[Tensor, ""], Parameters]:
    """Proximal objective (up to a constant) and its gradient in the guide's parameters.

    Equation 8 of the paper, for draws ``theta`` held fixed, with ``target`` from
    :func:`blended_target`.
    """
    value, gradient = density.mean_square_residual(parameters, theta, target)
    # α |g - g_t|^2 + |g - s|^2 = (1 + α) |g - (α g_t + s) / (1 + α)|^2 and terms without g: one
    # square to the blended target.
    factor = 1.0 + weight
    return factor * value, {name: factor * entry for name, entry in gradient.items()}


__all__ = ["blended_target", "proximal_gradient"]
