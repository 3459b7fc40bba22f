"""Timing several ways of doing one thing in one run, so that their ratios can be trusted.

Machines drift: a figure from one minute does not compare with one from the next. The cases take
turns, each round times every case once, and ratios are taken within rounds before their median.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray


def alternate(
    cases: Mapping[str, Callable[[], object]], *, rounds: int = 7, seconds: float = 0.25
) -> dict[str, NDArray[np.float64]]:
    """Seconds per call of each case in each round, (rounds,) per case.

    A case is called often enough to take about ``seconds`` a round, at least once; one call before
    the first round compiles what there is to compile.
    """
    repeats = {}
    for name, call in cases.items():
        call()
        started = time.perf_counter()
        call()
        once = time.perf_counter() - started
        repeats[name] = max(1, min(10_000, round(seconds / max(once, 1e-9))))
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, call in cases.items():
            started = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            found[name].append((time.perf_counter() - started) / repeats[name])
    return {name: np.asarray(times) for name, times in found.items()}


def ratio(times: Mapping[str, NDArray[np.float64]], case: str, reference: str) -> float:
    """Median over rounds of the time of ``case`` over that of ``reference``."""
    return float(np.median(times[case] / times[reference]))


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
