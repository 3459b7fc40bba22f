"""Values of distributions at many draws at once.

Families of torch and Pyro fill a new tensor with random numbers in place, which ``vmap`` refuses
where these have to differ from draw to draw. The same numbers out of place it can make.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def _normal(like: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return mean + std * torch.randn(like.shape, dtype=like.dtype, device=like.device)


def _uniform(like: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(like.shape, dtype=like.dtype, device=like.device)


def _exponential(like: Tensor, rate: float = 1.0) -> Tensor:
    tiny = torch.finfo(like.dtype).tiny
    return -torch.log1p(-_uniform(like)).clamp(max=-tiny) / rate


def _cauchy(like: Tensor, median: float = 0.0, scale: float = 1.0) -> Tensor:
    return median + scale * torch.tan(math.pi * (_uniform(like) - 0.5))


_OUT_OF_PLACE: Mapping[Any, Callable[..., Tensor]] = {
    Tensor.normal_: _normal,
    Tensor.uniform_: _uniform,
    Tensor.exponential_: _exponential,
    Tensor.cauchy_: _cauchy,
}


class _OutOfPlace(TorchFunctionMode):
    """Random numbers come in a tensor of their own where they cannot fill the given one."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call the function, or what stands in for it."""
        kwargs = kwargs or {}
        if function not in _OUT_OF_PLACE:
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except RuntimeError:
            return _OUT_OF_PLACE[function](*args, **kwargs)


def sampled(distribution: Any) -> Tensor:
    """A value of a distribution, at many draws at once too where its family is a library's.

    What a user's own family does with the tensor that it fills is not known.
    """
    inner: Any = distribution
    while type(inner).__module__.partition(".")[0] in ("torch", "pyro"):
        inner = getattr(inner, "base_dist", None)
    if inner is not None:
        value: Tensor = distribution.sample()
        return value
    with _OutOfPlace():
        value = distribution.sample()
    return value
