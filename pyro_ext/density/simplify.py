"""Making a traced graph short: what is constant is computed once, what is equal only once.

Handlers, vectorizing and differentiating leave many operations that do nothing, or the same thing
at every call: constants of distributions, their logarithms, sums with zeros, values that forward
and backward pass both compute. On a small model each costs as much as the arithmetic of a layer of
a network. Constants are those that the trace itself has made; tensors that the model closes over
are read at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_ATEN: Any = torch.ops.aten

#: Constants with more entries are computed at every call: they would be held for good.
LARGEST_CONSTANT = 4096

#: How the names of constants begin that are part of the graph.
_CONSTANT = "_constant_"

#: Operations that read the shape and the kind of their argument alone, with the value they fill.
_FILLED = {
    _ATEN.zeros_like.default: 0,
    _ATEN.ones_like.default: 1,
    _ATEN.new_zeros.default: 0,
    _ATEN.new_ones.default: 1,
}
_UNDEFINED = (_ATEN.empty, _ATEN.empty_like, _ATEN.new_empty, _ATEN.empty_strided)
_ADD = (_ATEN.add.Tensor, _ATEN.add.Scalar)
_ADDS_AXIS = (_ATEN.unsqueeze.default, _ATEN.view.default, _ATEN._unsafe_view.default)
_SUBTRACT = (_ATEN.sub.Tensor, _ATEN.sub.Scalar)
_MULTIPLY = (_ATEN.mul.Tensor, _ATEN.mul.Scalar)
_DIVIDE = (_ATEN.div.Tensor, _ATEN.div.Scalar)
#: The operation that takes the place of another when its second argument changes sign.
_OPPOSITE = dict(zip((*_ADD, *_SUBTRACT), (*_SUBTRACT, *_ADD), strict=True))


def simplify(module: GraphModule) -> None:
    """Fold constants, take equal operations together and drop those that change nothing."""
    graph: Any = module.graph
    changed = _changed_memory(graph)
    if any(node.op != "call_function" for node in changed):
        return  # memory from outside, which the graph may have under several names
    constants: dict[Any, Tensor] = {}
    known: dict[Hashable, Any] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.meta.get("val"), Tensor):
            continue
        if not _is_pure(node) or _touches(node, changed):
            continue
        value = _constant(node, constants, module)
        if value is not None:
            constants[node] = value
            continue
        same = _unchanged(node, constants) or known.setdefault(_description(node), node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    _carry_signs(graph, changed)
    _double_constants(graph, constants, changed)
    _write_constants(module, constants)
    graph.eliminate_dead_code()


def root_of(node: Any) -> Any:
    """The node whose memory a node's value is, through views."""
    while isinstance(node, Node) and node.op == "call_function":
        if not isinstance(node.target, torch._ops.OpOverload):
            # An item of a list of views, or a call that allocates.
            if not node.all_input_nodes:
                return node
            node = node.args[0]
            continue
        returned = node.target._schema.returns
        if not returned or returned[0].alias_info is None:
            return node
        node = node.args[0]
    return node


def _changed_memory(graph: Any) -> set[Any]:
    """The nodes whose memory some operation writes to."""
    changed = set()
    for node in graph.nodes:
        if _writes(node):
            for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    changed.add(root_of(value))
            changed.update(root_of(value) for name, value in node.kwargs.items() if name == "out")
    return changed


def _touches(node: Any, changed: set[Any]) -> bool:
    """Whether a node returns or reads memory that some operation writes to."""
    return any(root_of(each) in changed for each in (node, *node.all_input_nodes))


def _is_pure(node: Any) -> bool:
    target = node.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
        and target.overloadpacket not in _UNDEFINED
    )


def _constant(node: Any, constants: dict[Any, Tensor], module: GraphModule) -> Tensor | None:
    """The value of a node that is the same at every call, if it is short."""
    expected: Tensor = node.meta["val"]
    target: Any = node.target
    if expected.numel() > LARGEST_CONSTANT:
        return None
    if target is _ATEN.lift_fresh_copy.default and node.args[0].op == "get_attr":
        # A tensor that was made while tracing.
        return getattr(module, node.args[0].target).detach().clone()
    if target in _FILLED or target is _ATEN.full_like.default:
        fill = node.args[1] if target is _ATEN.full_like.default else _FILLED[target]
        if isinstance(fill, Node):
            return None
        return torch.full(expected.shape, fill, dtype=expected.dtype, device=expected.device)
    if any(source not in constants for source in node.all_input_nodes):
        return None
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), constants.__getitem__)
    value = target(*args, **kwargs)
    return value if isinstance(value, Tensor) and _form(value) == _form(expected) else None


