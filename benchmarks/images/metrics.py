"""Error, calibration and likelihood of predicted class probabilities.

Neither scikit-learn nor the hosts have a multi-class expected calibration error, so it is written
here. C. Guo, G. Pleiss, Y. Sun and K. Weinberger, "On Calibration of Modern Neural Networks",
2017, equation 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    # Bin m holds (m / M, (m + 1) / M].
    index = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    gap = np.bincount(index, right - confidence, minlength=bins)
    return float(np.abs(gap).sum() / len(confidence))


def figures(logits: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
    """All of the above for logits (draws, n, K) and labels (n,)."""
    probabilities = mixture_probabilities(logits)
    return {
        "error": error(probabilities, labels),
        "ECE": calibration_error(probabilities, labels),
        "all-class ECE": all_class_calibration_error(probabilities, labels),
        "NLL": negative_log_likelihood(probabilities, labels),
    }
