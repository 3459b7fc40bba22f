"""Series cut into windows, and the Fourier filter that the training windows give.

Splits, windows and scaling follow the protocol of H. Wu et al., "TimesNet: Temporal 2D-Variation
Modeling for General Time Series Analysis", 2023: 70 % training, 10 % validation and 20 % test in
time order, windows at every time step, values scaled by the training part's mean and standard
deviation.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.datasets import Series

Array = NDArray[Any]

TRAINING, TEST = 0.7, 0.2
#: Window and horizon of each series; M. Kim, section 5.4.
WINDOWS = {"exchange_rate": (96, 48), "illness": (48, 24), "weather": (96, 48)}
DEFAULT_WINDOW = (96, 48)
#: Segments of a window that the local dynamics are fitted to.
SEGMENTS = 4
#: Share of the frequencies that count as dominant.
DOMINANT = 0.2
#: Added to the variance of a window before it is scaled to one.
SMALL_VARIANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class Problem:
    """Windows x (n, window, channels) and what follows them y (n, horizon, channels), float32.

    ``invariant`` (window, window) is the Fourier filter of :func:`fourier_filter`.
    """

    name: str
    columns: tuple[str, ...]
    x_train: Array
    y_train: Array
    x_validation: Array
    y_validation: Array
    x_test: Array
    y_test: Array
    invariant: Array

    @property
    def window(self) -> int:
        """Time steps that a forecast sees."""
        return int(self.x_train.shape[1])

    @property
    def horizon(self) -> int:
        """Time steps that are forecast."""
        return int(self.y_train.shape[1])


def windows(values: Array, window: int, horizon: int, stride: int = 1) -> tuple[Array, Array]:
    """Every ``stride``-th window of a series (n, channels) and the values that follow it."""
    last = len(values) - window - horizon
    if last < 0:
        raise ValueError(
            f"Expected at least {window + horizon} time steps, found {len(values)}; take a shorter "
            "window or horizon."
        )
    starts = np.arange(0, last + 1, stride)
    x = np.stack([values[start : start + window] for start in starts])
    y = np.stack([values[start + window : start + window + horizon] for start in starts])
    return x, y


def make_problem(series: Series, thinned_to: int | None = None) -> Problem:
    """Split, scale and cut a series.

    Validation and test parts begin one window before their first forecast, so that each forecasts
    all of its own time steps and none of another part.

    Parameters
    ----------
    series : Series
    thinned_to : int, optional
        About this many validation and this many test windows are kept, evenly spaced. Default:
        all.
    """
    window, horizon = WINDOWS.get(series.name, DEFAULT_WINDOW)
    number = len(series.values)
    num_train, num_test = int(number * TRAINING), int(number * TEST)
    training = series.values[:num_train]
    spread = training.std(0)
    scaled = (series.values - training.mean(0)) / np.where(spread > 0, spread, 1.0)
    scaled = scaled.astype(np.float32)
    first_test = number - num_test
    x_train, y_train = windows(scaled[:num_train], window, horizon)

    def later(part: Array) -> tuple[Array, Array]:
        present = len(part) - window - horizon + 1
        stride = 1 if thinned_to is None else max(1, present // thinned_to)
        return windows(part, window, horizon, stride)

    return Problem(
        series.name,
        series.columns,
        x_train,
        y_train,
        *later(scaled[num_train - window : first_test]),
        *later(scaled[first_test - window :]),
        invariant=fourier_filter(standardised(x_train)),
    )


def standardised(x: Array) -> Array:
    """Windows (n, window, channels) minus their last value, over their standard deviation."""
    scale = np.sqrt(x.var(1, keepdims=True) + SMALL_VARIANCE)
    return np.asarray((x - x[:, -1:]) / scale)


def fourier_filter(x: Array, share: float = DOMINANT) -> Array:
    """Matrix (window, window) that keeps a window's dominant frequencies.

    Dominant are the ``share`` of frequencies whose amplitude, averaged over the windows and
    channels of ``x`` (n, window, channels), is largest. A window times this matrix, from the left,
    is its time-invariant part, and the rest of it the time-variant part. After Y. Liu et al.,
    "Koopa: Learning Non-stationary Time Series Dynamics with Koopman Predictors", 2023.
    """
    window = x.shape[1]
    amplitude = np.abs(np.fft.rfft(x, axis=1)).mean((0, 2))
    number = max(1, round(share * len(amplitude)))
    kept = np.zeros((len(amplitude), 1))
    kept[np.argsort(amplitude)[-number:]] = 1.0
    spectrum = np.fft.rfft(np.eye(window), axis=0)
    return np.fft.irfft(kept * spectrum, n=window, axis=0).astype(np.float32)
