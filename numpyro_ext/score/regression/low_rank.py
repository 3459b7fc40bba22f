"""Closed form for low-rank Normal guides; see :mod:`ppl_ext.regression.low_rank`."""

from __future__ import annotations

from numpyro_ext.guides.flat_density import Parameters
from numpyro_ext.score.regression.base import ClosedForm
from ppl_ext.regression import low_rank
from ppl_ext.regression.low_rank import LowRankMoments, LowRankRegression


class LowRankForm(low_rank.LowRankForm, ClosedForm[LowRankRegression]):
    def _names(self) -> tuple[str, ...]:
        prefix = self.density.guide.prefix
        return tuple(f"{prefix}_{name}" for name in ("loc", "scale", "cov_factor"))

    def moments(self, parameters: Parameters) -> LowRankMoments:
        host = self.density.to_host(parameters)
        return LowRankMoments(*(host[name] for name in self._names()))

    def set_moments(self, moments: LowRankMoments) -> Parameters:
        values = dict(zip(self._names(), moments, strict=True))
        parameters: Parameters = self.density.from_host(values)
        return parameters


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
