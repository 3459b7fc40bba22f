"""How many independent draws those of chains are worth, from their autocorrelations.

A. Vehtari, A. Gelman, D. Simpson, B. Carpenter and P.-C. Buerkner, "Rank-normalization, folding,
and localization" (2021), equations 10 to 13, with C. Geyer's initial positive and initial monotone
sequences ("Practical Markov chain Monte Carlo", 1992).
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

#: Numbers that differ by so many grains of their precision at most are neighbours.
GRAINS = 32.0
#: Draws of a chain from which on its halves are two chains, which shows a chain that moves off.
LEAST_DRAWS = 4


@np.errstate(all="ignore")
def effective_number(draws: Float[np.ndarray, "N M D"]) -> Float[np.ndarray, " D"]:
    """Effective numbers (D,) of N draws of each of M chains, for their means.

    Chains are split in halves. Draws whose correlations alternate in sign may be worth more than
    independent ones, up to N M log10(N M). It is N M where nothing varies.
    """
    every = float(draws.shape[0] * draws.shape[1])
    if len(draws) >= LEAST_DRAWS:
        half = len(draws) // 2
        draws = np.concatenate([draws[:half], draws[-half:]], axis=1)
    number, chains, dim = draws.shape
    if number < 3:
        return np.full(dim, every)
    size = number * chains
    centered = draws - draws.mean(0)
    # With zeros behind the draws the circular correlations of the transform are those of lags.
    padded = 1 << (2 * number - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(centered, padded, axis=0)) ** 2
    covariances = np.fft.irfft(spectrum, padded, axis=0)[:number].mean(1) / number
    # The variance over all draws, (N - 1) / N W + B / N.
    total = covariances[0].copy()
    if chains > 1:
        total += draws.mean(0).var(0, ddof=1)
    within = covariances[0] * number / (number - 1)
    # Equation 10.
    correlations = 1.0 - (within - covariances) / total
    correlations[0] = 1.0
    count = (number - 1) // 2
    pairs = correlations[: 2 * count].reshape(count, 2, dim).sum(1)
    # The last pair that is looked at counts once, by its even term: the sum over lags is cut there.
    positive = np.logical_and.accumulate(pairs > 0.0, axis=0)
    positive[-1] = False
    last = positive.sum(0)
    # The initial monotone sequence: no pair counts more than those before it.
    falling = np.minimum.accumulate(np.where(positive, pairs, np.inf), axis=0)
    rest = np.maximum(correlations[2 * last, np.arange(dim)], 0.0)
    times = 2.0 * np.where(positive, falling, 0.0).sum(0) + rest - 1.0
    found = size / np.maximum(times, 1.0 / math.log10(size))
    # Sums of squares of equal numbers are of the order of their rounding.
    varies = np.ptp(draws, axis=(0, 1)) > 0.0
    return np.where(varies & (total > 0.0), found, every)


def distinct_number(columns: Float[np.ndarray, "S D"]) -> float:
    """What equal draws leave: S^2 over the sum of squared counts, which sees resampling.

    Where positions are rounded to neighbouring numbers, equal ones are no resampling.
    """
    most = np.unique(columns[:, np.ptp(columns, axis=0).argmax()])
    spacing = np.median(np.diff(most)) if len(most) > 1 else np.inf
    is_single = (most == most.astype(np.float32)).all()
    epsilon = np.finfo(np.float32 if is_single else np.float64).eps
    if spacing <= GRAINS * epsilon * np.abs(most).max():
        return float(len(columns))
    counts = np.unique(columns, axis=0, return_counts=True)[1]
    return float(len(columns) ** 2 / np.square(counts, dtype=np.float64).sum())


def weighted_number(weights: Float[np.ndarray, " S"]) -> float:
    """Independent draws that weighted ones are worth (L. Kish, "Survey sampling", 1965)."""
    return float(weights.sum() ** 2 / np.square(weights).sum())
