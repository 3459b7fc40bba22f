"""Levenberg-Marquardt damping and the trust region of Newton steps.

The quadratic model of log pi at a particle, s'd - d'H d / 2 for a move d, is compared with the
change of log pi on the same rows. Where they disagree the damping grows; where they agree it falls
(Marquardt 1963, https://doi.org/10.1137/0111030; Martens 2010, section 4.1). The disagreement is
measured against the sizes of the model's terms rather than their sum, since particles near their
equilibrium move against the score as often as along it.

A particle moves by at most its radius, in the metric of its own curvature. A move for which the
density falls far short of the forecast is taken back, even where the density rose: a Newton step on
a steep slope ends beyond all that the curvature knows of, and is better than its start all the
same. Damping answers for moves within the radius, and the radius for those that it shortened.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from ppl_ext.stein.newton import (
    BELIEVED,
    FALL,
    GOOD,
    GROWTH,
    LEAST_DAMPING,
    MOST_DAMPING,
    NARROWING,
    POOR,
    REFUSED,
    WIDENING,
    Judgement,
    Proposal,
)


def damping_scale(diagonals: Float[Array, "P D"]) -> Float[Array, " D"]:
    """Diagonal (D,) of which the damping is a multiple: the mean curvature of each coordinate.

    Coordinates without curvature count as a thousandth of the mean.
    """
    mean = diagonals.mean(axis=0)
    least = 1e-3 * mean.mean()
    return jnp.maximum(mean, jnp.where(least > 0.0, least, 1.0))


def within_radius(
    moves: Float[Array, "P D"],
    quadratic: Float[Array, " P"],
    radius: Float[Array, " P"] | None,
) -> Proposal[Array]:
    """Moves d (P, D) shortened so that sqrt(d'Hd / D) is at most the radius of each particle.

    Parameters
    ----------
    quadratic : Array
        d'Hd of each, with the curvature before damping.
    """
    # Rounding of matrices may leave less than nothing.
    lengths = jnp.sqrt(jnp.maximum(quadratic, 0.0) / moves.shape[1])
    if radius is None:
        return Proposal(moves, lengths, jnp.zeros(lengths.shape, bool))
    shortened = lengths > radius
    shares = jnp.where(shortened, radius / jnp.where(shortened, lengths, 1.0), 1.0)
    return Proposal(moves * shares[:, None], lengths * shares, shortened)


def judge(
    predicted_gain: Float[Array, " P"],
    proposal: Proposal[Array],
    before: Float[Array, " P"],
    after: Float[Array, " P"],
    damping: Float[Array, ""],
    radius: Float[Array, " P"] | None,
    solved: Bool[Array, ""],
) -> Judgement[Array]:
    """Compare the model's change of the log density with the actual one.

    Parameters
    ----------
    predicted_gain : Array
        s'd, shape (P,).
    proposal : Proposal
        The moves d.
    before, after : Array
        Log density, shape (P,).
    damping, radius
        Of this step.
    solved : Array
        Whether the linear system was solved.
    """
    predicted_loss = 0.5 * proposal.moves.shape[1] * proposal.lengths**2
    predicted, actual = predicted_gain - predicted_loss, after - before
    # Differences of log densities are known to their rounding only.
    rounding = 32.0 * jnp.finfo(before.dtype).eps * jnp.abs(before)
    size = jnp.abs(predicted_gain) + predicted_loss + rounding
    shortfall = (predicted - actual) / size
    disagreement = jnp.where(jnp.isfinite(shortfall), jnp.minimum(jnp.abs(shortfall), 2.0), 2.0)
    # What is not a number is refused.
    believed = shortfall <= REFUSED
    accepted = solved & believed
    within = ~proposal.shortened
    mean = jnp.where(within.any(), jnp.where(within, disagreement, 0.0).sum() / within.sum(), GOOD)
    factor = jnp.where(mean < GOOD, FALL, jnp.where(mean > POOR, GROWTH, 1.0))
    factor = jnp.where(solved & accepted.any(), factor, GROWTH**2)
    if radius is not None:
        wider = proposal.shortened & (disagreement <= BELIEVED)
        kept = jnp.where(wider, WIDENING * radius, radius)
        judged = jnp.where(believed, kept, NARROWING * proposal.lengths)
        radius = jnp.where(solved, judged, radius)
    following = jnp.clip(damping * factor, LEAST_DAMPING, MOST_DAMPING)
    return Judgement(accepted, following, disagreement.mean(), radius)
