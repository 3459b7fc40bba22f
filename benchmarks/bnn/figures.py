"""Test figures of networks, from draws of their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.bnn.methods import Draws, Floats
from benchmarks.datasets import Task
from benchmarks.images.metrics import calibration_error
from benchmarks.predictive import mixture_log_likelihood

#: Added to the variance in the paper's likelihood, as torch's GaussianNLLLoss does.
LEAST_VARIANCE = 1e-6
#: Probabilities are kept so far from 0 and 1, so that one hopeless one is not infinitely bad.
SMALLEST = 1e-12


def network_output(draws: Draws, x: Floats) -> Floats:
    """Outputs (S, N) of S networks at rows x (N, features).

    Where the draws hold a mode, of the network made linear in its weights there.
    """
    if "mode w1" in draws:
        return _linear_output(draws, x)
    layers = _layers(draws)
    output = np.asarray(x, draws["w1"].dtype)
    for layer in range(1, layers + 1):
        output = output @ draws[f"w{layer}"] + draws[f"b{layer}"][:, None]
        if layer < layers:
            output = np.maximum(output, 0.0)
    return np.asarray(output[..., 0], np.float64)


def _layers(draws: Draws) -> int:
    return sum(name.startswith("w") for name in draws)


def _linear_output(draws: Draws, x: Floats) -> Floats:
    """Outputs (S, N) at the mode, and what they change by along the way from it to each draw.

    The change is the product of the Jacobian at the mode and that way, layer by layer as in
    forward mode.
    """
    layers = _layers(draws)
    output = np.asarray(x, draws["w1"].dtype)
    change = np.zeros_like(output)
    for layer in range(1, layers + 1):
        w, b = draws[f"mode w{layer}"][0], draws[f"mode b{layer}"][0]
        change = change @ w + output @ (draws[f"w{layer}"] - w) + (draws[f"b{layer}"] - b)[:, None]
        output = output @ w + b
        if layer < layers:
            change = np.where(output > 0.0, change, 0.0)
            output = np.maximum(output, 0.0)
    return np.asarray((output + change)[..., 0], np.float64)


def regression_figures(mean: Floats, noise: Floats, y: Floats, scale: float) -> dict[str, float]:
    """Figures in original units from standardised means (S, N), noise (S,) and responses (N,).

    "NLL" is that of the mixture over draws, with the noise that each has learnt. "paper's NLL" is
    that of Flöge et al., equation C.2: of a Normal with the mean of the draws and their variance
    alone, without noise and without the constant log(2 pi) / 2.
    """
    mean, truth, noise = mean * scale, y * scale, noise[:, None] * scale
    variance = np.maximum(mean.var(axis=0), LEAST_VARIANCE)
    error = np.square(mean.mean(axis=0) - truth)
    return {
        "RMSE": float(np.sqrt(error.mean())),
        "NLL": -mixture_log_likelihood(truth, mean, noise),
        "paper's NLL": float(0.5 * (np.log(variance) + error / variance).mean()),
        "noise": float(noise.mean()),
    }


def classification_figures(logits: Floats, y: NDArray[Any]) -> dict[str, float]:
    """Figures of two classes from logits (S, N) of class 1 and labels (N,), 0 or 1.

    "NLL" is that of the mean probability. "paper's NLL" is that of the mean logit. The Brier score
    is the sum over both classes, as in the paper's table.
    """
    labels = np.asarray(y, np.int64)
    probability = np.clip(expit(logits).mean(axis=0), SMALLEST, 1.0 - SMALLEST)
    both = np.column_stack([1.0 - probability, probability])
    sign = np.where(labels == 1, 1.0, -1.0)
    return {
        "accuracy": float((both.argmax(axis=1) == labels).mean()),
        "NLL": float(-np.log(both[np.arange(len(labels)), labels]).mean()),
        "paper's NLL": float(np.logaddexp(0.0, -sign * logits.mean(axis=0)).mean()),
        "ECE": calibration_error(both, labels),
        "Brier": float(2.0 * np.square(probability - labels).mean()),
        "AUROC": area_under_curve(probability, labels),
    }


def area_under_curve(score: Floats, labels: NDArray[Any]) -> float:
    """Chance that a row of class 1 has a higher score than one of class 0, ties counting half.

    NaN where a class is absent.
    """
    positive, negative = score[labels == 1], np.sort(score[labels == 0])
    if not len(positive) or not len(negative):
        return float("nan")
    below = np.searchsorted(negative, positive, "left")
    ties = np.searchsorted(negative, positive, "right") - below
    return float((below + 0.5 * ties).mean() / len(negative))


def figures(task: Task, draws: Draws, x: Floats, y: NDArray[Any], scale: float) -> dict[str, float]:
    """Figures at standardised rows; ``scale`` brings a standardised response back."""
    output = network_output(draws, x)
    if task == "regression":
        return regression_figures(output, np.asarray(draws["noise"], np.float64), y, scale)
    return classification_figures(output, y)
