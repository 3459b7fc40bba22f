"""Data of the benchmark, from seeds: a logistic regression and a small regression network."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

ROWS, FEATURES, BATCH = 10_000, 20, 100
#: The network: inputs, hidden units, and the rows that it sees.
INPUTS, HIDDEN, NETWORK_ROWS, NETWORK_BATCH = 8, 50, 1_000, 100
CHAINS = 8


def logistic_rows() -> tuple[Array, Array]:
    """(N, D) inputs of unequal scale and (N,) labels."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, FEATURES)) * np.linspace(0.3, 1.0, FEATURES)
    weights = generator.normal(size=FEATURES)
    y = generator.random(ROWS) < 1.0 / (1.0 + np.exp(-x @ weights))
    return x.astype(np.float32), y.astype(np.float32)


def network_rows() -> tuple[Array, Array]:
    """(N, 8) inputs and (N,) responses with noise of standard deviation 0.1."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(NETWORK_ROWS, INPUTS))
    y = np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * generator.normal(size=NETWORK_ROWS)
    return x.astype(np.float32), y.astype(np.float32)
