"""Operations of a traced graph on repeated entries, done on one entry of each.

Vectorising repeats what particles or coordinates share: a noise scale becomes as many equal entries
as there are rows, and a matrix of the data a batch of equal matrices. Operations that work entry by
entry are done before the entries are repeated here, and products with repeated matrices are one
product with the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

_ATEN: Any = torch.ops.aten

#: Operations that change nothing but how their argument is seen, and those that return that.
_SEEN = {
    _ATEN.squeeze_.dims: _ATEN.squeeze.dims,
    _ATEN.squeeze_.dim: _ATEN.squeeze.dim,
    _ATEN.unsqueeze_.default: _ATEN.unsqueeze.default,
}
#: Operations that work entry by entry without saying so.
_BY_ENTRY = (_ATEN.softplus_backward.default,)
#: Operations that say so and want arguments of one shape all the same.
_OF_ONE_SHAPE = (_ATEN.gelu_backward.default,)


def see_in_place(graph: Any) -> None:
    """Return another view in place of changing how an operation's result is seen."""
    for node in graph.nodes:
        if node.target in _SEEN:
            (source, *_) = node.args
            if source.op == "call_function" and len(source.users) == 1:
                node.target = _SEEN[node.target]


def see_single_pieces(graph: Any, touches: Callable[[Any], bool]) -> None:
    """See one piece with one axis more in place of a copy that joins it to no others.

    Operations that cannot be vectorised are done for one position after another, and what they
    give is joined. Other strides than the copy's may follow from that.

    Parameters
    ----------
    graph : Graph
    touches : callable
        Whether a node returns or reads memory that some operation writes to.
    """
    for node in list(graph.nodes):
        if node.target is not _ATEN.stack.default or len(node.args[0]) > 1 or touches(node):
            continue
        (piece,), dim = node.args[0], (*node.args[1:], 0)[0]
        seen = computed(_ATEN.unsqueeze.default, (piece, dim), {})
        forms = None if seen is None else _forms_after(node, seen)
        if forms is not None:
            node.target, node.args = _ATEN.unsqueeze.default, (piece, dim)
            for changed, found in forms.items():
                changed.meta["val"] = _as(_value(changed), found)


def _forms_after(node: Any, value: Tensor) -> dict[Any, Tensor] | None:
    """The values that have other strides where a node has; None where an operation refuses them."""
    found = {node: value}
    while (node := node.next).op != "output":
        if not any(each in found for each in node.all_input_nodes):
            continue
        args, kwargs = torch.fx.map_arg(
            (node.args, node.kwargs),
            lambda each: _without_memory(found[each]) if each in found else _described(each),
        )
        result = _result(node.target, args, kwargs)
        if result is None:
            return None
        if isinstance(result, Tensor):
            if result.stride() != _value(node).stride():
                found[node] = result
        elif [each.stride() for each in result] != [each.stride() for each in node.meta["val"]]:
            return None
    return found


def _described(node: Any) -> Any:
    """A value, or several, without memory."""
    return torch.utils._pytree.tree_map_only(Tensor, _without_memory, node.meta["val"])


def without_repeats(
    graph: Any, constants: dict[Any, Tensor], touches: Callable[[Any], bool]
) -> None:
    """Do operations before their arguments are repeated; results have the layout that they had.

    Parameters
    ----------
    graph : Graph
    constants : dict of Node to tensor
        Values of nodes that are the same at every call; those of new nodes are put in.
    touches : callable
        Whether a node returns or reads memory that some operation writes to.
    """
    short: dict[Any, Any] = {}
    for node in list(graph.nodes):
        if node in constants:
            _shorten_constant(node, constants, short)
        elif node.op != "call_function" or touches(node):
            continue
        elif node.target is _ATEN.expand.default:
            (source, *_) = node.args
            source = short.get(source, source)
            if _value(source) is not None and _value(source).dim() == _value(node).dim():
                short[node] = source
        elif node.target is _ATEN.bmm.default:
            _multiply_once(node)
        elif by_entry(node):
            _repeat_last(node, short)


def inserted(place: Any, target: Any, args: tuple[Any, ...], value: Tensor) -> Any:
    """A further operation right before that of ``place``, with a result such as ``value``."""
    with place.graph.inserting_before(place):
        node = place.graph.call_function(target, args)
    node.meta["val"] = value
    return node


