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

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ppl_ext.newton import FALL, GOOD, GROWTH, LEAST_DAMPING, MOST_DAMPING, POOR


class Judgement(NamedTuple):
    """What became of a proposed move.

    Parameters
    ----------
    accepted : Tensor
        Particles that take it, shape (P,).
    damping : float
        Of the next step.
    disagreement : float
        Mean over particles, each at most 2.
    """

    accepted: Bool[Tensor, " P"]
    damping: float
    disagreement: float


def damping_scale(diagonals: Float[Tensor, "P D"]) -> Float[Tensor, " D"]:
    """Diagonal (D,) of which the damping is a multiple: the mean curvature of each coordinate.

    Coordinates without curvature count as a thousandth of the mean.
    """
    mean = diagonals.mean(dim=0)
    least = 1e-3 * mean.mean()
    return torch.maximum(mean, torch.where(least > 0.0, least, 1.0))


def within_radius(
    moves: Float[Tensor, "P D"], scale: Float[Tensor, " D"], radius: float | None
) -> Float[Tensor, "P D"]:
    """Moves (P, D) shortened so that each has at most the root mean square ``radius``.

    Lengths are in units of scale^(-1/2), the standard deviations that the curvature suggests.
    """
    if radius is None:
        return moves
    sizes = torch.sqrt((moves**2 * scale).mean(dim=1, keepdim=True))
    return moves * (radius / torch.where(sizes > 0.0, sizes, 1.0)).clamp_max(1.0)


def judge(
    predicted_gain: Float[Tensor, " P"],
    predicted_loss: Float[Tensor, " P"],
    before: Float[Tensor, " P"],
    after: Float[Tensor, " P"],
    damping: float,
    solved: bool,
) -> Judgement:
    """Compare the model's change of the log density with the actual one, each (P,).

    Parameters
    ----------
    predicted_gain, predicted_loss : Tensor
        s'd and d'H d / 2.
    before, after : Tensor
        Log density.
    damping : float
        Of this step.
    solved : bool
        Whether the linear system was solved.
    """
    predicted, actual = predicted_gain - predicted_loss, after - before
    # Differences of log densities are known to their rounding only.
    rounding = 32.0 * torch.finfo(before.dtype).eps * before.abs()
    size = predicted_gain.abs() + predicted_loss + rounding
    disagreement = (actual - predicted).abs() / size
    disagreement = disagreement.nan_to_num(2.0, 2.0).clamp_max(2.0)
    fell = ~(actual >= predicted - size)
    accepted = ~fell if solved else torch.zeros_like(fell)
    mean = float(disagreement.mean())
    factor = FALL if mean < GOOD else GROWTH if mean > POOR else 1.0
    if not bool(accepted.any()):
        factor = GROWTH**2
    return Judgement(accepted, min(max(damping * factor, LEAST_DAMPING), MOST_DAMPING), mean)
