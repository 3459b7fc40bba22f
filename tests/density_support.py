"""What tests of the target need of either host beside ``tests/backends.py``."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError, ModelCheckError

HOST_ERRORS = (
    ValueError,
    RuntimeError,
    NotImplementedError,
    TypeError,
    AssertionError,
    AttributeError,
)


def strategies(backend: Any) -> Any:
    """Where the host's init strategies are."""
    if backend.name == "pyro":
        from pyro.infer.autoguide import initialization

        return initialization
    from numpyro import infer

    return infer


def rows(backend: Any, **plates: Any) -> dict[str, Any]:
    """Row indices of plates by name."""
    return {name: backend.array(np.asarray(value)) for name, value in plates.items()}


def positions(target: Any, num: int = 3, seed: int = 0) -> np.ndarray:
    """Unconstrained positions between -1 and 1."""
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (num, target.dim))


@contextlib.contextmanager
def single_precision(backend: Any) -> Iterator[None]:
    """Float32 as the framework's default, in a module of float64."""
    if not backend.is_pyro:
        import jax

        with jax.enable_x64(False):
            yield
        return
    import torch

    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float64)


def host_words(backend: Any, model: Any, *args: Any) -> str:
    """First line of what the host's own guide says to a model; its warnings are not the point."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(HOST_ERRORS) as raised:
            guide = backend.autoguide.AutoDiagonalNormal(model)
            if not backend.is_pyro:
                guide = backend.handlers.seed(guide, backend.key())
            guide(*args)
    return str(raised.value).split("\n")[0]


def our_words(backend: Any, model: Any, *args: Any, **options: Any) -> str:
    """What our target says to it."""
    with pytest.raises((ModelCheckError, ArgumentError)) as raised:
        backend.target(model, args, **options)
    return str(raised.value)
