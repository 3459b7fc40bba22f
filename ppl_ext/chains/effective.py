"""How many independent draws those of chains are worth, from their autocorrelations.

A. Vehtari, A. Gelman, D. Simpson, B. Carpenter and P.-C. Buerkner, "Rank-normalization, folding,
and localization" (2021), equations 10 to 13, with C. Geyer's initial positive sequence ("Practical
Markov chain Monte Carlo", 1992). It serves any number of chains, one among them.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

#: Numbers in single precision that differ by so many grains at most are neighbours.
GRAINS = 32.0


@np.errstate(all="ignore")
def effective_number(draws: Float[np.ndarray, "N M D"]) -> Float[np.ndarray, " D"]:
    """Effective numbers (D,) of N draws of each of M chains; N M where nothing varies."""
    number, chains, dim = draws.shape
    centered = draws - draws.mean(0)
    size = 1 << (2 * number - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(centered, size, axis=0)) ** 2
    covariances = np.fft.irfft(spectrum, size, axis=0)[:number].mean(1) / number
    total = covariances[0].copy()
    if chains > 1:
        total += draws.mean(0).var(0, ddof=1)
    correlations = 1.0 - (covariances[0] - covariances) / total
    correlations[0] = 1.0
    pairs = correlations[: 2 * (number // 2)].reshape(-1, 2, dim).sum(1)
    kept = np.logical_and.accumulate(pairs > 0.0, axis=0)
    times = np.maximum(1.0, 2.0 * np.where(kept, pairs, 0.0).sum(0) - 1.0)
    most = float(number * chains)
    return np.where(total > 0.0, most / times, most)


def distinct_number(columns: Float[np.ndarray, "S D"]) -> float:
    """What equal draws leave: S^2 over the sum of squared counts, which sees resampling.

    Where positions are rounded to neighbouring numbers, equal ones are no resampling.
    """
    most = np.unique(columns[:, np.ptp(columns, axis=0).argmax()])
    spacing = np.median(np.diff(most)) if len(most) > 1 else np.inf
    if spacing <= GRAINS * np.finfo(np.float32).eps * np.abs(most).max():
        return float(len(columns))
    counts = np.unique(columns, axis=0, return_counts=True)[1]
    return float(len(columns) ** 2 / np.square(counts, dtype=np.float64).sum())