def _unchanged(node: Any, constants: dict[Any, Tensor]) -> Any:
    """The tensor that an operation returns as it is: x of x + 0, 1 x, x / 1, x^1 or sum x."""
    left, right = (*node.args, None, None)[:2]
    target = node.target
    if target in _ADD or target in _MULTIPLY:
        neutral = 0 if target in _ADD else 1
        pairs: Any = ((left, right), (right, left)) if not node.kwargs else ()
    elif target in (_ATEN.div.Tensor, _ATEN.pow.Tensor_Scalar, _ATEN.sub.Tensor):
        neutral = 0 if target is _ATEN.sub.Tensor else 1
        pairs = ((left, right),) if not node.kwargs else ()
    elif target is _ATEN.sum.dim_IntList and len(node.args) == 2 and not node.kwargs:
        # Over an axis of one entry that has just been added.
        added = isinstance(left, Node) and left.target in _ADDS_AXIS
        one_entry = added and left.meta["val"].numel() == node.meta["val"].numel()
        return left.args[0] if one_entry and _alike(left.args[0], node) else None
    else:
        return None
    for kept, other in pairs:
        value = constants.get(other) if isinstance(other, Node) else other
        if not isinstance(kept, Node) or value is None:
            continue
        if bool((torch.as_tensor(value) == neutral).all()) and _alike(kept, node):
            return kept
    return None


def _alike(one: Any, other: Any) -> bool:
    """Whether two values have the same shape, strides and dtype."""
    value = one.meta.get("val")
    return isinstance(value, Tensor) and _form(value) == _form(other.meta["val"])


def _form(value: Tensor) -> tuple[Any, ...]:
    return value.shape, value.stride(), value.dtype


def _description(node: Any) -> Hashable:
    """What two nodes that compute the same have in common."""
    # Numbers by their text: 1, 1.0 and True are equal, and nan is not.
    return node.target, repr(node.args), repr(sorted(node.kwargs.items()))


def _carry_signs(graph: Any, changed: set[Any]) -> None:
    """Carry minus signs on until they meet each other or an addition; no rounding depends on them.

    A square takes part in a log density with a minus sign and in its gradient with another.
    """
    node = next(iter(graph.nodes))
    while node.op != "output":
        if node.target is _ATEN.neg.default and not _touches(node, changed):
            (value,) = node.args
            for user in list(node.users):
                found = None if _touches(user, changed) else _without_sign(user, node)
                if found is None:
                    continue
                with graph.inserting_after(user):
                    taken = graph.call_function(*found[:2]) if found[0] else value
                taken.meta.setdefault("val", user.meta["val"])
                if found[2]:
                    with graph.inserting_after(taken):
                        signed = graph.call_function(node.target, (taken,))
                    signed.meta["val"] = user.meta["val"]
                    taken = signed
                user.replace_all_uses_with(taken)
                graph.erase_node(user)
        node = node.next


def _without_sign(user: Any, node: Any) -> tuple[Any, tuple[Any, ...], bool] | None:
    """Operation and arguments in place of a user of ``node``, that is -x, and whether with a minus.

    None where the sign has to stay; no operation where x itself takes the user's place.
    """
    (value,), target = node.args, user.target
    left, right = (*user.args, None, None)[:2]
    if user.kwargs or left is right:
        return None
    if target is node.target:
        return None, (), False
    if target in _OPPOSITE and right is node:
        return _OPPOSITE[target], (left, value), False
    if target is _ATEN.add.Tensor and isinstance(right, Node):
        # In another order memory could be laid out differently.
        contiguous = all(each.meta["val"].is_contiguous() for each in (value, right, user))
        return (_ATEN.sub.Tensor, (right, value), False) if contiguous else None
    if len(node.users) > 1:
        return None
    if target in _OPPOSITE:
        return _OPPOSITE[target], (value, right), True
    if target in (*_MULTIPLY, *_DIVIDE, _ATEN.sum.dim_IntList):
        return target, tuple(value if each is node else each for each in user.args), True
    return None


def _double_constants(graph: Any, constants: dict[Any, Tensor], changed: set[Any]) -> None:
    """Double the constant c in c (2 x), as in the gradient of a square, and not x at every call."""
    for node in list(graph.nodes):
        constant, twice = (*node.args, None, None)[:2]
        doubled = isinstance(twice, Node) and twice.target is _ATEN.mul.Scalar
        if node.target is _ATEN.mul.Tensor and constant in constants and doubled:
            value, factor = twice.args
            if _touches(twice, changed):
                continue
            if factor == 2 and value.meta["val"].dtype == constants[constant].dtype:
                with graph.inserting_before(node):
                    found = graph.call_function(twice.target, (constant, factor))
                constants[found] = constants[constant] * factor
                found.meta["val"] = constants[found]
                node.args = (found, value)


