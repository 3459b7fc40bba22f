"""Closed form for full-covariance Normal guides; see :mod:`ppl_ext.regression.full`."""

from __future__ import annotations

from jax import Array
from jaxtyping import Float

from numpyro_ext.guides.normal import log_density
from numpyro_ext.score.regression.base import ClosedForm
from ppl_ext.regression import full
from ppl_ext.regression.full import BlockMoments, FullRegression, is_warm
from ppl_ext.regression.pairs import advanced, averaged, halves, next_mean_weight, next_weight
from ppl_ext.score import DECAY


class FullForm(full.FullForm, ClosedForm[FullRegression]):
    log_density = staticmethod(log_density)

    @staticmethod
    def observe(
        regression: FullRegression,
        theta: Float[Array, "S D"],
        score: Float[Array, "S D"],
        decay: float = DECAY,
        total: Array | int = 0,
    ) -> FullRegression:
        difference, score_difference = halves(theta), halves(score)
        pairs = len(difference)
        latest = BlockMoments(
            difference.T @ difference / pairs,
            score_difference.T @ difference / pairs,
            score_difference.T @ score_difference / pairs,
        )
        weight = next_weight(regression.seen, decay)
        mean_weight = next_mean_weight(regression.seen, decay, total)
        return FullRegression(
            advanced(regression.seen, pairs, weight),
            averaged(regression.mean_theta, theta.mean(0), mean_weight),
            averaged(regression.mean_score, score.mean(0), mean_weight),
            averaged(regression.block, latest, weight),
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
