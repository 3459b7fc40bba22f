"""The generalised Pareto distribution of the largest of positive numbers.

J. Zhang and M. Stephens, "A new and efficient estimation method for the generalized Pareto
distribution" (2009), with the prior of A. Vehtari, D. Simpson, A. Gelman, Y. Yao and J. Gabry,
"Pareto smoothed importance sampling" (2024), appendix C.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

#: The shape's prior, at 0.5, counts as much as so many ratios of the tail.
PRIOR_RATIOS = 10


def tail_length(number: int) -> int:
    """Numbers of a sample that are its tail, as Vehtari and others take it."""
    return math.ceil(min(number / 5, 3 * math.sqrt(number)))


def pareto_shape(excesses: Float[np.ndarray, " T"]) -> float:
    """Shape of the generalised Pareto distribution of positive numbers in ascending order."""
    return pareto_fit(excesses)[0]


def pareto_fit(excesses: Float[np.ndarray, " T"]) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto distribution of positive numbers in ascending order.

    The posterior mean of Zhang and Stephens on a grid of b = -shape / scale, for which the best
    shape is known, drawn towards 0.5 as Vehtari and others do.
    """
    number = len(excesses)
    points = 30 + int(math.sqrt(number))
    grid = 1.0 - np.sqrt(points / (np.arange(points) + 0.5))
    grid = grid / (3.0 * excesses[int(number / 4 + 0.5) - 1]) + 1.0 / excesses[-1]
    # A fit that fails announces itself by warnings of NumPy.
    with np.errstate(all="ignore"):
        shapes = np.log1p(-grid[:, None] * excesses).mean(1)
        log_likelihood = number * (np.log(-grid / shapes) - shapes - 1.0)
        weights = np.exp(log_likelihood - log_likelihood.max())
        b = (grid * weights).sum() / weights.sum()
        shape = np.log1p(-b * excesses).mean()
        scale = float(-shape / b)
    shape = (number * shape + PRIOR_RATIOS * 0.5) / (number + PRIOR_RATIOS)
    return (math.inf, math.nan) if math.isnan(shape) else (float(shape), scale)
