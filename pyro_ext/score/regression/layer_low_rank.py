"""Closed form for guides with low-rank layers; see :mod:`ppl_ext.regression.layer_low_rank`."""

from __future__ import annotations

from ppl_ext.regression import layer_low_rank
from ppl_ext.regression.layer_low_rank import LayerLowRankRegression
from pyro_ext.score.regression.base import ClosedForm
from pyro_ext.score.regression.full import FullForm
from pyro_ext.score.regression.low_rank import LowRankForm


class LayerLowRankForm(layer_low_rank.LayerLowRankForm, ClosedForm[LayerLowRankRegression]):
    large, small = LowRankForm, FullForm


__all__ = ["LayerLowRankForm", "LayerLowRankRegression"]
