"""What tests of the target need of either host beside ``tests/backends.py``."""

from __future__ import annotations

from typing import Any

import numpy as np


def effects(backend: Any) -> Any:
    """Where the host's handlers ``mask`` and ``scale`` are."""
    if backend.name == "pyro":
        return backend.host.poutine
    from numpyro import handlers

    return handlers


def strategies(backend: Any) -> Any:
    """Where the host's init strategies are."""
    if backend.name == "pyro":
        from pyro.infer.autoguide import initialization

        return initialization
    from numpyro import infer

    return infer


def constraints(backend: Any) -> Any:
    """The host's constraints."""
    return backend.dist.constraints


def rows(backend: Any, **plates: Any) -> dict[str, Any]:
    """Row indices of plates by name."""
    return {name: backend.array(np.asarray(value)) for name, value in plates.items()}


def positions(target: Any, num: int = 3, seed: int = 0) -> np.ndarray:
    """Unconstrained positions between -1 and 1."""
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (num, target.dim))
