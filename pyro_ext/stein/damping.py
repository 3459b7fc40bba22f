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

import torch
from jaxtyping import Float
from torch import Tensor

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


def damping_scale(diagonals: Float[Tensor, "P D"]) -> Float[Tensor, " D"]:
    """Diagonal (D,) of which the damping is a multiple: the mean curvature of each coordinate.

    Coordinates without curvature count as a thousandth of the mean.
    """
    mean = diagonals.mean(dim=0)
    least = 1e-3 * mean.mean()
    return torch.maximum(mean, torch.where(least > 0.0, least, 1.0))


def within_radius(
    moves: Float[Tensor, "P D"],
    quadratic: Float[Tensor, " P"],
    radius: Float[Tensor, " P"] | None,
) -> Proposal[Tensor]:
    """Moves d (P, D) shortened so that sqrt(d'Hd / D) is at most the radius of each particle.

    Parameters
    ----------
    quadratic : Tensor
        d'Hd of each, with the curvature before damping.
    """
    # Rounding of matrices may leave less than nothing.
    lengths = torch.sqrt(quadratic.clamp_min(0.0) / moves.shape[1])
    if radius is None:
        return Proposal(moves, lengths, torch.zeros_like(lengths, dtype=torch.bool))
    shortened = lengths > radius
    shares = torch.where(shortened, radius / torch.where(shortened, lengths, 1.0), 1.0)
    return Proposal(moves * shares[:, None], lengths * shares, shortened)


def judge(
    predicted_gain: Float[Tensor, " P"],
    proposal: Proposal[Tensor],
    before: Float[Tensor, " P"],
    after: Float[Tensor, " P"],
    damping: float,
    radius: Float[Tensor, " P"] | None,
    solved: bool,
) -> Judgement[Tensor]:
    """Compare the model's change of the log density with the actual one.

    Parameters
    ----------
    predicted_gain : Tensor
        s'd, shape (P,).
    proposal : Proposal
        The moves d.
    before, after : Tensor
        Log density, shape (P,).
    damping, radius
        Of this step.
    solved : bool
        Whether the linear system was solved.
    """
    predicted_loss = 0.5 * proposal.moves.shape[1] * proposal.lengths**2
    predicted, actual = predicted_gain - predicted_loss, after - before
    # Differences of log densities are known to their rounding only.
    rounding = 32.0 * torch.finfo(before.dtype).eps * before.abs()
    size = predicted_gain.abs() + predicted_loss + rounding
    shortfall = (predicted - actual) / size
    disagreement = shortfall.abs().nan_to_num(2.0, 2.0).clamp_max(2.0)
    # What is not a number is refused.
    believed = shortfall <= REFUSED
    accepted = believed if solved else torch.zeros_like(believed)
    within = disagreement[~proposal.shortened]
    mean = float(within.mean()) if len(within) else GOOD
    factor = FALL if mean < GOOD else GROWTH if mean > POOR else 1.0
    if not bool(accepted.any()):
        factor = GROWTH**2
    if radius is not None and solved:
        wider = proposal.shortened & (disagreement <= BELIEVED)
        kept = torch.where(wider, WIDENING * radius, radius)
        radius = torch.where(believed, kept, NARROWING * proposal.lengths)
    following = min(max(damping * factor, LEAST_DAMPING), MOST_DAMPING)
    return Judgement(accepted, following, float(disagreement.mean()), radius)
