"""Functions of tensors for the closed forms of the proximal step, and their states in files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.score_matching.regression.base import FormArrays
from ppl_ext.score_matching.regression.pairs import Count
from pyro_ext.guides.arrays import TensorFunctions
from pyro_ext.score.overflow import judged

T = TypeVar("T")


class Stepwise:
    """Decisions by Python's conditions, of tensors or of NumPy's arrays."""

    judged = staticmethod(judged)

    @staticmethod
    def first_count(like: Any) -> Count:
        return Count()

    @staticmethod
    def where_ready(condition: bool, function: Callable[[T], T], value: T) -> T:
        return function(value) if condition else value


class FormTensors(Stepwise, FormArrays, TensorFunctions):
    """Functions of tensors for the closed forms."""

    @staticmethod
    def filled(shape: tuple[int, ...], like: Tensor, value: float = 0.0) -> Float[Tensor, "*shape"]:
        return like.new_full(shape, value)

    @staticmethod
    def to_tensor(values: Tensor, /) -> Tensor:
        """The form's array as a tensor."""
        return values

    @staticmethod
    def to_array(values: Tensor, /) -> Tensor:
        """Inverse of :meth:`to_tensor`."""
        return values


def saved(state: Any) -> Any:
    """A state as plain containers of tensors and numbers, for a file."""
    if isinstance(state, np.ndarray):
        return torch.from_numpy(state)
    if hasattr(state, "_asdict"):
        return {name: saved(value) for name, value in state._asdict().items()}
    if isinstance(state, dict):
        return {name: saved(value) for name, value in state.items()}
    return [saved(value) for value in state] if isinstance(state, tuple) else state


def restored(like: Any, state: Any) -> Any:
    """Inverse of :func:`saved`, for a state of the form of ``like``."""
    if hasattr(like, "_asdict"):
        entries = like._asdict()
        return type(like)(**{name: restored(entries[name], state[name]) for name in entries})
    if isinstance(like, dict):
        return {name: restored(value, state[name]) for name, value in like.items()}
    if isinstance(like, tuple):
        return tuple(restored(*pair) for pair in zip(like, state, strict=True))
    return state.numpy() if isinstance(like, np.ndarray) else state
