"""``einsum`` of logarithms, as a backend of ``opt_einsum``: sums of products become log-sum-exps.

Pyro's own (``pyro.ops.einsum.torch_log``) has a gradient that ``torch.func`` cannot take, and
loses products that underflow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from typing import Any

import torch
from pyro.ops.einsum.util import Tensordot
from torch import Tensor

from pyro_ext.density.sampling import exponential


def transpose(a: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The tensor with its axes in this order."""
    return a.permute(axes)


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """Log of ``torch.einsum(equation, ...)`` of exponentials."""
    inputs, output = equation.split("->")
    summed = "".join(sorted(set(inputs) - set(output) - {","}))
    total: Tensor | None = None
    for dims, operand in zip(inputs.split(","), operands, strict=True):
        # Kept dimensions first, those that are summed last.
        order = sorted(dims, key=(output + summed).index)
        # All dimensions in one order, those that an operand lacks of length one.
        aligned = operand.permute([dims.index(name) for name in order])
        shape = iter(aligned.shape)
        aligned = aligned.reshape([next(shape) if name in dims else 1 for name in output + summed])
        total = aligned if total is None else total + aligned
    assert total is not None
    if not summed:
        return total.clone() if len(operands) == 1 else total
    if (how := getattr(_PICKING, "how", None)) is not None:
        return _Picked.apply(total.flatten(len(output)), how == "largest")
    return torch.logsumexp(total, tuple(range(len(output), len(output + summed))))


_PICKING = local()


@contextmanager
def picking(how: str) -> Iterator[None]:
    """Context in which the gradient of a sum is that of one term of it.

    Parameters
    ----------
    how : {"sample", "largest"}
        A term at random, by its share of the sum, or the largest, which then is the sum's value.
    """
    _PICKING.how = how
    try:
        yield
    finally:
        _PICKING.how = None


class _Picked(torch.autograd.Function):
    """The logarithm of a sum along the last dimension, with the gradient of one term."""

    generate_vmap_rule = True

    @staticmethod
    def forward(terms: Tensor, largest: bool) -> Tensor:
        return terms.amax(-1) if largest else terms.logsumexp(-1)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Tensor, bool], output: Tensor) -> None:
        terms, context.largest = inputs
        context.save_for_backward(terms)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (terms,) = context.saved_tensors
        if not context.largest:
            # The largest after noise of Gumbel's is a draw.
            terms = terms - exponential(terms).log()
        places = torch.arange(terms.shape[-1], device=terms.device)
        one = places == terms.argmax(-1, keepdim=True)
        return gradient.unsqueeze(-1) * one, None


tensordot = Tensordot(einsum)