def _write_constants(module: GraphModule, constants: dict[Any, Tensor]) -> None:
    """Put the values in place of the operations; results that leave the graph are copies."""
    graph: Any = module.graph
    (output,) = (node for node in graph.nodes if node.op == "output")
    for result in output.all_input_nodes:
        if root_of(result) in constants:
            with graph.inserting_before(output):
                copy = graph.call_function(_ATEN.clone.default, (result,))
            copy.meta["val"] = result.meta["val"]
            output.replace_input_with(result, copy)
    for number, (node, value) in enumerate(constants.items()):
        if node.users:
            module.register_buffer(f"{_CONSTANT}{number}", value)
            with graph.inserting_before(node):
                held = graph.get_attr(f"{_CONSTANT}{number}")
            held.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(held)


def _writes(node: Any) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _own_call(node: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return getattr(node.target, "_op", node.target), node.args, node.kwargs


def replayed(
    module: GraphModule,
    call: Callable[[Any], tuple[Any, tuple[Any, ...], dict[str, Any]]] = _own_call,
    to_values: Callable[[Tensor], Any] = Tensor.detach,
    to_tensor: Callable[[Any], Tensor] | None = None,
) -> Callable[..., Any]:
    """The graph as one Python function that calls torch's operations one after another.

    ``torch.fx`` would look every operation up by name at every call, and go through a module's
    hooks and the operation's own Python wrapper, which costs as much as a small operation.

    Parameters
    ----------
    module : GraphModule
    call : callable
        From a node to the function that is called for it, and its arguments and keywords.
    to_values, to_tensor : callable, optional
        From tensors that the graph is given or holds to what is computed with, and back.
    """
    values: dict[str, Any] = {}
    names: dict[Any, str] = {}
    lines: list[str] = []
    last_use = {source: node for node in module.graph.nodes for source in node.all_input_nodes}

    def bound(value: Any) -> str:
        name = f"value_{len(values)}"
        values[name] = value
        return name

    def text(value: Any) -> str:
        if isinstance(value, Node):
            return names[value]
        if isinstance(value, dict):
            return f"{{{', '.join(f'{bound(key)}: {text(item)}' for key, item in value.items())}}}"
        if isinstance(value, tuple | list):
            items = ", ".join(map(text, value))
            if hasattr(value, "_fields"):
                return f"{bound(type(value))}({items})"
            return f"({items},)" if isinstance(value, tuple) and value else f"[{items}]"
        return repr(value) if type(value) in (int, bool, type(None)) else bound(value)

    for node in module.graph.nodes:
        names[node] = f"node_{len(names)}"
        if node.op == "get_attr":
            held = getattr(module, node.target)
            if node.target.startswith(_CONSTANT):
                names[node] = bound(to_values(held))
            else:  # at every call: `tensor.data = ...` gives it other memory
                lines.append(f"{names[node]} = {bound(to_values)}({bound(held)})")
        elif node.op == "call_function":
            function, args, kwargs = call(node)
            given = [*map(text, args), *(f"{name}={text(value)}" for name, value in kwargs.items())]
            lines.append(f"{names[node]} = {bound(function)}({', '.join(given)})")
        elif node.op == "placeholder" and to_tensor is not None:
            lines.append(f"{names[node]} = {bound(to_values)}({names[node]})")
        elif node.op == "output":
            if to_tensor is not None:
                results = [names[result] for result in node.all_input_nodes]
                lines += [f"{name} = {bound(to_tensor)}({name})" for name in results]
            lines.append(f"return {text(node.args[0])}")
            break
        # Memory is given back as soon as a tensor has been used.
        used = [source for source in node.all_input_nodes if last_use[source] is node]
        used += [node] if node not in last_use else []
        done = [names[source] for source in used if source.op in ("placeholder", "call_function")]
        if done:
            lines.append(f"{' = '.join(done)} = None")
    inputs = ", ".join(names[node] for node in module.graph.nodes if node.op == "placeholder")
    source = "\n    ".join([f"def replay({inputs}):", *lines])
    exec(compile(source, "<traced graph>", "exec"), values)
    replay: Callable[..., Any] = values["replay"]
    return replay
