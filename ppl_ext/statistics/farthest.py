"""Points that lie far apart, chosen one after the other."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int


def farthest(
    points: Float[np.ndarray, "S D"], known: Float[np.ndarray, "K D"], number: int
) -> Int[np.ndarray, " number"]:
    """Which of the points are each farthest from those that are known and from those before it."""
    distances = np.linalg.norm(points[:, None] - known, axis=2).min(1)
    chosen = np.zeros(number, int)
    for k in range(number):
        chosen[k] = distances.argmax()
        distances = np.minimum(distances, np.linalg.norm(points - points[chosen[k]], axis=1))
    return chosen
