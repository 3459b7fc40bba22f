"""How many independent draws a set of draws is worth, column by column."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def effective_number(columns: Floats) -> Floats:
    """Effective numbers (M,) of draws (n, M) in the order in which they were made.

    The smaller of two numbers. One is n over the integrated autocorrelation time, by C. Geyer's
    initial positive sequence ("Practical Markov chain Monte Carlo", 1992), which sees slow chains,
    and chains that stand one after the other without having met. The other is n^2 over the sum of
    squared counts of equal draws, which sees draws that were resampled: of n out of S with equal
    weights it leaves 1 / (1 / n + 1 / S).
    """
    of_time = len(columns) / autocorrelation_time(columns)
    return np.minimum(of_time, [distinct(column) for column in columns.T])


def distinct(column: Floats) -> float:
    """n^2 over the sum of squared counts of equal draws."""
    counts = np.unique(column, return_counts=True)[1]
    return float(len(column) ** 2 / np.square(counts, dtype=np.float64).sum())


def autocorrelation_time(columns: Floats) -> Floats:
    """Integrated autocorrelation times (M,), at least 1, of draws (n, M); n where nothing varies.

    Sums of neighbouring autocorrelations are added up until one is negative.
    """
    number = len(columns)
    centred = columns - columns.mean(0)
    scales = np.abs(centred).max(0)
    centred = centred / np.where(scales > 0.0, scales, 1.0)
    size = 1 << (2 * number - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(centred, size, axis=0)) ** 2
    covariance = np.fft.irfft(spectrum, size, axis=0)[:number]
    variance = np.where(scales > 0.0, covariance[0], 1.0)
    correlation = covariance[: 2 * (number // 2)] / variance
    pairs = correlation.reshape(-1, 2, correlation.shape[1]).sum(1)
    kept = np.logical_and.accumulate(pairs > 0.0, axis=0)
    times = 2.0 * np.where(kept, pairs, 0.0).sum(0) - 1.0
    return np.where(scales > 0.0, np.clip(times, 1.0, number), float(number))
