"""Figures that judge predictions on test rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from ppl_ext.diagnostics import predictive_data
from ppl_ext.diagnostics.calibration import NUM_BINS, calibration_curve, calibration_error

if TYPE_CHECKING:
    from xarray import Dataset

Array = NDArray[Any]


def predictive_metrics(
    predictive: Dataset, *, num_bins: int = NUM_BINS, binning: str = "width"
) -> Dataset:
    """Figures of the mixture over draws.

    Parameters
    ----------
    predictive : Dataset
        From ``predictive_distribution``, with observations. Figures of continuous sites are in
        the units of the observations; see ``to_original_units``.
    num_bins, binning
        As in ``calibration_curve``.

    Returns
    -------
    Dataset
        Scalars. ``log_likelihood``: mean over rows of the log density of the mixture, noise
        included. ``calibration_error``: of the most probable class, or of central intervals; left
        out for numbers whose distribution function is not known.
        Of classes, ``accuracy``: share of the rows whose most probable class is the observed one;
        ``brier``: mean squared distance to the observed class's unit vector, from 0 to 2;
        ``auroc``: area under the ROC curve, of class 1 where there are two, else the mean over
        the classes, each against all others, leaving out those that no row or every row has.
        Of numbers, ``rmse``: root mean squared error of the mixture's mean.

    Raises
    ------
    ArgumentError
        There are no observations.
    ImportError
        scikit-learn is not installed, for the area under the ROC curve.

    Examples
    --------
    >>> import xarray as xr
    >>> probabilities = [[[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [[0.7, 0.3], [0.2, 0.8], [0.2, 0.8]]]
    >>> predictive = xr.Dataset({  # two draws of three rows, as predictive_distribution gives it
    ...     "probabilities": (("draw", "row", "class"), probabilities),
    ...     "log_likelihood": (("draw", "row"), [[-0.1, -0.5, -0.2], [-0.4, -1.6, -0.2]]),
    ...     "observed": ("row", [0, 0, 1]),
    ... }, {"row": [0, 1, 2]})
    >>> metrics = predictive_metrics(predictive)
    >>> print(f"{float(metrics['accuracy']):.2f} {float(metrics['brier']):.2f}")
    0.67 0.29
    """
    import xarray

    classes = predictive_data.is_classification(predictive)
    predictive_data.require_observed(predictive, "predictive metrics")
    figures = {"log_likelihood": float(predictive_data.mixture_log_likelihood(predictive).mean())}
    if classes:
        figures |= _of_classes(predictive)
    else:
        error = predictive_data.mixture_mean(predictive) - np.asarray(predictive["observed"].values)
        figures["rmse"] = float(np.sqrt(np.square(error).mean()))
    if classes or "cdf" in predictive:
        curve = calibration_curve(predictive, num_bins=num_bins, binning=binning)
        figures["calibration_error"] = calibration_error(curve)
    attributes = {"num_bins": num_bins, "binning": binning}
    return xarray.Dataset(figures, attrs={**predictive.attrs, **attributes})


def _of_classes(predictive: Dataset) -> dict[str, float]:
    probabilities = predictive_data.mixture_probabilities(predictive)
    number = probabilities.shape[-1]
    probabilities = probabilities.reshape(-1, number)
    labels = predictive_data.observed_classes(predictive).ravel()
    distance = np.square(probabilities - np.eye(number)[labels]).sum(1)
    areas = []
    # Of two classes both areas are the same.
    for label in range(number) if number > 2 else [1]:
        own = labels == label
        if own.any() and not own.all():
            areas.append(area_under_roc(own, probabilities[:, label]))
    return {
        "accuracy": float((probabilities.argmax(1) == labels).mean()),
        "brier": float(distance.mean()),
        "auroc": float(np.mean(areas)) if areas else float("nan"),
    }


def area_under_roc(positive: Bool[Array, " N"], score: Float[Array, " N"]) -> float:
    """Chance that a positive row has a larger score than another row, ties counting half.

    Raises
    ------
    ImportError
        scikit-learn is not installed.
    """
    try:
        from sklearn.metrics import roc_auc_score
    except ImportError as error:
        raise ImportError(
            "The area under the ROC curve needs scikit-learn, which is not installed. Install it "
            "with `pip install scikit-learn`, or ppl-ext with its extra `diagnostics`."
        ) from error
    return float(roc_auc_score(positive, score))
