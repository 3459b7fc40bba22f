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

from ppl_ext.score_matching.regression import diagonal, full, low_rank
from ppl_ext.score_matching.regression.base import ClosedForm, FormArrays, State
from ppl_ext.score_matching.regression.diagonal import DiagonalRegression
from ppl_ext.score_matching.regression.full import FullRegression
from ppl_ext.score_matching.regression.low_rank import LowRankRegression
from pyro_ext.guides.arrays import TensorFunctions
from pyro_ext.guides.flat_density import FlatDensity
from pyro_ext.score.regression.base import Stepwise

#: Coordinates up to which a guide is small.
SMALL = 64


def _mapped(function: Callable[[Any], Any], kind: type, values: Any) -> Any:
    """A function of what is of a kind, in tuples too."""
    if isinstance(values, tuple):
        entries = [_mapped(function, kind, value) for value in values]
        return type(values)(*entries) if hasattr(values, "_fields") else tuple(entries)
    return function(values) if isinstance(values, kind) else values


def _by_arrays(name: str) -> Callable[..., Any]:
    """A method of the density, from arrays to arrays."""

    def method(self: SmallDensity, *given: Any) -> Any:
        tensors = _mapped(torch.from_numpy, np.ndarray, given)
        return _mapped(Tensor.numpy, Tensor, getattr(self._density, name)(*tensors))

    return method


class SmallDensity:
    """A guide's density with arrays for tensors, but for the parameters."""

    def __init__(self, density: FlatDensity) -> None:
        self._density = density

    mean, noise, sample = map(_by_arrays, ("mean", "noise", "sample"))
    moments, set_moments = map(_by_arrays, ("moments", "set_moments"))
    parts, set_parts = map(_by_arrays, ("parts", "set_parts"))
    log_prob_and_score = _by_arrays("log_prob_and_score")


class SmallArrays(Stepwise, FormArrays):
    """Functions of NumPy's arrays for the closed forms."""

    xp = np
    to_tensor, to_array = staticmethod(torch.from_numpy), staticmethod(Tensor.numpy)

    @staticmethod
    def identity(length: int, like: np.ndarray) -> np.ndarray:
        return np.eye(length, dtype=like.dtype)

    @staticmethod
    def solve_lower(factor: np.ndarray, rows: np.ndarray, transpose: bool = False) -> np.ndarray:
        # NumPy has no triangular solver.
        tensors = torch.from_numpy(factor), torch.from_numpy(rows)
        return TensorFunctions.solve_lower(*tensors, transpose).numpy()

    @staticmethod
    def filled(shape: tuple[int, ...], like: np.ndarray, value: float = 0.0) -> np.ndarray:
        return np.full(shape, value, like.dtype)


class SmallForm(ClosedForm[State]):
    """Base of the closed forms in NumPy."""

    arrays = SmallArrays

    def __init__(self, density: FlatDensity, *options: float) -> None:
        super().__init__(SmallDensity(density), *options)


class SmallDiagonalForm(SmallForm[DiagonalRegression], diagonal.DiagonalForm): ...


class SmallFullForm(SmallForm[FullRegression], full.FullForm): ...


class SmallLowRankForm(SmallForm[LowRankRegression], low_rank.LowRankForm): ...


#: By structure, as ``CLOSED_FORMS``.
SMALL_FORMS: dict[str, type[SmallForm]] = {
    "diagonal": SmallDiagonalForm,
    "full": SmallFullForm,
    "low_rank": SmallLowRankForm,
}


def is_small(density: FlatDensity) -> bool:
    """Whether a guide is one for NumPy: short, on the processor, and of a type of NumPy's."""
    (loc, *_) = density.live_parameters().values()
    typed = loc.dtype in (torch.float32, torch.float64)
    return density.dim <= SMALL and loc.device.type == "cpu" and typed
