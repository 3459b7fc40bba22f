"""``einsum`` of logarithms, as a backend of ``opt_einsum``: sums of products become log-sum-exps.

Pyro's own (``pyro.ops.einsum.torch_log``) has a gradient that ``torch.func`` cannot take, and
loses products that underflow.
"""

from __future__ import annotations

import torch
from pyro.ops.einsum.util import Tensordot
from torch import Tensor


def transpose(a: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The tensor with its axes in this order."""
    return a.permute(axes)


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """Log of ``torch.einsum(equation, ...)`` of exponentials."""
    inputs, output = equation.split("->")
    summed = "".join(sorted(set(inputs) - set(output) - {","}))
    total: Tensor | None = None
    for dims, operand in zip(inputs.split(","), operands, strict=True):
        order = sorted(dims, key=(output + summed).index)
        aligned = operand.permute([dims.index(name) for name in order])
        shape = iter(aligned.shape)
        aligned = aligned.reshape([next(shape) if name in dims else 1 for name in output + summed])
        total = aligned if total is None else total + aligned
    assert total is not None
    if not summed:
        return total.clone() if len(operands) == 1 else total
    return torch.logsumexp(total, tuple(range(len(output), len(output + summed))))


tensordot = Tensordot(einsum)
