"""Closed form for diagonal Normal guides; see :mod:`ppl_ext.score_matching.regression.diagonal`."""

from __future__ import annotations

from ppl_ext.score_matching.regression import diagonal
from ppl_ext.score_matching.regression.diagonal import DiagonalRegression, schedule
from pyro_ext.score.regression.base import ClosedForm


class DiagonalForm(diagonal.DiagonalForm, ClosedForm[DiagonalRegression]):
    pass


observe, updated_moments = DiagonalForm.observe, DiagonalForm.updated_moments

__all__ = ["DiagonalForm", "DiagonalRegression", "observe", "schedule", "updated_moments"]
