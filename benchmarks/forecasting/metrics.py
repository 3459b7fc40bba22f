"""Errors and likelihood of forecasts that come as posterior draws.

The likelihood is that of M. Kim, appendix C: a mixture of Gaussians, one around each posterior
draw's forecast, with one variance chosen on the validation part. It is taken for each forecast
number on its own and averaged.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

Array = NDArray[Any]


def mean_square_error(draws: Array, y: Array) -> float:
    """Of the mean of the draws (S, n, horizon, channels) against y (n, horizon, channels)."""
    return float(np.square(draws.mean(0, dtype=np.float64) - y).mean())


def mean_absolute_error(draws: Array, y: Array) -> float:
    """Of the mean of the draws, as above."""
    return float(np.abs(draws.mean(0, dtype=np.float64) - y).mean())


def mixture_nll(draws: Array, y: Array, variance: float) -> float:
    """Mean of -log (1/S) sum_s Normal(y; draw s, variance) over all forecast numbers."""
    exponents = -0.5 * np.square(draws.astype(np.float64) - y) / variance
    densities = special.logsumexp(exponents, axis=0) - math.log(len(draws))
    return float(0.5 * math.log(2.0 * math.pi * variance) - densities.mean())


def best_variance(draws: Array, y: Array) -> float:
    """The mixture's variance with the lowest NLL on these forecasts, to 0.1 %."""
    # No larger than that of one Gaussian around all: the mixture has a spread of its own.
    largest = float(np.square(draws.astype(np.float64) - y).mean())
    if not 0.0 < largest < math.inf:
        raise ArithmeticError(f"expected forecasts that are finite and not exact, found {largest}.")
    found = optimize.minimize_scalar(
        lambda log_variance: mixture_nll(draws, y, math.exp(log_variance)),
        bounds=(math.log(largest) - 7.0, math.log(largest)),
        method="bounded",
        options={"xatol": 1e-3},
    )
    return math.exp(float(found.x))
