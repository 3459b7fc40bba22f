"""Closed forms of small guides, in NumPy.

Where arrays have a few hundred entries an operation takes as long as its call, and a call of
NumPy's takes a third of the time of one of torch's. The formulas are the same, and arrays and
tensors share their memory; guides and their parameters stay torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ppl_ext.regression import diagonal, full, low_rank
from ppl_ext.regression.base import Draws, State
from ppl_ext.regression.diagonal import DiagonalRegression
from ppl_ext.regression.full import FullRegression
from ppl_ext.regression.low_rank import LowRankRegression
from pyro_ext.guides.arrays import TensorFunctions
from pyro_ext.guides.flat_density import FlatDensity
from pyro_ext.score.regression.base import ClosedForm

#: Coordinates up to which a guide is small.
SMALL = 64


def as_arrays(value: Any) -> Any:
    """Tensors, or a named tuple of them, as arrays in the same memory."""
    if isinstance(value, tuple):
        return (
            type(value)(*map(as_arrays, value))
            if hasattr(value, "_fields")
            else tuple(map(as_arrays, value))
        )
    return value.numpy() if isinstance(value, Tensor) else value


def as_tensors(value: Any) -> Any:
    """Inverse of :func:`as_arrays`."""
    if isinstance(value, tuple):
        return (
            type(value)(*map(as_tensors, value))
            if hasattr(value, "_fields")
            else tuple(map(as_tensors, value))
        )
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _converted(name: str) -> Callable[..., Any]:
    def method(self: SmallDensity, *given: Any) -> Any:
        return as_arrays(getattr(self._density, name)(*map(as_tensors, given)))

    return method


class SmallDensity:
    """A guide's density with arrays for tensors; parameters are tensors all the same."""

    def __init__(self, density: FlatDensity) -> None:
        self._density = density

    mean, moments, set_moments = map(_converted, ("mean", "moments", "set_moments"))
    parts, set_parts = map(_converted, ("parts", "set_parts"))
    noise, sample = map(_converted, ("noise", "sample"))
    log_prob_and_score = _converted("log_prob_and_score")


class SmallForm(ClosedForm[State]):
    """What closed forms in NumPy have."""

    xp = np
    to_arrays, to_tensors = staticmethod(as_arrays), staticmethod(as_tensors)

    def __init__(self, density: FlatDensity, *options: float) -> None:
        super().__init__(SmallDensity(density), *options)

    @staticmethod
    def identity(length: int, like: np.ndarray) -> np.ndarray:
        return np.eye(length, dtype=like.dtype)

    @staticmethod
    def solve_lower(factor: np.ndarray, rows: np.ndarray, transpose: bool = False) -> np.ndarray:
        return TensorFunctions.solve_lower(
            *map(torch.from_numpy, (factor, rows)), transpose
        ).numpy()

    @staticmethod
    def antithetic(theta: np.ndarray, mean: np.ndarray) -> np.ndarray:
        return np.concatenate([theta, 2.0 * mean - theta])

    @staticmethod
    def filled(shape: tuple[int, ...], like: np.ndarray, value: float = 0.0) -> np.ndarray:
        return np.full(shape, value, like.dtype)

    # torch says nothing of overflows either.
    @np.errstate(all="ignore")
    def evaluated_draw(self, *given: Any) -> Draws:
        return super().evaluated_draw(*given)

    @np.errstate(all="ignore")
    def figures(self, *given: Any) -> tuple[Any, dict[str, Any]]:
        return super().figures(*given)

    @np.errstate(all="ignore")
    def update(self, *given: Any) -> tuple[State, Any]:
        return super().update(*given)


class SmallDiagonalForm(SmallForm[DiagonalRegression], diagonal.DiagonalForm):
    pass


class SmallFullForm(SmallForm[FullRegression], full.FullForm):
    pass


class SmallLowRankForm(SmallForm[LowRankRegression], low_rank.LowRankForm):
    pass


#: By structure, as ``CLOSED_FORMS``.
SMALL_FORMS: dict[str, type[SmallForm]] = {
    "diagonal": SmallDiagonalForm,
    "full": SmallFullForm,
    "low_rank": SmallLowRankForm,
}


def is_small(density: FlatDensity) -> bool:
    """Whether a guide is one for NumPy: short, on the processor, and of a type of NumPy's."""
    loc = density.live_parameters()["loc"]
    return (
        len(loc) <= SMALL
        and loc.device.type == "cpu"
        and loc.dtype in (torch.float32, torch.float64)
    )
