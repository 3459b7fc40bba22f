"""What is said of predictions for held-out rows, where nothing exact can be afforded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppl_ext.diagnostics.predictive_metrics import predictive_metrics

if TYPE_CHECKING:
    from xarray import Dataset


def told_of_predictions(predicted: Dataset) -> str:
    """Log likelihood of held-out rows, and how far predictions are calibrated.

    It speaks of predictions, not of the posterior: wrong draws may predict well.
    """
    found = predictive_metrics(predicted)
    text = f"Held-out rows: log likelihood {float(found['log_likelihood']):.3f} each"
    if "calibration_error" in found:
        text += f", calibration error {float(found['calibration_error']):.3f}"
    return f"{text}. Predictions can be good where draws are wrong."
