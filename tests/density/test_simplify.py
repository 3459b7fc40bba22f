"""What graphs of Pyro models become: fewer operations with the same results, by torch or NumPy."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_ext.graphs.numpy_graph import SMALL, numpy_replay
from pyro_ext.graphs.short_functions import ShortFunctions
from pyro_ext.graphs.simplify import replayed, simplify

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
        (lambda x, y: -(-x * y / 3.0).sum(1), "mul sum div", True),
        (lambda x, y: -x * y + -x / y, "neg mul div add", True),
        (
            lambda x, y: torch.func.grad(lambda x: (torch.full((3,), 5.0) * x**2).sum())(x),
            "mul",
            True,
        ),
        (
            lambda x, y: torch.func.grad(lambda x: (torch.full((3,), 5.0) * x**3).sum())(x),
            "pow mul",
            True,
        ),
        (lambda x, y: (x + 0.0) * 1.0 + torch.zeros(3).exp().log() * y, "mul add", True),
        (lambda x, y: x.exp() + y * x.exp(), "exp mul add", True),
        (lambda x, y: (-x).masked_fill(x > 0.0, 5.0) - y, "neg gt masked_fill sub", True),
        (lambda x, y: torch.where(x > 0.0, -x, y), "gt neg where", True),
        (lambda x, y: torch.stack(x.unbind(1), 1).T.contiguous() @ y, None, False),
        # torch refuses to repeat entries in this one by itself.
        (
            lambda x, y: torch.ops.aten.gelu_backward(y.sum(0, True).expand(3, 3), x) * 2.0,
            None,
            False,
        ),
        # One piece alone is joined to nothing, and copied only where it is known outside.
        (lambda x, y: torch.stack([x.exp()]).clone()[0] * y, "exp mul", True),
        (lambda x, y: torch.stack([x]).clone() * y, "unsqueeze clone mul", True),
        (lambda x, y: x.exp().clone(), "exp clone", True),
        (
            lambda x, y: torch.view_as_real(torch.complex(x, y).exp().conj() * 2.0),
            "complex exp _conj clone mul view_as_real",
            False,
        ),
        # What is repeated is computed once, and so is a product with a repeated matrix.
        (lambda x, y: x[:, :1].expand(3, 3).exp() * y, "slice exp mul", False),
        (
            lambda x, y: x[:1].expand(3, 3).exp().T.sin() - y,
            "slice expand exp permute sin sub",
            None,
        ),
        (lambda x, y: (x[:1].expand(3, 3).exp() / y[:1]).view(9), None, False),
        (lambda x, y: torch.bmm(x.unsqueeze(1), y.expand(3, 3, 3)), "mm view", None),
        (lambda x, y: torch.bmm(x.expand(3, 3, 3), y.unsqueeze(2)), None, None),
        (lambda x, y: torch.bmm(x.expand(3, 3, 3), y.expand(3, 3, 3)), None, None),
        # Numbers multiply few entries, and one number stands for several.
        (lambda x, y: (x * y * 3.0).sum(), "mul sum mul", None),
        (lambda x, y: (x - y[:, :1] + 2.0) * y, "slice sub sub mul", False),
        (lambda x, y: x[:, :1] * (y * 3.0), "slice mul mul", False),
        (lambda x, y: x * 2.0 * 3.0 - torch.full((3, 3), 4.0) + y, "mul sub add", True),
        (lambda x, y: y - x * torch.full((3, 3), -1.0), "add", True),
        (lambda x, y: (x.T - 0.0) * y, "permute mul", True),
        (lambda x, y: (x.T - 0.0).T.contiguous().view(9), None, None),
        (lambda x, y: x.unsqueeze(0).transpose(1, 2).squeeze(0).T * y, "mul", True),
        # What must stay.
        (lambda x, y: (x * 3.0).sum() + (x * 3.0 - y), None, True),
        (lambda x, y: (z := x[:1].expand(3, 3).exp(), z.mul_(y), z + x)[-1], None, None),
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
    function: Function, left: str | None, by_numpy: bool | None
) -> None:
    x, y = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0))
    names, replay, small = simplified(function, x, y)
    assert left is None or names == left.split()
    assert by_numpy is None or (small is not replay) == by_numpy
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
        lambda x, y: ((b := x + 1.0), (c := 2 * b), b.add_(y), c.sum() + b)[-1],
        lambda x, y: ((b := x + 1.0), (c := b - b[:1]), b.add_(y), (c + 1.0) * b)[-1],
        lambda x, y: ((b := x[:1] + 1.0), (c := b.expand(3)), b.add_(y[:1]), c.exp() - x)[-1],
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


@pytest.mark.parametrize("by_numpy", [True, False])
def test_cross_entropy_in_few_operations_is_that_of_torch(by_numpy: bool) -> None:
    """Value, gradient and, by torch, its derivative; far out too, for labels between 0 and 1."""
    size = 24 if by_numpy else 2 * SMALL
    logits = torch.linspace(-60.0, 60.0, size, dtype=torch.float64)
    labels = torch.tensor([0.0, 1.0, 0.3], dtype=torch.float64).repeat(size // 3 + 1)[:size]
    plain = torch.nn.functional.binary_cross_entropy_with_logits

    def derivatives(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        def loss(x: Tensor) -> Tensor:
            return plain(x, y, reduction="none").sum()

        gradient, pull = torch.func.vjp(torch.func.grad(loss), x)
        second = () if by_numpy else (pull(torch.ones_like(x))[0],)
        return plain(x, y, reduction="none"), gradient, *second

    with ShortFunctions():
        module = make_fx(torch.func.vmap(derivatives, (0, None)))(logits[None], labels)
        weighted = plain(logits, labels, labels), plain(logits, labels)
    simplify(module)
    replay = replayed(module)
    small = numpy_replay(module, replay, (logits[None], labels))
    assert (small is not replay) == by_numpy
    expected = derivatives(logits, labels)
    for found in (replay, small):
        for one, two in zip(found(logits[None], labels), expected, strict=True):
            # log p is known no better than the logit, and a probability no better than 1.
            torch.testing.assert_close(one[0], two, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(weighted, (plain(logits, labels, labels), plain(logits, labels)))


def test_numbers_that_are_not_finite_stay_with_the_entries() -> None:
    """Infinities of both signs have no sum, and a sum of both signs times infinity has one."""
    x = torch.tensor([[1.0, -2.0, 3.0]])
    for function in (lambda x, y: (x * torch.inf).sum(1), lambda x, y: (x / 0.0).sum(1)):
        _, replay, _ = simplified(function, x, x)
        assert torch.isnan(replay(x, x)).all() and torch.isnan(function(x, x)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64])
def test_numbers_are_to_torch_what_tensors_of_them_are(dtype: torch.dtype) -> None:
    """To the last digit, and with types that numbers alone do not change."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        found = [x + 0.1, x - 0.1, 0.7 - x, x * 0.3, x / 0.3, x**2, x**3, 2 - x, x * 2, x[0] * 0.1]
        found.append(torch.add(x, 2, alpha=3))
        return torch.cat([each.reshape(-1).double() for each in found])

    x = (10.0 * torch.randn(64, generator=torch.Generator().manual_seed(0))).to(dtype)
    replay = simplified(function, x, x.clone())[1]
    assert torch.equal(replay(x + 1, x), function(x + 1, x))
