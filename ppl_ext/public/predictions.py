"""What is made of predictions, and which draws stand for all: of the packages' diagnostics."""

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

__all__ = [
    "representative_draws",
    "predictive_metrics",
    "to_original_units",
    "calibration_curve",
    "calibration_error",
    "uncertainty_split",
    "uncertainty_score",
    "selective_prediction_curve",
    "out_of_distribution_score",
    "plot_reliability",
    "plot_selective_prediction",
    "plot_uncertainty",
]
