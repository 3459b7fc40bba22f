"""Closed form for guides with low-rank layers.

See :mod:`ppl_ext.score_matching.regression.layer_low_rank`.
"""

from __future__ import annotations

from ppl_ext.score_matching.regression import layer_low_rank
from ppl_ext.score_matching.regression.layer_low_rank import LayerLowRankRegression
from pyro_ext.score.regression.base import ClosedForm
from pyro_ext.score.regression.full import FullForm
from pyro_ext.score.regression.low_rank import LowRankForm


class LayerLowRankForm(layer_low_rank.LayerLowRankForm, ClosedForm[LayerLowRankRegression]):
    large, small = LowRankForm, FullForm


__all__ = ["LayerLowRankForm", "LayerLowRankRegression"]