def _shorten_constant(node: Any, constants: dict[Any, Tensor], short: dict[Any, Any]) -> None:
    """One entry of a constant whose entries are all equal."""
    value = constants[node]
    if value.numel() > 1 and bool((value == value.reshape(-1)[0]).all()):
        # One entry in as many dimensions, with which it broadcasts as the whole does.
        one = value[(slice(1),) * value.dim()].clone()
        described = _value(node).new_empty(one.shape)
        first = inserted(node.next, _ATEN.clone.default, (node,), described)
        constants[first], short[node] = one, first


def _repeat_last(node: Any, short: dict[Any, Any]) -> None:
    """Take the arguments of an operation before they were repeated, where the result allows it."""
    args = tuple(short.get(each, each) if isinstance(each, Node) else each for each in node.args)
    if args == node.args:
        return
    value = _value(node)
    found = computed(node.target, args, node.kwargs)
    # A tensor without dimensions promotes types otherwise than one that has some.
    if found is None or found.dtype != value.dtype:
        return
    if found.shape == value.shape:
        # Views of the result may ask for the strides that it had.
        if found.stride() == value.stride():
            node.args = args
        return
    if found.dim() != value.dim():
        return
    one = _as(value, found)
    once = inserted(node, node.target, args, one)
    once.kwargs = node.kwargs
    shape = list(value.shape)
    again = inserted(node, _ATEN.expand.default, (once, shape), one.expand(shape))
    # Some operations want the memory of their arguments as it was.
    short[again] = once
    for user in list(node.users):
        if by_entry(user) or user.target is _ATEN.sum.dim_IntList:
            user.replace_input_with(node, again)
    short[node] = once


def _multiply_once(node: Any) -> None:
    """A batch of products with one matrix as one product.

    x_b M for a batch of x_b, and M x_b for a batch of vectors x_b.
    """
    left, right = node.args
    of_left, of_right = _matrix(left), _matrix(right)
    batch, rows, columns = _value(node).shape
    if of_right is not None and of_left is None:
        moving, matrix, turned = left, of_right, False
        shape = [batch * rows, _value(left).shape[2]]
    # M x_b is x_b' M' where x_b is a vector; of matrices the results would have to be turned.
    elif of_left is not None and of_right is None and columns == 1:
        moving, matrix, turned = right, of_left, True
        shape = [batch, _value(right).shape[1]]
    else:
        return
    flat_value = computed(_ATEN.view.default, (moving, shape), {})
    if flat_value is None:
        return
    if turned:
        matrix = inserted(node, _ATEN.t.default, (matrix,), _value(matrix).t())
    described = _as(_value(moving), flat_value)
    flat = inserted(node, _ATEN.view.default, (moving, shape), described)
    described = _value(node).new_empty((shape[0], _value(matrix).shape[1]))
    product = inserted(node, _ATEN.mm.default, (flat, matrix), described)
    node.target, node.args = _ATEN.view.default, (product, [batch, rows, columns])


def _matrix(node: Any) -> Any:
    """The matrix (n, k) that a batch (B, n, k) repeats, or None."""
    if node.target is not _ATEN.expand.default:
        return None
    (source, *_) = node.args
    return source if _value(source).dim() == 2 else None


def _without_memory(value: Tensor) -> Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _as(value: Tensor, found: Tensor) -> Tensor:
    """A description of a value in the form that has been computed, on the device of another."""
    return value.new_empty_strided(found.shape, found.stride(), dtype=found.dtype)


def by_entry(node: Any) -> bool:
    """Whether an operation without memory of its own makes one entry of one of each argument."""
    target = node.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and (torch.Tag.pointwise in target.tags or target in _BY_ENTRY)
        and target not in _OF_ONE_SHAPE
        and not target._schema.is_mutable
        # Entries that are drawn are not equal, though their arguments are.
        and torch.Tag.nondeterministic_seeded not in target.tags
        and _value(node) is not None
        and not any(isinstance(each, Node) for each in node.kwargs.values())
        and not any(isinstance(each, Sequence) for each in node.args)
    )


def _value(node: Any) -> Any:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def computed(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor | None:
    """Shape and layout of what an operation would give, as a tensor without memory."""
    given = [_without_memory(each.meta["val"]) if isinstance(each, Node) else each for each in args]
    found = _result(target, given, kwargs)
    return found if isinstance(found, Tensor) else None


def _result(target: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What an operation gives of tensors without memory; None where it refuses them."""
    try:
        return target(*args, **kwargs)
    except (RuntimeError, ValueError, TypeError):
        return None
