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

Functions take ``xp``, which is ``torch`` or ``jax.numpy``.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float

from ppl_ext.gradients.estimator import Full, GradientEstimator
from ppl_ext.gradients.minibatch import Minibatch
from ppl_ext.gradients.noisy import Noisy
from ppl_ext.stein import newton


def damping_scale(xp: Any, diagonals: Float[Any, "P D"]) -> Float[Any, " D"]:
    """Diagonal (D,) of which the damping is a multiple: the mean curvature of each coordinate.

    Coordinates without curvature count as a thousandth of the mean.
    """
    mean = diagonals.mean(axis=0)
    # A coordinate that no row informs would get no damping, and its move would have no bound. Where
    # nothing has curvature, as where the density is flat, the unit is 1.
    least = 1e-3 * mean.mean()
    return xp.maximum(mean, xp.where(least > 0.0, least, 1.0))


def within_radius(
    xp: Any,
    moves: Float[Any, "P D"],
    quadratic: Float[Any, " P"],
    radius: Float[Any, " P"] | None,
) -> newton.Proposal[Any]:
    """Moves d (P, D) shortened so that sqrt(d'Hd / D) is at most the radius of each particle.

    Parameters
    ----------
    quadratic : array
        d'Hd of each, with the curvature before damping.
    """
    # Rounding of matrices may leave less than nothing.
    lengths = xp.sqrt(xp.clip(quadratic, 0.0, None) / moves.shape[1])
    if radius is None:
        # False for each particle, by a comparison: torch and JAX name the type of truth values
        # differently.
        return newton.Proposal(moves, lengths, lengths != lengths)
    shortened = lengths > radius
    shares = xp.where(shortened, radius / xp.where(shortened, lengths, 1.0), 1.0)
    return newton.Proposal(moves * shares[:, None], lengths * shares, shortened)


def judge(
    xp: Any,
    predicted_gain: Float[Any, " P"],
    proposal: newton.Proposal[Any],
    before: Float[Any, " P"],
    after: Float[Any, " P"],
    damping: Any,
    radius: Float[Any, " P"] | None,
    solved: Any,
) -> newton.Judgement[Any]:
    """Compare the model's change of the log density with the actual one.

    Parameters
    ----------
    predicted_gain : array
        s'd, shape (P,).
    proposal : Proposal
        The moves d.
    before, after : array
        Log density, shape (P,).
    damping, radius
        Of this step.
    solved : bool, or array ()
        Whether the linear system was solved.
    """
    # d'Hd / 2, since a length is sqrt(d'Hd / D).
    predicted_loss = 0.5 * proposal.moves.shape[1] * proposal.lengths**2
    # s'd - d'Hd / 2 against the change itself.
    predicted, actual = predicted_gain - predicted_loss, after - before
    # Differences of log densities are known to their rounding only.
    rounding = 32.0 * xp.finfo(before.dtype).eps * xp.abs(before)
    size = xp.abs(predicted_gain) + predicted_loss + rounding
    # The share is of the sizes of the terms: their sum is near 0 for a move almost across the
    # score, and a quotient by it would be rounding.
    shortfall = (predicted - actual) / size
    # At most 2, so that one particle far off does not set the mean, and by it the damping of all.
    disagreement = xp.where(xp.isfinite(shortfall), xp.clip(xp.abs(shortfall), None, 2.0), 2.0)
    # What is not a number is refused.
    believed = shortfall <= newton.REFUSED
    accepted = believed & solved
    within = ~proposal.shortened
    # A shortened move tells of the radius and not of the damping. GOOD leaves the damping as it is
    # where every move was shortened.
    mean = xp.where(
        within.any(), xp.where(within, disagreement, 0.0).sum() / within.sum(), newton.GOOD
    )
    one = xp.ones_like(mean)
    factor = xp.where(
        mean < newton.GOOD,
        newton.FALL * one,
        xp.where(mean > newton.POOR, newton.GROWTH * one, one),
    )
    # Where all moves are refused the model is of no use at this size: two factors at once.
    factor = xp.where(accepted.any(), factor, newton.GROWTH**2)
    if radius is not None:
        # Only a radius that has shortened a move can have been too small.
        wider = proposal.shortened & (disagreement <= newton.BELIEVED)
        kept = xp.where(wider, newton.WIDENING * radius, radius)
        # Below the length that failed; the radius itself may lie far above that. A move along which
        # there is no curvature has no length, and is damping's alone: a radius of 0 would stay so.
        narrowed = xp.where(proposal.lengths > 0.0, newton.NARROWING * proposal.lengths, radius)
        judged = xp.where(believed, kept, narrowed)
        # The moves of a system that was not solved are zeros, whose lengths say nothing of the
        # radius.
        radius = xp.where(xp.ones_like(believed) & solved, judged, radius)
    following = xp.clip(damping * factor, newton.LEAST_DAMPING, newton.MOST_DAMPING)
    return newton.Judgement(accepted, following, disagreement.mean(), radius)


def judged_moves(
    xp: Any,
    options: newton.LevenbergMarquardt,
    plan: Any,
    state: Any,
    data: Any,
    score: Any,
    moves: Float[Any, "P D"],
    curvature: Any,
    solved: Any,
) -> tuple[newton.Judgement[Any], Float[Any, "P D"]]:
    """What becomes of moves (P, D) within the trust region, and those that are taken.

    Parameters
    ----------
    plan, state
        Of an engine, which have ``target``, ``estimator`` and ``program``, and ``particles``,
        ``damping`` and ``radius``.
    score : ScoreEstimate
        At the particles, by the estimator.
    curvature
        Of each particle, before damping.
    solved : bool, or array ()
        Whether the linear system was solved.

    Returns
    -------
    judgement : Judgement
        Which particles take their moves, the next damping and the next radius.
    taken : array (P, D)
    """
    proposal = within_radius(xp, moves, curvature.quadratic(moves), state.radius)
    moves, particles = proposal.moves, state.particles
    if not options.adapt:
        taken = xp.ones_like(proposal.shortened)
        return newton.Judgement(taken, state.damping, 0.0, state.radius), moves
    target, where, indices = plan.target, plan.program.where, score.indices
    on_rows = () if indices is None else (indices,)
    own = score
    if not isinstance(plan.estimator, Minibatch | Full):
        # Noise and reduced variance are not of the density of the rows.
        own = (target.score if on_rows else target.full_score)(particles, data, *on_rows)
    proposed = where.placed(particles, where.part(particles) + moves)
    gain = (where.part(own.score) * moves).sum(axis=1)
    old = own.log_density(target.likelihood_temperature)
    new = (target.log_density if on_rows else target.full_log_density)(proposed, data, *on_rows)
    found = judge(xp, gain, proposal, old, new, state.damping, state.radius, solved)
    return found, xp.where(found.accepted[:, None], moves, 0.0)


def rows_of_a_step(estimator: GradientEstimator, target: Any) -> Any:
    """Rows of the shape that the estimator's batches have, or None where a step sees all."""
    # Noise changes scores, and leaves the rows that they are of.
    while isinstance(estimator, Noisy):
        estimator = estimator.inner(target)
    return None if isinstance(estimator, Full) or not target.plates else target.first_rows()
