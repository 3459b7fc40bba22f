"""Looking at a fit: conversion to ArviZ, how far the fit is from its target, what it predicts."""

from numpyro_ext.diagnostics.arviz import to_arviz
from numpyro_ext.diagnostics.importance import elbo, psis_khat
from numpyro_ext.diagnostics.predictive import predictions, predictive_distribution
from numpyro_ext.diagnostics.stein_discrepancy import ksd
from numpyro_ext.engine import RunResult
from ppl_ext.diagnostics.calibration import calibration_curve, calibration_error
from ppl_ext.diagnostics.plots import (
    plot_reliability,
    plot_selective_prediction,
    plot_uncertainty,
)
from ppl_ext.diagnostics.predictive_data import to_original_units
from ppl_ext.diagnostics.predictive_metrics import predictive_metrics
from ppl_ext.diagnostics.representative import representative_draws
from ppl_ext.diagnostics.uncertainty import (
    out_of_distribution_score,
    selective_prediction_curve,
    uncertainty_score,
    uncertainty_split,
)

RunResult.looked_at_by(to_arviz, predictions)

__all__ = [
    "calibration_curve",
    "calibration_error",
    "elbo",
    "ksd",
    "out_of_distribution_score",
    "plot_reliability",
    "plot_selective_prediction",
    "plot_uncertainty",
    "predictive_distribution",
    "predictive_metrics",
    "psis_khat",
    "representative_draws",
    "selective_prediction_curve",
    "to_arviz",
    "to_original_units",
    "uncertainty_score",
    "uncertainty_split",
]
