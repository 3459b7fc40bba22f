"""Error, calibration and likelihood of predicted class probabilities.

Neither scikit-learn nor the hosts have a multi-class expected calibration error, so it is written
here. C. Guo, G. Pleiss, Y. Sun and K. Weinberger, "On Calibration of Modern Neural Networks",
2017, equation 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Array = NDArray[np.float64]

#: Bins of equal width on (0, 1].
BINS = 15
#: Probabilities below this count as this, so that one hopeless prediction is not infinitely bad.
SMALLEST = 1e-12


def mixture_probabilities(logits: NDArray[Any]) -> Array:
    """Mean over the draws of the class probabilities: logits (draws, n, K) to (n, K)."""
    shifted = logits.astype(np.float64)
    shifted = np.exp(shifted - shifted.max(-1, keepdims=True))
    return np.asarray((shifted / shifted.sum(-1, keepdims=True)).mean(0))


def negative_log_likelihood(probabilities: Array, labels: NDArray[Any]) -> float:
    """Mean of -log p(label); probabilities (n, K), labels (n,)."""
    chosen = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(chosen, SMALLEST)).mean())


def error(probabilities: Array, labels: NDArray[Any]) -> float:
    """Share of the rows whose most probable class is not the label."""
    return float((probabilities.argmax(1) != labels).mean())


def calibration_error(probabilities: Array, labels: NDArray[Any], bins: int = BINS) -> float:
    """Expected calibration error of the top label.

    Rows are put into bins of equal width by their largest probability; the result is the mean,
    weighted by the rows of a bin, of |share of right predictions - mean confidence|.
    """
    return _binned_gap(probabilities.max(1), probabilities.argmax(1) == labels, bins)


def all_class_calibration_error(
    probabilities: Array, labels: NDArray[Any], bins: int = BINS
) -> float:
    """Expected calibration error of the probabilities of all classes, top or not.

    The formula of M. Kim, "Large-scale Score-based Variational Posterior Inference for Bayesian
    Deep Neural Networks", section 5.2, with bins of equal width: all n K predictions are binned
    and weighted by size / (n K). Its further factor 1/M, M the number of bins, is left out, as the
    weights sum to one already.
    """
    right = labels[:, None] == np.arange(probabilities.shape[1])
    return _binned_gap(probabilities.ravel(), right.ravel(), bins)


def _binned_gap(confidence: Array, right: NDArray[Any], bins: int) -> float:
    gap = np.bincount(_bin_of(confidence, bins), right - confidence, minlength=bins)
    return float(np.abs(gap).sum() / len(confidence))


def _bin_of(confidence: Array, bins: int) -> NDArray[np.int64]:
    # Bin m holds (m / M, (m + 1) / M].
    return np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)


def reliability(
    probabilities: Array, labels: NDArray[Any], bins: int = BINS
) -> dict[str, list[float]]:
    """The reliability diagram of the top label, bin by bin.

    "confidence" is the mean of the largest probability, "accuracy" the share of right predictions,
    both NaN in bins without rows, and "rows" the number of rows.
    """
    confidence = probabilities.max(1)
    right = (probabilities.argmax(1) == labels).astype(np.float64)
    index = _bin_of(confidence, bins)
    rows = np.bincount(index, minlength=bins)
    with np.errstate(invalid="ignore"):
        found = {
            "confidence": np.bincount(index, confidence, minlength=bins) / rows,
            "accuracy": np.bincount(index, right, minlength=bins) / rows,
            "rows": rows,
        }
    return {name: values.tolist() for name, values in found.items()}


def brier_score(probabilities: Array, labels: NDArray[Any]) -> float:
    """Mean over rows of the squared distance to the label's unit vector, from 0 to 2."""
    wanted = labels[:, None] == np.arange(probabilities.shape[1])
    return float(((probabilities - wanted) ** 2).sum(1).mean())


def area_under_roc(probabilities: Array, labels: NDArray[Any]) -> float:
    """Mean over classes, each against all others, of the area under the ROC curve.

    It is the chance that a row of the class has a larger probability for it than a row of another
    class, ties counting half. Classes that no row or every row has are left out; NaN without any
    class.
    """
    areas = []
    for column in range(probabilities.shape[1]):
        inside = labels == column
        own, others = int(inside.sum()), int((~inside).sum())
        if own and others:
            ranks = rankdata(probabilities[:, column])[inside].sum()
            areas.append((ranks - own * (own + 1) / 2) / (own * others))
    return float(np.mean(areas)) if areas else float("nan")


def classification(logits: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
    """Figures of the mixture for logits (draws, n, K) and labels (n,).

    "NLL of mean logits" is the likelihood of the class probabilities that the mean of the draws'
    logits has, in place of the mean of their probabilities.
    """
    probabilities = mixture_probabilities(logits)
    return {
        "accuracy": 1.0 - error(probabilities, labels),
        "NLL": negative_log_likelihood(probabilities, labels),
        "ECE": calibration_error(probabilities, labels),
        "Brier": brier_score(probabilities, labels),
        "AUROC": area_under_roc(probabilities, labels),
        "NLL of mean logits": negative_log_likelihood(
            mixture_probabilities(logits.mean(0, keepdims=True)), labels
        ),
    }


def figures(logits: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
    """All of the above for logits (draws, n, K) and labels (n,)."""
    probabilities = mixture_probabilities(logits)
    return {
        "error": error(probabilities, labels),
        "ECE": calibration_error(probabilities, labels),
        "all-class ECE": all_class_calibration_error(probabilities, labels),
        "NLL": negative_log_likelihood(probabilities, labels),
    }
