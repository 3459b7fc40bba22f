"""What the tests of diagnostics share: data of a conjugate model, and what is known of it."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

#: Rows of the conjugate model: mu ~ N(0, 3), y ~ N(mu, 2).
N = 40
Y = np.linspace(-2.0, 4.0, N) + np.sin(np.linspace(0.0, 3.0, N))


def posterior(temperature: float = 1.0) -> tuple[float, float]:
    """Mean and standard deviation of mu."""
    precision = 1 / 9 + N / 4 / temperature
    return float(Y.sum() / 4 / temperature / precision), precision**-0.5


def conjugate_score(mu: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Gradient of the log density at mu."""
    return -mu / 9 + (Y.sum() - N * mu) / 4 / temperature


def log_evidence(temperature: float = 1.0) -> float:
    """Log of the integral of prior times likelihood^(1/temperature), by quadrature."""
    mu = np.linspace(-4.0, 8.0, 20_001)
    log_likelihood = stats.norm(mu[:, None], 2.0).logpdf(Y).sum(1) / temperature
    log_joint = stats.norm(0.0, 3.0).logpdf(mu) + log_likelihood
    peak = log_joint.max()
    return peak + math.log(np.trapezoid(np.exp(log_joint - peak), mu))


def kl_normal(mean: float, scale: float, other_mean: float, other_scale: float) -> float:
    """Divergence of one Normal from another."""
    ratio, shift = scale / other_scale, (mean - other_mean) / other_scale
    return 0.5 * (ratio**2 + shift**2 - 1.0) - math.log(ratio)
