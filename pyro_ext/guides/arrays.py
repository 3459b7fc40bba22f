"""Functions of torch tensors for the formulas of ``ppl_ext.guides``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from ppl_ext.guides.arrays import ArrayFunctions


class TensorFunctions(ArrayFunctions):
    """Functions of torch tensors."""

    xp = torch
    detached = staticmethod(Tensor.detach)
    inverse_root = staticmethod(torch.rsqrt)
    softplus = staticmethod(functional.softplus)
    softmax = staticmethod(partial(torch.softmax, dim=-1))
    log_softmax = staticmethod(partial(torch.log_softmax, dim=-1))
    ndtr = staticmethod(torch.special.ndtr)
    ndtri = staticmethod(torch.special.ndtri)

    @staticmethod
    def as_array(values: Any, like: Tensor) -> Float[Tensor, " ..."]:
        # A copy of NumPy's arrays, whose memory a tensor would share.
        found = values if isinstance(values, Tensor) else np.array(values)
        return torch.as_tensor(found, dtype=like.dtype, device=like.device)

    @staticmethod
    def identity(length: int, like: Tensor) -> Float[Tensor, "length length"]:
        return torch.eye(length, dtype=like.dtype, device=like.device)

    @staticmethod
    def block_diagonal(matrices: Sequence[Float[Tensor, "_ _"]]) -> Float[Tensor, "D D"]:
        return torch.block_diag(*matrices)

    @staticmethod
    def solve_lower(
        factor: Float[Tensor, "... n n"], rows: Float[Tensor, "... n"], transpose: bool = False
    ) -> Float[Tensor, "... n"]:
        together = rows if rows.dim() == factor.dim() else rows.reshape(-1, rows.shape[-1])
        # x^T = v^T L^{-T}: the rows are solved from the right, by an upper triangular matrix for L.
        if transpose:
            solved = torch.linalg.solve_triangular(factor, together, upper=False, left=False)
        else:
            solved = torch.linalg.solve_triangular(factor.mT, together, upper=True, left=False)
        return solved if together is rows else solved.reshape(rows.shape)

    @staticmethod
    def largest(values: Float[Tensor, "... n"]) -> Float[Tensor, "... n"]:
        index = values.argmax(-1, keepdim=True)
        return torch.zeros_like(values).scatter(-1, index, 1.0)

    @staticmethod
    def repeated(number: int, step: Callable[[Any], Any], start: Any) -> Any:
        for _ in range(number):
            start = step(start)
        return start

    @staticmethod
    def until_settled(most: int, step: Callable[[Any], tuple[Any, Any]], start: Any) -> Any:
        for _ in range(most):
            start, moving = step(start)
            if not moving:
                break
        return start

    @staticmethod
    def differentiates() -> bool:
        return torch.is_grad_enabled()
