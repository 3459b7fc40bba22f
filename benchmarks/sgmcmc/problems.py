"""Programs and data of the benchmark: a logistic regression and a small regression network."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.hosts import Host

Array = NDArray[np.float32]

ROWS, FEATURES, BATCH = 10_000, 20, 100
#: The network: inputs, hidden units, and the rows that it sees.
INPUTS, HIDDEN, NETWORK_ROWS, NETWORK_BATCH = 8, 50, 1_000, 100
CHAINS = 8


def logistic(h: Host, x: Any, y: Any, batch: int | None = None) -> None:
    """Logistic regression whose rows are looked up, all of them without ``batch``."""
    weights = h.sample("w", h.dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with h.plate("rows", len(x), subsample_size=batch) as rows:
        h.sample("y", h.dist.Bernoulli(logits=x[rows] @ weights), obs=y[rows])


def two_modes(h: Host, distance: float, weight: float = 0.5) -> Callable[[], None]:
    """Two of unit variance, at plus the distance with this weight and at minus the distance."""
    odds = math.log(weight / (1.0 - weight))

    def model() -> None:
        z = h.sample("z", h.dist.Normal(0.0, 100.0).mask(False))
        modes = odds - 0.5 * (z - distance) ** 2, -0.5 * (z + distance) ** 2
        h.factor("modes", h.xp.logaddexp(*modes))

    return model


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
