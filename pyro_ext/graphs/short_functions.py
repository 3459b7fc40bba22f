"""Functions of torch in fewer operations than vectorising takes them apart into.

Some functions have a kernel of their own that ``torch.func.vmap`` does not know. It replaces them
by operations, of which there can be twice as many, with their derivatives, as the function needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: Logits from which on log(1 + exp(x)) is x in double precision too.
LARGE = 40.0


def _binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, *args: Any, reduction: str = "mean", **options: Any
) -> Tensor | None:
    # Weights and reductions are rare in densities.
    others = any(each is not None for each in (*args, *options.values()))
    if others or reduction != "none" or input.shape != target.shape:
        return None
    return (1.0 - target) * input + F.softplus(-input, 1.0, LARGE)


_SHORT: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
    F.binary_cross_entropy_with_logits: _binary_cross_entropy_with_logits
}


class ShortFunctions(TorchFunctionMode):
    """Context in which these functions are made of few operations."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found = _SHORT[func](*args, **kwargs) if func in _SHORT else None
        return func(*args, **kwargs) if found is None else found
