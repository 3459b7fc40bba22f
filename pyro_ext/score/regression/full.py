"""Closed form for full-covariance Normal guides; see :mod:`ppl_ext.regression.full`."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.regression import full
from ppl_ext.regression.full import BlockMoments, FullRegression, is_warm
from ppl_ext.regression.pairs import advanced, next_mean_weight, next_weight
from ppl_ext.score import DECAY
from pyro_ext.guides.normal import log_density
from pyro_ext.score.regression.base import ClosedForm


class FullForm(full.FullForm, ClosedForm[FullRegression]):
    log_density = staticmethod(log_density)

    @staticmethod
    def observe(
        regression: FullRegression,
        theta: Float[Tensor, "S D"],
        score: Float[Tensor, "S D"],
        decay: float = DECAY,
        total: int = 0,
    ) -> FullRegression:
        # Twice d and e: factors cost least where a product takes them.
        d, e = (torch.sub(*values.chunk(2)) for values in (theta, score))
        pairs, columns = len(d), e.T
        weight = next_weight(regression.seen, decay)
        mean_weight = next_mean_weight(regression.seen, decay, total)

        def added(before: Tensor, left: Tensor, right: Tensor) -> Tensor:
            """The running average with the latest of left right / 4."""
            return torch.addmm(before, left, right, beta=1.0 - weight, alpha=0.25 * weight / pairs)

        block = regression.block
        return FullRegression(
            advanced(regression.seen, pairs, weight),
            torch.lerp(regression.mean_theta, theta.mean(0), mean_weight),
            torch.lerp(regression.mean_score, score.mean(0), mean_weight),
            BlockMoments(
                added(block.covariance, d.T, d),
                added(block.cross_covariance, columns, d),
                added(block.score_covariance, columns, e),
            ),
        )


initial_regression, observe = FullForm.initial_regression, FullForm.observe
screened, updated_moments = FullForm.screened, FullForm.updated_moments
whitened_step = FullForm.whitened_step

__all__ = [
    "BlockMoments",
    "FullForm",
    "FullRegression",
    "initial_regression",
    "is_warm",
    "observe",
    "screened",
    "updated_moments",
    "whitened_step",
]
