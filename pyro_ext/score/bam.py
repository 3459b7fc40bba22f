"""Batch and match (``BaM``); see :mod:`ppl_ext.matching`."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.matching import BaMShell
from pyro_ext.guides.flat_density import Moments
from pyro_ext.score.gaussian_matching import GaussianMatching


def bam_update(
    moments: Moments,
    theta: Float[Tensor, "S D"],
    score: Float[Tensor, "S D"],
    weight: float,
) -> Moments:
    """Moments of the Normal q that minimises the objective of one step.

    ``moments`` are those of the present guide, which drew ``theta``; ``score`` is the target's
    there, and ``weight`` the paper's lambda_t: weight of the scores against the present guide.
    """
    mean, scale = moments
    number = len(theta)
    share = weight / (1.0 + weight)
    theta_mean, score_mean = theta.mean(0), score.mean(0)
    spread, pull = (weight / number) ** 0.5, (share / number) ** 0.5
    # The mean is added to every row, where the deviations from it add up to zero: one row more
    # than draws would have a singular value that is zero but for rounding, which is not small
    # against 1 when scores are large.
    rows = spread * (theta - theta_mean) + pull * (mean - theta_mean)
    root = _triangular(torch.cat([scale.T, rows]))
    rows = spread * (score - score_mean) + pull * score_mean
    _, singular, directions = torch.linalg.svd(rows @ root, full_matrices=False)
    shrunk = (2.0 / (1.0 + (1.0 + 4.0 * singular.square()).sqrt())).sqrt()
    # The root of S is the identity but for these directions.
    root = root - ((root @ directions.T) * (1.0 - shrunk)) @ directions
    scale = _triangular(root.T)
    new_mean = (1.0 - share) * mean + share * (scale @ (scale.T @ score_mean) + theta_mean)
    return Moments(new_mean, scale)


def _triangular(rows: Float[Tensor, "n D"]) -> Float[Tensor, "D D"]:
    """Lower triangular L with positive diagonal and L L^T = R^T R, for rows R."""
    upper = torch.linalg.qr(rows, mode="r").R
    return upper.T * torch.where(upper.diagonal() < 0, -1.0, 1.0).to(upper)


class BaM(BaMShell, GaussianMatching):
    def _weight(self, size: int) -> float:
        return float(self._regularization_at(self.num_steps_taken, size))

    def _matched(
        self,
        moments: Moments,
        theta: Float[Tensor, "S D"],
        score: Float[Tensor, "S D"],
        step: int,
    ) -> Moments:
        return bam_update(moments, theta, score, self._weight(theta.numel()))
