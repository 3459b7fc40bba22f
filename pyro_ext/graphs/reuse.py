"""Long results of a traced graph, written over values that nothing uses any more.

The activations of a network are of a few lengths, and come and go in another order. An allocator
fits new ones between old ones only in part, so that a process holds more than is ever in use.
Where entries do not depend on each other, a result takes the place of an argument.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from pyro_ext.graphs.simplify import root_of

_ATEN: Any = torch.ops.aten

#: Operations other than those that work entry by entry whose results have memory of their own.
_OWN_MEMORY = (
    _ATEN.bmm.default,
    _ATEN.mm.default,
    _ATEN.convolution.default,
    _ATEN.native_layer_norm.default,
    _ATEN.native_layer_norm_backward.default,
)


def write_over(graph: Graph, long: int) -> None:
    """Let operations that work entry by entry write over an argument of theirs, its last use.

    Nothing may remove dead code from the graph afterwards.

    Parameters
    ----------
    graph : Graph
        Of operations on tensors, each with its ``val``.
    long : int
        Shorter results stay as they are: a call is more than their memory.
    """
    order = {node: number for number, node in enumerate(graph.nodes)}
    roots: dict[Node, Node] = {node: root_of(node) for node in graph.nodes}
    last: dict[Node, int] = {}
    for node, root in roots.items():
        # Views of a value keep its memory in use as well.
        last[root] = max([last.get(root, 0), *(order[user] for user in node.users)])
    for node in list(graph.nodes):
        # Operations with several results have no single place to write to.
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or value.numel() < long:
            continue
        places = [each for each in node.args if _may_take(node, each, roots, last, order)]
        out = _out_variant(node) if places else None
        if out is None:
            continue
        place, (node.target, name) = places[0], out
        node.kwargs = {**node.kwargs, name: place}
        taken, former = roots[place], roots[node]
        # The argument's memory is the result's from here on, and in use until that is used last.
        last[taken] = last[former]
        roots.update({each: taken for each, root in roots.items() if root is former})


def _may_take(
    node: Node,
    place: Any,
    roots: dict[Node, Node],
    last: dict[Node, int],
    order: dict[Node, int],
) -> bool:
    """Whether a node's result fits into the memory of an argument, which nothing uses later."""
    if not isinstance(place, Node) or not isinstance(place.meta.get("val"), Tensor):
        return False
    old, new, root = place.meta["val"], node.meta["val"], roots[place]
    alike = (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
    if not alike or not (old.is_contiguous() and new.is_contiguous()):
        return False
    # The same memory as another argument, seen otherwise, would be overwritten as it is read.
    shared = [each for each in node.all_input_nodes if each is not place and roots[each] is root]
    return not shared and last[root] == order[node] and _has_own_memory(root)


def _has_own_memory(root: Node) -> bool:
    target: Any = root.target
    if not isinstance(target, torch._ops.OpOverload):
        # An item of several results.
        source = root.args[0] if root.op == "call_function" and root.args else None
        return isinstance(source, Node) and source.target in _OWN_MEMORY
    return target in _OWN_MEMORY or torch.Tag.pointwise in target.tags


def _out_variant(node: Node) -> tuple[Any, str] | None:
    """The operation that writes its result to a given place, and that argument's name."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.pointwise not in target.tags:
        return None
    given = [(each.name, str(each.type)) for each in target._schema.arguments]
    packet = target.overloadpacket
    for name in packet.overloads():
        found = getattr(packet, name)
        arguments = found._schema.arguments
        outs = [each.name for each in arguments if each.is_out]
        same = [(each.name, str(each.type)) for each in arguments if not each.is_out] == given
        # Those that torch has generated compute a tensor of their own and copy it.
        if len(outs) == 1 and same and torch.Tag.generated not in found.tags:
            return found, outs[0]
    return None
