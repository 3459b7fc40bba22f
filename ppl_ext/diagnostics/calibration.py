"""Calibration: do events of predicted probability p happen in a share p of the rows?

For classes after C. Guo, G. Pleiss, Y. Sun and K. Weinberger, "On Calibration of Modern Neural
Networks", 2017, https://arxiv.org/abs/1706.04599; for numbers after V. Kuleshov, N. Fenner and S.
Ermon, "Accurate Uncertainties for Deep Learning Using Calibrated Regression", 2018,
https://arxiv.org/abs/1807.00263, with central intervals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ppl_ext.diagnostics import predictive_data
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_choice, check_count, is_count

if TYPE_CHECKING:
    from xarray import Dataset

Array = NDArray[Any]

BINNINGS = ("width", "mass")
NUM_BINS = 15


def calibration_curve(
    predictive: Dataset,
    *,
    num_bins: int = NUM_BINS,
    binning: str = "width",
    label: int | None = None,
) -> Dataset:
    """The reliability diagram as numbers.

    Parameters
    ----------
    predictive : Dataset
        From ``predictive_distribution``, with observations.
    num_bins : int
        Bins of the predicted probability; for numbers one more than there are levels.
    binning : {"width", "mass"}
        Bins of equal width on (0, 1], or of equally many rows (quantiles of the predicted
        probabilities). A bin holds its upper edge and not its lower one.
    label : int, optional
        The class whose probability is looked at, against all others. Default: the most probable
        class of each row, whose probability is called the confidence.

    Returns
    -------
    Dataset
        Of classes, along ``bin``: the edges ``lower`` and ``upper``; ``confidence``, the mean
        predicted probability; ``frequency``, the share of rows in which it came true; and
        ``rows``, how many there are. Confidence and frequency of a bin without rows are NaN.
        Of numbers, along ``level``: ``coverage``, the share of rows inside the central interval
        of the mixture that has this probability; and ``pit``, the mixture's distribution function
        at each observation, which is uniform where the predictions are right.

    Raises
    ------
    ArgumentError
        There are no observations, or the distribution function of the site is not known.

    Examples
    --------
    >>> import xarray as xr
    >>> probabilities = [[[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [[0.7, 0.3], [0.2, 0.8], [0.2, 0.8]]]
    >>> predictive = xr.Dataset({  # two draws of three rows, as predictive_distribution gives it
    ...     "probabilities": (("draw", "row", "class"), probabilities),
    ...     "log_likelihood": (("draw", "row"), [[-0.1, -0.5, -0.2], [-0.4, -1.6, -0.2]]),
    ...     "observed": ("row", [0, 0, 1]),
    ... }, {"row": [0, 1, 2]})
    >>> curve = calibration_curve(predictive, num_bins=2)
    >>> print(int(curve["rows"].sum()), curve["frequency"].values[1].round(2))
    3 0.67
    >>> print(curve["confidence"].values[1].round(2))  # what was predicted
    0.73
    """
    predictive_data.require_observed(predictive, "calibration")
    check_count("num_bins", num_bins, 2)
    check_choice("binning", binning, BINNINGS)
    if not predictive_data.is_classification(predictive):
        if label is not None:
            raise ArgumentError("Expected no label for predicted numbers. Leave label out.")
        return _interval_curve(predictive, num_bins)
    import xarray

    confidence, hit = _confidence(predictive, label)
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    if binning == "mass":
        edges = np.quantile(confidence, edges)
    # The inner edges alone: what is at 0 or 1 belongs to the first or the last bin.
    index = np.searchsorted(edges[1:-1], confidence)
    rows = np.bincount(index, minlength=num_bins)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(index, confidence, minlength=num_bins) / rows
        frequency = np.bincount(index, hit, minlength=num_bins) / rows
    return xarray.Dataset(
        {
            "lower": ("bin", edges[:-1]),
            "upper": ("bin", edges[1:]),
            "confidence": ("bin", mean),
            "frequency": ("bin", frequency),
            "rows": ("bin", rows),
        },
        {"bin": np.arange(num_bins)},
        {"binning": binning, "label": "most probable" if label is None else label},
    )


def _confidence(predictive: Dataset, label: int | None) -> tuple[Array, Array]:
    """Predicted probability of an event for each row, and whether it happened, as 0 or 1."""
    probabilities = predictive_data.mixture_probabilities(predictive)
    probabilities = probabilities.reshape(-1, probabilities.shape[-1])
    classes = predictive_data.observed_classes(predictive).ravel()
    if label is None:
        return probabilities.max(1), (probabilities.argmax(1) == classes).astype(np.float64)
    number = probabilities.shape[1]
    if not is_count(label, 0) or label >= number:
        raise ArgumentError(f"Expected label to be a class from 0 to {number - 1}, found {label}.")
    return probabilities[:, label], (classes == label).astype(np.float64)


def _interval_curve(predictive: Dataset, num_bins: int) -> Dataset:
    import xarray

    if "cdf" not in predictive:
        raise ArgumentError(
            f"Expected the distribution function of site '{predictive.attrs.get('site')}', which "
            "is discrete or whose distribution function the host does not have. Predict a "
            "continuous site with one, such as a Normal."
        )
    # The mixture's distribution function is the mean of the draws' own.
    transform = predictive_data.draws_first(predictive, "cdf").mean(0, dtype=np.float64)
    levels = np.linspace(0.0, 1.0, num_bins + 1)[1:-1]
    # Inside the central interval of probability p: (1 - p) / 2 <= F(y) <= (1 + p) / 2.
    needed = np.abs(2.0 * transform.ravel() - 1.0)
    coverage = (needed <= levels[:, None]).mean(1)
    dims = ("row", "output")[: transform.ndim]
    return xarray.Dataset(
        {"coverage": ("level", coverage), "pit": (dims, transform)},
        {"level": levels, "row": predictive["row"].values},
    )


def calibration_error(curve: Dataset) -> float:
    """Expected calibration error of a calibration curve.

    Of classes, the mean of |frequency - confidence| weighted by the rows of the bins; of numbers,
    the mean of |coverage - level| over the levels.

    Raises
    ------
    ArgumentError
        It is no calibration curve.

    Examples
    --------
    >>> import xarray as xr
    >>> probabilities = [[[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [[0.7, 0.3], [0.2, 0.8], [0.2, 0.8]]]
    >>> predictive = xr.Dataset({  # two draws of three rows, as predictive_distribution gives it
    ...     "probabilities": (("draw", "row", "class"), probabilities),
    ...     "log_likelihood": (("draw", "row"), [[-0.1, -0.5, -0.2], [-0.4, -1.6, -0.2]]),
    ...     "observed": ("row", [0, 0, 1]),
    ... }, {"row": [0, 1, 2]})
    >>> print(f"{calibration_error(calibration_curve(predictive, num_bins=2)):.2f}")
    0.07
    """
    names = set(getattr(curve, "data_vars", ()))
    if not {"coverage"} <= names and not {"frequency", "confidence", "rows"} <= names:
        raise ArgumentError(
            "Expected the curve that calibration_curve(predictive) returns, found "
            f"{type(curve).__name__} with {sorted(map(str, names))}."
        )
    if "coverage" in curve:
        return float(np.abs(curve["coverage"] - curve["level"]).mean())
    gaps = np.abs(curve["frequency"] - curve["confidence"]) * curve["rows"]
    return float(gaps.sum() / curve["rows"].sum())
