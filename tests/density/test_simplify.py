"""What graphs of Pyro models become: fewer operations with the same results, by torch or NumPy."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_ext.density.numpy_graph import SMALL, numpy_replay
from pyro_ext.density.simplify import replayed, simplify

Function = Callable[[Tensor, Tensor], Tensor]
HELD = torch.ones(3)


def simplified(function: Function, *inputs: Tensor) -> tuple[list[str], Any, Any]:
    """Names of the operations that are left, and the replays by torch and by NumPy."""
    module = make_fx(function)(*inputs)
    simplify(module)
    replay = replayed(module)
    calls = [node.target for node in module.graph.nodes if node.op == "call_function"]
    names = [call.overloadpacket.__name__ for call in calls if call is not operator.getitem]
    return names, replay, numpy_replay(module, replay, inputs)


@pytest.mark.parametrize(
    ("function", "left", "by_numpy"),
    [
        (lambda x, y: y - -x, "add", True),
        (lambda x, y: -x + y, "sub", True),
        (lambda x, y: -x - y, "add neg", True),
        (lambda x, y: -(-x * y / 3.0).sum(1), "mul div sum", True),
        (lambda x, y: -x * y + -x / y, "neg mul div add", True),
        (
            lambda x, y: torch.func.grad(lambda x: (torch.full((3,), 5.0) * x**2).sum())(x),
            "mul",
            True,
        ),
        (
            lambda x, y: torch.func.grad(lambda x: (torch.full((3,), 5.0) * x**3).sum())(x),
            "pow mul mul",
            True,
        ),
        (lambda x, y: (x + 0.0) * 1.0 + torch.zeros(3).exp().log() * y, "mul add", True),
        (lambda x, y: x.exp() + y * x.exp(), "exp mul add", True),
        (lambda x, y: (-x).masked_fill(x > 0.0, 5.0) - y, "neg gt masked_fill sub", True),
        (lambda x, y: torch.where(x > 0.0, -x, y), "gt neg where", True),
        (lambda x, y: torch.stack(x.unbind(1), 1).T.contiguous() @ y, None, False),
        # What must stay.
        (lambda x, y: -x * -x, "neg mul", True),
        (lambda x, y: torch.add(y, -x, alpha=2.0), "neg add", False),
        (lambda x, y: (-x).masked_fill_(x > 0.0, 5.0) - y, "neg gt masked_fill_ sub", True),
        (lambda x, y: ((z := -x).view(-1).mul_(2.0), y - z)[1], "neg view mul_ sub", False),
        (lambda x, y: x.neg().neg().mul_(2.0) + x, "neg neg mul_ add", False),
        (lambda x, y: x.exp().mul_(2.0) + x.exp(), "exp mul_ exp add", False),
        (lambda x, y: (z := x * y)[0].masked_fill_(y[0] > 0.0, 5.0) + z, None, False),
        (lambda x, y: HELD * x + y, "mul add", True),
    ],
)
def test_graphs_are_shorter_and_give_the_same(
    function: Function, left: str | None, by_numpy: bool
) -> None:
    x, y = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0))
    names, replay, small = simplified(function, x, y)
    assert left is None or names == left.split()
    assert (small is not replay) == by_numpy
    x, y = y.clone(), 2.0 * x
    HELD.add_(1.0)  # What a model closes over is read at every call.
    expected = function(x, y)
    torch.testing.assert_close(replay(x.clone(), y.clone()), expected)
    torch.testing.assert_close(small(x.clone(), y.clone()), expected)


def test_random_numbers_are_drawn_twice_and_long_vectors_are_left_to_torch() -> None:
    long = torch.zeros(SMALL + 1)
    names, replay, small = simplified(
        lambda x, y: torch.rand_like(x) - torch.rand_like(x), long, long
    )
    assert names == ["rand_like", "rand_like", "sub"] and replay(long, long).any()
    assert small is replay
