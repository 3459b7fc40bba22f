"""Levenberg-Marquardt damping and the trust region of Newton steps.

The quadratic model of log pi at a particle, s'd - d'H d / 2 for a move d, is compared with the
change of log pi on the same rows. Where they disagree the damping grows, and a particle whose
density fell against the model stays where it was; where they agree the damping falls (Marquardt
1963, https://doi.org/10.1137/0111030; Martens 2010, section 4.1). The disagreement is measured
against the sizes of the model's terms rather than their sum, since particles near their equilibrium
move against the score as often as along it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from ppl_ext.newton import FALL, GOOD, GROWTH, LEAST_DAMPING, MOST_DAMPING, POOR


class Judgement(NamedTuple):
    """What became of a proposed move.

    Parameters
    ----------
    accepted : Array
        Particles that take it, shape (P,).
    damping : Array
        Of the next step.
    disagreement : Array
        Mean over particles, each at most 2.
    """

    accepted: Bool[Array, " P"]
    damping: Float[Array, ""]
    disagreement: Float[Array, ""]


def damping_scale(diagonals: Float[Array, "P D"]) -> Float[Array, " D"]:
    """Diagonal (D,) of which the damping is a multiple: the mean curvature of each coordinate.

    Coordinates without curvature count as a thousandth of the mean.
    """
    mean = diagonals.mean(axis=0)
    least = 1e-3 * mean.mean()
    return jnp.maximum(mean, jnp.where(least > 0.0, least, 1.0))


def within_radius(
    moves: Float[Array, "P D"], scale: Float[Array, " D"], radius: float | None
) -> Float[Array, "P D"]:
    """Moves (P, D) shortened so that each has at most the root mean square ``radius``.

    Lengths are in units of scale^(-1/2), the standard deviations that the curvature suggests.
    """
    if radius is None:
        return moves
    sizes = jnp.sqrt((moves**2 * scale).mean(axis=1, keepdims=True))
    return moves * jnp.minimum(1.0, radius / jnp.where(sizes > 0.0, sizes, 1.0))


def judge(
    predicted_gain: Float[Array, " P"],
    predicted_loss: Float[Array, " P"],
    before: Float[Array, " P"],
    after: Float[Array, " P"],
    damping: Float[Array, ""],
    solved: Bool[Array, ""],
) -> Judgement:
    """Compare the model's change of the log density with the actual one, each (P,).

    Parameters
    ----------
    predicted_gain, predicted_loss : Array
        s'd and d'H d / 2.
    before, after : Array
        Log density.
    damping : Array
        Of this step.
    solved : Array
        Whether the linear system was solved.
    """
    predicted, actual = predicted_gain - predicted_loss, after - before
    # Differences of log densities are known to their rounding only.
    rounding = 32.0 * jnp.finfo(before.dtype).eps * jnp.abs(before)
    size = jnp.abs(predicted_gain) + predicted_loss + rounding
    disagreement = jnp.abs(actual - predicted) / size
    disagreement = jnp.where(jnp.isfinite(disagreement), jnp.minimum(disagreement, 2.0), 2.0)
    fell = ~(actual >= predicted - size)
    accepted = solved & ~fell
    mean = disagreement.mean()
    factor = jnp.where(mean < GOOD, FALL, jnp.where(mean > POOR, GROWTH, 1.0))
    factor = jnp.where(solved & accepted.any(), factor, GROWTH**2)
    return Judgement(accepted, jnp.clip(damping * factor, LEAST_DAMPING, MOST_DAMPING), mean)
