"""Draws of a fit against a density on a grid."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

#: The target of problems that are arrays alone.
WITHOUT_PROGRAM = SimpleNamespace(layout=SimpleNamespace(improper=(), families={}))


def check_weighted(draws: np.ndarray, grid: np.ndarray, log_density: np.ndarray) -> None:
    """Mean and deviation of draws against those on a grid, within four errors of 400 draws."""
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    mean = (weights * grid).sum()
    deviation = np.sqrt((weights * (grid - mean) ** 2).sum())
    assert abs(draws.mean() - mean) < 0.2 * deviation
    assert draws.std() == pytest.approx(deviation, rel=0.2)
