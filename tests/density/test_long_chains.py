"""Hidden Markov chains of many steps, in float64, against a forward-backward pass by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from benchmarks.discrete.programs import K, chain, series
from tests.backends import use_float64
from tests.density_support import positions

use_float64()

ROUNDING = {"rtol": 1e-9, "atol": 1e-8}


def forward_backward(z: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Log likelihood and its gradient by logits and locations; the state before the first is 0."""
    logits, location = z[: K * K].reshape(K, K), z[K * K :]
    moves = special.log_softmax(logits, -1)
    emitted = stats.norm.logpdf(y[:, None], location, 1.0)
    ahead = np.zeros((len(y), K))
    ahead[0] = moves[0] + emitted[0]
    for t in range(1, len(y)):
        ahead[t] = special.logsumexp(ahead[t - 1][:, None] + moves, 0) + emitted[t]
    behind = np.zeros((len(y), K))
    for t in reversed(range(len(y) - 1)):
        behind[t] = special.logsumexp(moves + emitted[t + 1] + behind[t + 1], -1)
    total = special.logsumexp(ahead[-1])
    shares = np.exp(ahead + behind - total)
    pairs = ahead[:-1, :, None] + moves + (emitted[1:] + behind[1:])[:, None] - total
    counts = np.exp(pairs).sum(0)
    counts[0] += shares[0]
    by_logits = counts - counts.sum(-1, keepdims=True) * np.exp(moves)
    by_location = (shares * (y[:, None] - location)).sum(0)
    return float(total), np.concatenate([by_logits.reshape(-1), by_location])


def assert_right(backend: Any, model: Any, steps: int) -> Any:
    """See that likelihood and score are those by hand; returns target and data."""
    y = series(steps)
    target, data = backend.target(model, (backend.array(y),))
    z = positions(target, 2)
    found = target.full_score(backend.array(z), data)
    variance = np.repeat([1.0, 25.0], [K * K, K])
    for row, value, gradient in zip(z, *map(backend.numpy, found[2::-2]), strict=True):
        total, expected = forward_backward(row, y)
        np.testing.assert_allclose(value, total, **ROUNDING)
        np.testing.assert_allclose(gradient, expected - row / variance, **ROUNDING)
    return target, data


@pytest.mark.parametrize("steps", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_chain_is_that_by_hand(backend: Any, steps: int) -> None:
    target, _ = assert_right(backend, chain(backend), steps)
    if backend.is_pyro:
        # Steps are taken at once: otherwise the graph has tens of operations a step.
        (plan,) = target._evaluation._value._plans.values()
        assert plan is not None
        assert target.evaluation == "graph"
