"""Replaying the graph of a small model by NumPy.

Where arrays have a few hundred entries an operation takes as long as its call, and a call of
NumPy's takes a third of the time of one of torch's. A graph of operations that NumPy has too is
replayed by them, on the tensors' own memory; what else it holds is left to torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from pyro_ext.graphs.simplify import replayed, root_of

_ATEN: Any = torch.ops.aten
#: Entries up to which a tensor is small.
SMALL = 1024
#: Share of the operations that torch may be left with: each makes tensors of arrays and back.
LEFT = 0.2
_DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool)

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def _overloads(name: str) -> list[Any]:
    packet = getattr(_ATEN, name)
    return [getattr(packet, overload) for overload in packet.overloads()]


def _by_overload(**functions: Callable[..., Any]) -> dict[Any, Callable[..., Any]]:
    """Functions of the same arguments, for each overload of the operation of that name."""
    return {each: function for name, function in functions.items() for each in _overloads(name)}


#: Of arguments and values of one floating type: NumPy has other rules for integers and for mixed
#: types than torch has.
_FLOATING = _by_overload(
    div=np.true_divide,
    pow=operator.pow,
    reciprocal=np.reciprocal,
    sqrt=np.sqrt,
    exp=np.exp,
    expm1=np.expm1,
    log=np.log,
    log1p=np.log1p,
    sin=np.sin,
    cos=np.cos,
    tanh=np.tanh,
    mm=np.matmul,
    bmm=np.matmul,
    mv=np.matmul,
    dot=np.matmul,
)
#: Of arguments and values of one type of numbers.
_NUMERIC = _by_overload(
    add=np.add,
    sub=np.subtract,
    mul=np.multiply,
    neg=np.negative,
    abs=np.absolute,
    maximum=np.maximum,
    minimum=np.minimum,
    clamp_min=np.maximum,
    clamp_max=np.minimum,
)
#: Of arguments of one type.
_COMPARED = _by_overload(
    lt=np.less,
    le=np.less_equal,
    gt=np.greater,
    ge=np.greater_equal,
    eq=np.equal,
    ne=np.not_equal,
)
_LOGICAL = _by_overload(
    logical_and=np.logical_and, logical_or=np.logical_or, logical_not=np.logical_not
)
#: Of arguments and values of one type whatever it is.
_MOVED = _by_overload(
    cat=np.concatenate, clone=np.array, transpose=np.swapaxes, permute=np.transpose
)
#: Views with the entries in the same order, and copies.
_RESHAPED = (
    _ATEN.view.default,
    _ATEN._unsafe_view.default,
    _ATEN.unsqueeze.default,
    _ATEN.squeeze.dim,
    _ATEN.detach.default,
    _ATEN.alias.default,
)
_WHERE = _overloads("where")
_SUMS = (_ATEN.sum.default, _ATEN.sum.dim_IntList)
_MASKED = (_ATEN.masked_fill.Scalar, _ATEN.masked_fill_.Scalar)
_REVERSED = _overloads("rsub")
#: Largest relative and absolute difference from torch's values.
_ROUNDING = {torch.float32: (1e-3, 1e-5), torch.float64: (1e-6, 1e-8)}


def numpy_replay(
    module: GraphModule, replay: Callable[..., Any], inputs: Sequence[Tensor]
) -> Callable[..., Any]:
    """The graph as one Python function of tensors that computes by NumPy.

    It is ``replay``, which torch computes, where tensors are not small, where NumPy lacks too much,
    or where the two do not give the same of ``inputs``.
    """
    calls: dict[Node, Any] = {}
    for node in module.graph.nodes:
        held = node.op == "get_attr"
        value = getattr(module, node.target) if held else node.meta.get("val")
        if isinstance(value, Tensor) and not _is_small(value):
            return replay
        if node.op == "call_function":
            calls[node] = _call(node) or _left_call(node)
    left = sum(call is None or call[0] is _by_torch for call in calls.values())
    if None in calls.values() or left > LEFT * len(calls):
        return replay
    # torch says nothing of overflows either.
    quiet = np.errstate(all="ignore")
    found: Callable[..., Any] = quiet(replayed(module, calls.__getitem__, _as_array, _as_tensor))
    try:
        pairs = zip(*(pytree.tree_leaves(each(*inputs)) for each in (found, replay)), strict=True)
        same = all(
            (one.dtype, one.shape) == (two.dtype, two.shape)
            and torch.allclose(one, two, *_ROUNDING.get(one.dtype, (0.0, 0.0)), equal_nan=True)
            for one, two in pairs
        )
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError):
        same = False
    return found if same else replay


def _is_small(value: Tensor) -> bool:
    kind = value.device.type, value.dtype
    return value.numel() <= SMALL and kind in (("cpu", dtype) for dtype in _DTYPES)


def _call(node: Any) -> Call | None:
    """Function and arguments in place of a node, where there are any."""
    target: Any = node.target
    value, args = node.meta.get("val"), node.args
    if target is operator.getitem:
        return target, args, {}
    if target is _ATEN.split_with_sizes.default:
        source, sizes, axis = (*args, 0)[:3]
        ends = np.cumsum(sizes).tolist()
        before = (slice(None),) * (axis % source.meta["val"].dim())
        places = [(*before, slice(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
        return _pieces, (source, places), {}
    if not isinstance(value, Tensor):
        return None
    if target in _RESHAPED:
        return np.ndarray.reshape, (args[0], tuple(value.shape)), {}
    if node.kwargs and target is not _ATEN.clone.default:
        return None
    if target in _SUMS:
        # A sum of another type than its argument's, as of booleans, is left to torch.
        if args[0].meta["val"].dtype != value.dtype:
            return None
        axes = tuple(args[1]) if args[1:] and args[1] else None
        return np.add.reduce, (args[0], axes), {"keepdims": len(args) > 2 and args[2]}
    if target is _ATEN.expand.default:
        return np.broadcast_to, (args[0], tuple(value.shape)), {}
    if target in _REVERSED and len(args) == 2:
        return _call_of(operator.sub, node, args[::-1])
    if target in _SOFTPLUS:
        return _call_of(_SOFTPLUS[target], node, args)
    if target in _MASKED:
        source, mask, fill = args
        # What is written to must be nobody else's.
        own = source.op == "call_function" and len(source.users) == 1 and root_of(source) is source
        if target is _MASKED[1] and not own:
            return None
        return np.where, (mask, fill, source), {}
    function = _function(target, value.dtype, {each.meta["val"].dtype for each in _tensors(args)})
    return None if function is None else (function, args, {})


def _call_of(function: Callable[..., Any], node: Any, args: Sequence[Any]) -> Call | None:
    """A call of a function of arguments of one floating type."""
    dtype = node.meta["val"].dtype
    alike = {each.meta["val"].dtype for each in _tensors(args)} == {dtype}
    return (function, tuple(args), {}) if alike and dtype.is_floating_point else None


def _softplus(x: np.ndarray, beta: float = 1.0, threshold: float = 20.0) -> np.ndarray:
    scaled = beta * x
    return np.where(scaled > threshold, x, np.log1p(np.exp(scaled)) / beta)


def _softplus_backward(
    gradient: np.ndarray, x: np.ndarray, beta: float, threshold: float
) -> np.ndarray:
    power = np.exp(beta * x)
    return gradient * np.where(beta * x > threshold, 1.0, power / (power + 1.0)).astype(x.dtype)


_SOFTPLUS: dict[Any, Callable[..., Any]] = {
    _ATEN.softplus.default: _softplus,
    _ATEN.softplus_backward.default: _softplus_backward,
}


def _tensors(args: Sequence[Any]) -> list[Any]:
    """Nodes among arguments, those in lists too."""
    return [each for each in pytree.tree_leaves(args) if isinstance(each, Node)]


def _function(
    target: Any, dtype: torch.dtype, given: set[torch.dtype]
) -> Callable[..., Any] | None:
    """The function that gives what torch's operation gives of arguments of these types."""
    if target in _LOGICAL:
        return _LOGICAL[target] if given == {torch.bool} else None
    if target in _WHERE:
        return np.where if dtype in given and given <= {torch.bool, dtype} else None
    if len(given) != 1:
        return None
    if target in _COMPARED:
        return _COMPARED[target]
    if given != {dtype}:
        return None
    if dtype.is_floating_point and target in _FLOATING:
        return _FLOATING[target]
    if dtype != torch.bool and target in _NUMERIC:
        return _NUMERIC[target]
    return _MOVED.get(target)


def _pieces(array: np.ndarray, places: list[Any]) -> list[np.ndarray]:
    return list(map(array.__getitem__, places))


#: A tensor as an array on the same memory.
_as_array: Callable[[Tensor], np.ndarray] = operator.methodcaller("numpy", force=True)


def _as_tensor(value: np.ndarray) -> Tensor:
    # Expanded arrays are not to be written to.
    return torch.from_numpy(value if value.flags.writeable else value.copy())


def _left_call(node: Any) -> Call | None:
    """A call of torch's operation from tensors to one tensor, if it is one."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return None
    if any(isinstance(each, list) and set(each) & set(node.all_input_nodes) for each in node.args):
        return None
    alone = isinstance(node.meta.get("val"), Tensor)
    return (_by_torch, (target._op, *node.args), node.kwargs) if alone else None


def _by_torch(operation: Callable[..., Tensor], *given: Any, **options: Any) -> np.ndarray:
    tensors = (_as_tensor(each) if isinstance(each, np.ndarray) else each for each in given)
    return _as_array(operation(*tensors, **options))
