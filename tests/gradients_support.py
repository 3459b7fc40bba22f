"""Score estimators of both packages by the same verbs, with NumPy arrays in and out."""

from __future__ import annotations

from typing import Any

import numpy as np


class Estimation:
    """An estimator at work on a target: its state moves on with every draw and estimate.

    Parameters
    ----------
    backend : backend
    estimator : GradientEstimator
    target, data
        As ``backend.target`` gives them.
    number : int
        Positions that will be asked for at once.
    """

    def __init__(
        self, backend: Any, estimator: Any, target: Any, data: Any, number: int = 2, seed: int = 0
    ) -> None:
        self.backend, self.estimator = backend, estimator
        self.target, self.data = target, data
        key = backend.key(seed)
        if backend.is_pyro:
            self.state = estimator.init(target, data, key)
        else:
            self.state = estimator.init(target, data, key, number)
        # Pyro's estimators take the generator wherever they draw.
        keys = (key,) if backend.is_pyro else ()
        self._estimate = backend.compiled(
            lambda state, z, data: estimator.estimate(target, state, z, data, *keys)
        )
        if hasattr(estimator, "draw"):
            self._draw = backend.compiled(lambda state: estimator.draw(target, state, *keys))

    def estimate(self, z: np.ndarray, data: Any = None) -> Any:
        """Score and log densities at positions (P, D)."""
        found, self.state = self.look(z, data=data)
        return found

    def look(self, z: np.ndarray, state: Any = None, data: Any = None) -> tuple[Any, Any]:
        """The same from some state, and the state that follows."""
        state, data = (
            given if given is not None else own
            for given, own in ((state, self.state), (data, self.data))
        )
        found, following = self._estimate(state, self.backend.array(z), data)
        parts = (self.backend.numpy(part).copy() for part in found[:3])
        return type(found)(*parts, indices=found.indices), following

    def draw(self) -> dict[str, np.ndarray]:
        """Rows of the next minibatch, by plate."""
        rows, self.state = self._draw(self.state)
        return {name: self.backend.numpy(value) for name, value in rows.items()}

    def full(self, z: np.ndarray) -> Any:
        """What is estimated."""
        found = self.target.full_score(self.backend.array(z), self.data)
        return type(found)(*map(self.backend.numpy, found))


def normal(seed: int, *shape: int) -> np.ndarray:
    """Standard normal numbers."""
    return np.random.default_rng(seed).normal(size=shape)
