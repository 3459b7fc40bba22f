"""Closed form for low-rank Normal guides; see :mod:`ppl_ext.score_matching.regression.low_rank`."""

from __future__ import annotations

from numpyro_ext.score.regression.base import ClosedForm
from ppl_ext.score_matching.regression import low_rank
from ppl_ext.score_matching.regression.low_rank import LowRankMoments, LowRankRegression


class LowRankForm(low_rank.LowRankForm, ClosedForm[LowRankRegression]):
    pass


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
