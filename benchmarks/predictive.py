"""Figures of regression networks on test rows, from draws of their weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import norm

from benchmarks.datasets import Split

Array = NDArray[np.float64]
#: Draws of a network with one hidden layer of ReLU units: w1 (S, features, hidden), b1 (S, hidden),
#: w2 (S, hidden), b2 (S,), and the noise's standard deviation, noise (S,).
Draws = Mapping[str, Array]


def network_output(draws: Draws, x: Array) -> Array:
    """Outputs (S, N) at rows x (N, features)."""
    hidden = np.maximum(np.einsum("nd,sdh->snh", x, draws["w1"]) + draws["b1"][:, None], 0)
    return np.einsum("snh,sh->sn", hidden, draws["w2"]) + draws["b2"][:, None]


def mixture_log_likelihood(y: Array, mean: Array, scale: Array) -> float:
    """Mean over rows y (N,) of the log density of the equal mixture of Normals.

    Their means are (S, N), their standard deviations broadcast against these.
    """
    return float((logsumexp(norm.logpdf(y, mean, scale), axis=0) - np.log(len(mean))).mean())


def predictive_scores(draws: Draws, split: Split, noise_factor: float = 1.0) -> dict[str, float]:
    """Test RMSE and negative log likelihood of the mixture over draws, in original units.

    The noise's standard deviation is multiplied by the factor.
    """
    mean = network_output(draws, split.x_test) * split.y_scale
    truth = split.y_test * split.y_scale
    scale = noise_factor * draws["noise"][:, None] * split.y_scale
    return {
        "RMSE": float(np.sqrt(np.square(mean.mean(0) - truth).mean())),
        "NLL": -mixture_log_likelihood(truth, mean, scale),
    }
