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


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: ((b := x * 2.0), (n := -b), b.add_(y), x - n + b)[-1],
        lambda x, y: ((b := x * 2.0), (n := -b), b.add_(y), x * n * b)[-1],
        lambda x, y: ((b := x * 2.0), (n := -b), b.add_(y), -n * x)[-1],
        lambda x, y: ((v := x * 2.0)[:2].exp(), (s := v[:2].exp()), v.add_(y), s - v[:2].exp())[-1],
        lambda x, y: ((b := x * 2.0), (c := b * torch.ones(3)), b.add_(y), c - 3.0 * b)[-1],
        lambda x, y: ((b := x * 2.0), (c := b + 0.0), b.mul_(1.0 + y), c - 3.0 * b)[-1],
        lambda x, y: ((b := x + 1.0), (c := 2 * b), b.add_(y), torch.full((3,), 5.0) * c + b)[-1],
        lambda x, y: ((b := x + 1.0), (c := (2 * b)), b.clamp_(-y, y + 0.5), 3.0 * c * b)[-1],
        lambda x, y: ((n := -x), x.add_(y), n * x - x)[-1],
        lambda x, y: ((n := -HELD), HELD.add_(y), n * HELD - x)[-1],
    ],
)
def test_the_order_of_changes_in_place_counts(function: Function) -> None:
    """Also where the first arguments say nothing of it."""
    x, y = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    HELD.fill_(2.0)
    _, replay, small = simplified(function, x.clone(), torch.zeros(3))
    for found in (replay, small):
        HELD.fill_(2.0)
        expected = function(x.clone(), y)
        HELD.fill_(2.0)
        torch.testing.assert_close(found(x.clone(), y), expected)


@pytest.mark.parametrize(
    ("function", "first", "later"),
    [
        (lambda x, n: x / n + n.reciprocal() * (1 / n), [1, 1, 1], [2, 4, 8]),
        (lambda x, n: x * n.exp() + n.sqrt() + n.log1p() + n.tanh(), [0, 1, 0], [2, 4, 8]),
        (lambda x, n: x * n**2 + n * n * 1000 + (n - 7).abs(), [0, 1, 0], [2, 4, 2**33]),
        (lambda x, n: torch.where(n > 1.5, x, 0.5) + n.sum() / n, [1, 1, 1], [2, 4, 8]),
        (lambda x, n: x * n + n.clamp(1, 3) - torch.cat([n, n])[2:5], [1, 1, 1], [2, 4, 8]),
        (lambda x, flag: flag.exp() + x, [True, False, True], [False, True, True]),
        (lambda x, flag: flag**2 * 200 * x, [True, False, True], [False, True, True]),
        (lambda x, flag: flag * x + flag.sum() - (~flag) * 3, [True] * 3, [False, True, True]),
        (lambda x, flag: torch.where(flag, 1.0, 2.0) * x, [True] * 3, [False, True, True]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_integers_and_flags_are_computed_as_by_torch(
    function: Function, first: list[int], later: list[int], dtype: torch.dtype
) -> None:
    x = torch.randn(3, generator=torch.Generator().manual_seed(0), dtype=dtype)
    _, replay, small = simplified(function, x, torch.tensor(first))
    expected = function(x, torch.tensor(later))
    torch.testing.assert_close(replay(x, torch.tensor(later)), expected)
    torch.testing.assert_close(small(x, torch.tensor(later)), expected)


def test_memory_that_is_replaced_and_negative_views_are_read() -> None:
    held = torch.ones(3)
    x, y = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    _, replay, small = simplified(lambda x, y: x * held + y, x, y)
    assert small is not replay
    held.data = torch.full((3,), 2.0)
    held.add_(1.0)
    negative = torch.complex(x, y).conj().imag
    for found in (replay, small):
        torch.testing.assert_close(found(x, negative), 3.0 * x - y)


def test_random_numbers_are_drawn_twice_and_long_vectors_are_left_to_torch() -> None:
    long = torch.zeros(SMALL + 1)
    names, replay, small = simplified(
        lambda x, y: torch.rand_like(x) - torch.rand_like(x), long, long
    )
    assert names == ["rand_like", "rand_like", "sub"] and replay(long, long).any()
    assert small is replay
