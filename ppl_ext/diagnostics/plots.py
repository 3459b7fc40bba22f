"""Plots of predictions, in the manner of ArviZ: data in, matplotlib axes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ppl_ext.diagnostics.calibration import NUM_BINS, calibration_curve, calibration_error
from ppl_ext.diagnostics.predictive_data import is_classification, mixture_mean
from ppl_ext.diagnostics.uncertainty import selective_prediction_curve, uncertainty_split
from ppl_ext.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from xarray import Dataset

Array = NDArray[Any]


def plt_or_error() -> Any:
    """matplotlib's pyplot.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "Plots need matplotlib, which is not installed. Install it with `pip install "
            "matplotlib`, or ppl-ext with its extra `plots`."
        ) from error
    return plt


def axes_or_new(ax: Axes | None) -> Axes:
    """The axes that are given, or those of a new figure."""
    return plt_or_error().subplots(layout="constrained")[1] if ax is None else ax


def plot_reliability(
    predictive: Dataset,
    *,
    num_bins: int = NUM_BINS,
    binning: str = "width",
    label: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Reliability diagram: what was predicted against what came true.

    Of classes the line is the frequency over the confidence of each bin, and the grey bars are
    the bins' shares of the rows; of numbers it is the coverage of central intervals over their
    probability. Predictions that are right in the long run lie on the diagonal.

    Parameters
    ----------
    predictive, num_bins, binning, label
        As in ``calibration_curve``.
    ax : Axes, optional
        Default: those of a new figure.

    Raises
    ------
    ImportError
        matplotlib is not installed.

    Examples
    --------
    >>> import xarray as xr
    >>> probabilities = [[[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [[0.7, 0.3], [0.2, 0.8], [0.2, 0.8]]]
    >>> predictive = xr.Dataset({  # two draws of three rows, as predictive_distribution gives it
    ...     "probabilities": (("draw", "row", "class"), probabilities),
    ...     "log_likelihood": (("draw", "row"), [[-0.1, -0.5, -0.2], [-0.4, -1.6, -0.2]]),
    ...     "observed": ("row", [0, 0, 1]),
    ... }, {"row": [0, 1, 2]})
    >>> axes = plot_reliability(predictive, num_bins=2)
    >>> print(axes.get_xlabel(), "|", axes.get_ylabel())
    confidence | accuracy
    """
    curve = calibration_curve(predictive, num_bins=num_bins, binning=binning, label=label)
    ax = axes_or_new(ax)
    ax.plot([0, 1], [0, 1], color="0.5", linestyle=":", label="calibrated")
    error = f"calibration error {calibration_error(curve):.3f}"
    if "coverage" in curve:
        ax.plot(curve["level"], curve["coverage"], marker="o", clip_on=False, label=error)
        ax.set(xlabel="probability of the central interval", ylabel="coverage")
    else:
        # Bins without rows have no frequency, and would break the line.
        filled = curve.isel(bin=np.flatnonzero(curve["rows"].values))
        width = curve["upper"] - curve["lower"]
        share = curve["rows"] / curve["rows"].sum()
        ax.bar(curve["lower"], share, width, align="edge", color="0.85", label="share of the rows")
        ax.plot(filled["confidence"], filled["frequency"], marker="o", clip_on=False, label=error)
        ax.set(
            xlabel="confidence" if label is None else f"probability of class {label}",
            ylabel="accuracy" if label is None else f"share of class {label}",
        )
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.legend()
    return ax


def plot_selective_prediction(
    predictive: Dataset | Mapping[str, Dataset],
    *,
    measure: str = "total",
    ax: Axes | None = None,
) -> Axes:
    """Error of the predictions kept, over the share of the rows that are kept.

    Solid: the least uncertain rows are kept. Dashed: the rows with the smallest errors. The end at
    the right is the error of all rows.

    Parameters
    ----------
    predictive : Dataset or mapping of str to Dataset
        From ``predictive_distribution``, with observations; several by name are compared.
    measure
        What uncertainty is, as in ``uncertainty_score``.
    ax : Axes, optional
        Default: those of a new figure.

    Raises
    ------
    ImportError
        matplotlib is not installed.

    Examples
    --------
    >>> import xarray as xr
    >>> probabilities = [[[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [[0.7, 0.3], [0.2, 0.8], [0.2, 0.8]]]
    >>> predictive = xr.Dataset({  # two draws of three rows, as predictive_distribution gives it
    ...     "probabilities": (("draw", "row", "class"), probabilities),
    ...     "log_likelihood": (("draw", "row"), [[-0.1, -0.5, -0.2], [-0.4, -1.6, -0.2]]),
    ...     "observed": ("row", [0, 0, 1]),
    ... }, {"row": [0, 1, 2]})
    >>> axes = plot_selective_prediction({"engine": predictive})
    >>> print(axes.get_xlabel(), "|", axes.get_ylabel())
    share of the rows that are kept | error rate
    """
    import xarray

    # A dataset is a mapping, too.
    several = {"": predictive} if isinstance(predictive, xarray.Dataset) else predictive
    curves = {
        name: selective_prediction_curve(each, measure=measure) for name, each in several.items()
    }
    ax = axes_or_new(ax)
    risk = ""
    for name, curve in curves.items():
        label = f"{name or measure}, area {float(curve['area']):.3g}"
        (line,) = ax.plot(curve["coverage"], curve["risk"], label=label)
        oracle = f"oracle, area {float(curve['oracle_area']):.3g}"
        ax.plot(
            curve["coverage"],
            curve["oracle_risk"],
            color=line.get_color(),
            linestyle="--",
            label=oracle if not name else f"{name}, {oracle}",
        )
        risk = curve.attrs["risk"]
    ax.set(xlabel="share of the rows that are kept", ylabel=risk, xlim=(0, 1))
    ax.set_ylim(bottom=0)
    ax.legend()
    return ax


def plot_uncertainty(
    predictive: Dataset,
    x: Any = None,
    *,
    num_deviations: float = 2.0,
    ax: Axes | None = None,
) -> Axes:
    """Aleatoric and epistemic uncertainty of each row.

    Of numbers the mean of the mixture with two bands, of epistemic and of total uncertainty, and
    the observations where there are any; of classes the two parts of the entropy, one upon the
    other.

    Parameters
    ----------
    predictive : Dataset
        From ``predictive_distribution``, with one output for each row.
    x : array (rows,), optional
        Where each row is drawn. Default: rows by their number, of classes by their entropy.
    num_deviations : float
        Half width of the bands in standard deviations.
    ax : Axes, optional
        Default: those of a new figure.

    Raises
    ------
    ArgumentError
        ``x`` has another length, or rows have several outputs.
    ImportError
        matplotlib is not installed.

    Examples
    --------
    >>> import xarray as xr
    >>> predictive = xr.Dataset({  # two draws of three rows, as predictive_distribution gives it
    ...     "mean": (("draw", "row"), [[0.0, 1.0, 2.0], [0.0, 1.0, 4.0]]),
    ...     "variance": (("draw", "row"), [[0.25, 0.25, 0.25], [0.25, 0.25, 0.25]]),
    ...     "log_likelihood": (("draw", "row"), [[-0.2, -0.4, -2.2], [-0.2, -0.4, -2.2]]),
    ...     "observed": ("row", [0.0, 1.3, 3.0]),
    ... }, {"row": [0, 1, 2]})
    >>> axes = plot_uncertainty(predictive, x=[0.0, 1.0, 2.0])
    >>> print(axes.get_legend_handles_labels()[1])
    ['total', 'epistemic', 'mean', 'observed']
    """
    if "output" in predictive.dims:
        raise ArgumentError(
            f"Expected one output for each row, found {predictive.sizes['output']}. Pass one of "
            "them: predictive.isel(output=0)."
        )
    split = uncertainty_split(predictive)
    classes = is_classification(predictive)
    given = x is not None
    position = np.asarray(x if given else predictive["row"].values)
    if position.shape != split["total"].shape:
        raise ArgumentError(
            f"Expected x of {split.sizes['row']} rows, found an array of shape {position.shape}."
        )
    order = np.argsort(split["total"].values if classes and not given else position)
    if classes and not given:
        position = np.sort(position)
    else:
        position = position[order]
    parts = {name: split[name].values[order] for name in ("aleatoric", "epistemic", "total")}
    ax = axes_or_new(ax)
    if classes:
        ax.stackplot(
            position, parts["aleatoric"], parts["epistemic"], labels=["aleatoric", "epistemic"]
        )
        ax.set(ylabel="entropy in nats", xlabel="" if given else "rows by their entropy")
    else:
        mean = mixture_mean(predictive)[order]
        for name, alpha, label in (("total", 0.2, "total"), ("epistemic", 0.4, "epistemic")):
            half = num_deviations * np.sqrt(parts[name])
            ax.fill_between(
                position, mean - half, mean + half, color="C0", alpha=alpha, lw=0, label=label
            )
        ax.plot(position, mean, color="C0", label="mean")
        if "observed" in predictive:
            observed = predictive["observed"].values[order]
            ax.plot(position, observed, ".", color="0.2", markersize=4, label="observed")
        ax.set(ylabel=predictive.attrs.get("site", ""), xlabel="" if given else "row")
    ax.legend()
    return ax
