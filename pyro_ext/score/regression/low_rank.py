"""Closed form for low-rank Normal guides; see :mod:`ppl_ext.regression.low_rank`."""

from __future__ import annotations

from torch.distributions import transform_to

from ppl_ext.regression import low_rank
from ppl_ext.regression.low_rank import LowRankMoments, LowRankRegression
from pyro_ext.guides.flat_density import Parameters
from pyro_ext.score.regression.base import ClosedForm


class LowRankForm(low_rank.LowRankForm, ClosedForm[LowRankRegression]):
    def moments(self, parameters: Parameters) -> LowRankMoments:
        scale = transform_to(self.density.guide.scale_constraint)(parameters["scale_unconstrained"])
        return LowRankMoments(parameters["loc"], scale, parameters["cov_factor"])

    def set_moments(self, moments: LowRankMoments) -> Parameters:
        transform = transform_to(self.density.guide.scale_constraint)
        return {
            "loc": moments.mean,
            "scale_unconstrained": transform.inv(moments.scale).clone(),
            "cov_factor": moments.factor,
        }


frame_of, observed = LowRankForm.frame_of, LowRankForm.observed
updated_guide = LowRankForm.updated_guide

__all__ = [
    "LowRankForm",
    "LowRankMoments",
    "LowRankRegression",
    "frame_of",
    "observed",
    "updated_guide",
]
