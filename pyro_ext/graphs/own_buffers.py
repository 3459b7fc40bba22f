"""Tensors that a model makes and then writes into, one for each position.

``torch.func.vmap`` does not write a value that differs by position into a tensor that is the same
for all, such as ``steps = torch.zeros(n)`` before ``steps[0] = start``. What is made from a tensor
of one position is one for each, and takes such values. Nor does it write a number to the places of
a mask, ``logits[logits == -inf] = 0``, as their number could differ; to fill them needs none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: What fills a tensor: ``torch.zeros``, ``torch.zeros_like`` and ``Tensor.new_zeros``. What is like
#: another, filled with a number, is left to torch.
_FILLS = ("zeros", "ones", "empty")
_MADE = {getattr(torch, name): f"new_{name}" for name in (*_FILLS, "full")}
_LIKE = {getattr(torch, f"{name}_like"): f"new_{name}" for name in _FILLS}
_NEW = {getattr(Tensor, f"new_{name}"): f"new_{name}" for name in (*_FILLS, "full")}


def _is_fill(index: Any, value: Any) -> bool:
    """Whether one number is written to the places of a mask."""
    is_mask = isinstance(index, Tensor) and index.dtype == torch.bool and index.dim() > 0
    return is_mask and (not isinstance(value, Tensor) or value.dim() == 0)


class OwnBuffers(TorchFunctionMode):
    """Context in which new tensors are made one for each position, and masks are filled.

    Parameters
    ----------
    position : tensor (D,)
        Inside of ``torch.func.vmap``.
    """

    def __init__(self, position: Tensor) -> None:
        super().__init__()
        self.position = position

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _MADE and not kwargs.keys() - {"dtype", "device", "fill_value"}:
            # The type of a full tensor is that of what fills it.
            if func is not torch.full:
                kwargs["dtype"] = kwargs.get("dtype") or torch.get_default_dtype()
            elif kwargs.get("dtype") is None:
                kwargs["dtype"] = func((), *args[1:], **kwargs).dtype
            return getattr(self.position, _MADE[func])(*args, **kwargs)
        if func in _NEW:
            like, args = args[0], args[1:]
            options = {"dtype": like.dtype, "device": like.device, **kwargs}
            return getattr(self.position, _NEW[func])(*args, **options)
        if func in _LIKE and len(args) == 1 and not kwargs.keys() - {"dtype", "device"}:
            (like,) = args
            options = {"dtype": like.dtype, "device": like.device, **kwargs}
            return getattr(self.position, _LIKE[func])(like.shape, **options)
        if func is Tensor.__setitem__ and _is_fill(*args[1:]):
            tensor, mask, value = args
            more = (1,) * (tensor.dim() - mask.dim())
            tensor.masked_fill_(mask.reshape(*mask.shape, *more), value)
            return None
        return func(*args, **kwargs)
