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

from pyro_ext.graphs.repeats import (
    by_entry,
    computed,
    inserted,
    see_in_place,
    see_single_pieces,
    without_repeats,
)

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
#: Views from the first entry of their source on.
_VIEWS = (
    *_ADDS_AXIS,
    _ATEN.squeeze.dim,
    _ATEN.squeeze.dims,
    _ATEN.t.default,
    _ATEN.transpose.int,
    _ATEN.permute.default,
    _ATEN.expand.default,
)
_SUMS = (_ATEN.sum.default, _ATEN.sum.dim_IntList)
_SUBTRACT = (_ATEN.sub.Tensor, _ATEN.sub.Scalar)
_MULTIPLY = (_ATEN.mul.Tensor, _ATEN.mul.Scalar)
_DIVIDE = (_ATEN.div.Tensor, _ATEN.div.Scalar)
_ARITHMETIC = (*_ADD, *_SUBTRACT, *_MULTIPLY, *_DIVIDE)
#: The operation that takes the place of another when its second argument changes sign.
_OPPOSITE = dict(zip((*_ADD, *_SUBTRACT), (*_SUBTRACT, *_ADD), strict=True))


def simplify(module: GraphModule) -> None:
    """Fold constants, take equal operations together and drop those that change nothing."""
    graph: Any = module.graph
    see_in_place(graph)
    changed = _changed_memory(graph)
    if any(node.op != "call_function" for node in changed):
        return  # memory from outside, which the graph may have under several names
    constants: dict[Any, Tensor] = {}
    # Each pass leaves constants and equal operations that were none before it, hence the folds.
    see_single_pieces(graph, lambda node: _touches(node, changed))
    _fold(module, constants, changed)
    without_repeats(graph, constants, lambda node: _touches(node, changed))
    _fold(module, constants, changed)
    _carry_signs(graph, changed)
    _drop_unused(graph, constants)
    _carry_numbers(graph, constants, changed)
    _fold(module, constants, changed)
    _write_constants(module, constants)
    graph.eliminate_dead_code()


def _fold(module: GraphModule, constants: dict[Any, Tensor], changed: set[Any]) -> None:
    """Find constants, take equal operations together and drop those that change nothing."""
    graph: Any = module.graph
    known: dict[Hashable, Any] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.meta.get("val"), Tensor):
            continue
        if node in constants or not _is_pure(node) or _touches(node, changed):
            continue
        if (value := _constant(node, constants, module)) is not None:
            constants[node] = value
            continue
        _read_numbers(node, constants)
        same = _same_view(node) or _unchanged(node, constants)
        # Of equal operations the first stands for all, as nothing here changes what it reads.
        same = same or known.setdefault(_description(node), node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _drop_unused(graph: Any, constants: dict[Any, Tensor]) -> None:
    """Drop operations whose results nothing uses, and constants that only such operations read."""
    graph.eliminate_dead_code()
    for node in set(constants).difference(graph.nodes):
        del constants[node]


def root_of(node: Any) -> Any:
    """The node whose memory a node's value is, through views."""
    while isinstance(node, Node) and node.op == "call_function" and node.all_input_nodes:
        source = node.args[0]
        # An item of several results has memory of its own, one of several views has not.
        # Items of a tuple are taken by Python's own ``getitem``, which is no operation of torch's.
        is_item = not isinstance(node.target, torch._ops.OpOverload)
        if not isinstance(source, Node) or not _is_view(source if is_item else node):
            return node
        node = source
    return node


def _is_view(node: Any) -> bool:
    if node.target is _ATEN._unsafe_view.default:
        return True
    target: Any = node.target
    returned = target._schema.returns if isinstance(target, torch._ops.OpOverload) else []
    # The schema says of views that their result may share memory with an argument.
    return bool(returned) and returned[0].alias_info is not None


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
    # Of constants alone, and laid out as it is in the graph, whose views count on that.
    if any(source not in constants for source in node.all_input_nodes):
        return None
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), constants.__getitem__)
    # Computed with the very operation, so that it is rounded as at a call.
    value = target(*args, **kwargs)
    return value if isinstance(value, Tensor) and _form(value) == _form(expected) else None


def _unchanged(node: Any, constants: dict[Any, Tensor]) -> Any:
    """The tensor that an operation returns as it is: x of x + 0, 1 x, x / 1, x^1 and copies."""
    left, right = (*node.args, None, None)[:2]
    target = node.target
    if target in _ADD or target in _MULTIPLY:
        neutral = 0 if target in _ADD else 1
        pairs: Any = ((left, right), (right, left)) if not node.kwargs else ()
    elif target in (*_DIVIDE, _ATEN.pow.Tensor_Scalar, *_SUBTRACT):
        neutral = 0 if target in _SUBTRACT else 1
        pairs = ((left, right),) if not node.kwargs else ()
    elif target is _ATEN.clone.default:
        return left if _alike(left, node) and _is_inside(left, node) else None
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
        neutral_too = bool((torch.as_tensor(value) == neutral).all())
        if neutral_too and (_alike(kept, node) or _alike_for_all(kept, node)):
            return kept
    return None


def _is_inside(source: Any, copied: Any) -> bool:
    """Whether a copy and its source are known in the graph alone: not given, held or returned.

    Not of complex numbers either, whose conjugates are views that not all operations take.
    """
    output = next(iter(reversed(copied.graph.nodes)))
    root, returned = root_of(source), set(map(root_of, output.all_input_nodes))
    value = root.meta.get("val")
    is_complex = isinstance(value, Tensor) and value.is_complex()
    return root.op == "call_function" and not is_complex and not {root, copied} & returned


def _alike_for_all(kept: Any, node: Any) -> bool:
    """Whether all that use a value give the same of another one with other strides."""
    one, other = kept.meta.get("val"), node.meta["val"]
    if not isinstance(one, Tensor) or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    for user in node.users:
        if not by_entry(user):
            return False
        args = tuple(kept if each is node else each for each in user.args)
        found = computed(user.target, args, user.kwargs)
        if found is None or _form(found) != _form(user.meta["val"]):
            return False
    return True


def _read_numbers(node: Any, constants: dict[Any, Tensor]) -> None:
    """Give an operation the number in place of a second argument of one entry."""
    if node.target not in _ARITHMETIC or node.kwargs or len(node.args) != 2:
        return
    first, second = node.args
    if node.target in (*_ADD, *_MULTIPLY) and first in constants:
        first, second = second, first
    value = constants.get(second) if isinstance(second, Node) else None
    if value is None or not isinstance(first, Node) or first in constants:
        return
    # A number takes the type of the tensor, where another tensor could have changed that.
    alike = value.dtype == first.meta["val"].dtype and value.dtype.is_floating_point
    if value.numel() == 1 and alike and first.meta["val"].shape == node.meta["val"].shape:
        node.args = (first, value.item())
        if node.target in _MULTIPLY and node.args[1] == -1.0:
            # Signs are carried on by a pass of their own, which looks for ``neg``.
            node.target, node.args = _ATEN.neg.default, (first,)


def _same_view(node: Any) -> Any:
    """The earlier tensor that a chain of views gives back unchanged; None where there is none."""
    source = node
    while _begins_alike(source) and isinstance(source.meta.get("val"), Tensor):
        (source, *_) = source.args
        if _alike(source, node):
            return source
    return None


def _begins_alike(node: Any) -> bool:
    """Whether a node is a view that has the first entry of its source."""
    if node.target is _ATEN.select.int:
        return bool(node.args[2] == 0)
    return node.target in _VIEWS


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
    """Move negations past products, quotients and sums towards the output of the graph.

    Two of them cancel, and one before an addition makes it a subtraction. No result is rounded
    otherwise. Log densities of Normals have a minus sign, and their gradients another.
    """
    node = next(iter(graph.nodes))
    while node.op != "output":
        if node.target is _ATEN.neg.default and not _touches(node, changed):
            (value,) = node.args
            for user in list(node.users):
                found = None if _touches(user, changed) else _without_sign(user, node)
                if found is None:
                    continue
                operation, args, signed = found
                place, form = user.next, user.meta["val"]
                taken = inserted(place, operation, args, form) if operation else value
                if signed:
                    taken = inserted(place, node.target, (taken,), form)
                user.replace_all_uses_with(taken)
                graph.erase_node(user)
        node = node.next


def _without_sign(user: Any, node: Any) -> tuple[Any, tuple[Any, ...], bool] | None:
    """Operation and arguments in place of a user of ``node``, that is -x, and whether with a minus.

    None where the sign has to stay; no operation where x itself takes the user's place.
    """
    (value,), target = node.args, user.target
    left, right = (*user.args, None, None)[:2]
    # With alpha= another multiple is added, and of x * x both factors have the sign.
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


def _carry_numbers(graph: Any, constants: dict[Any, Tensor], changed: set[Any]) -> None:
    """Multiply by numbers where there are fewest entries: sums, and the smaller of two factors.

    Minibatches scale every row of a likelihood by a number, and the gradient of a square has a 2.
    Two numbers that multiply one after another become one, and a number is added to the smaller of
    two terms.
    """
    for node in reversed(graph.nodes):
        if _touches(node, changed) or not isinstance(node.meta.get("val"), Tensor):
            continue
        if node.target in _SUMS and not node.kwargs:
            found = _multiplied(node.args[0], node, changed)
            if found is not None:
                value, operation, factor = found
                total = inserted(node, node.target, (value, *node.args[1:]), node.meta["val"])
                node.target, node.args = operation, (total, factor)
        elif node.target in _MULTIPLY and not node.kwargs:
            inner, number = node.args
            if isinstance(number, int | float):
                found = _multiplied(inner, node, changed)
                together = found is not None and found[1] in _MULTIPLY
                if found is not None and together and _is_ordinary(found[2] * number):
                    node.args = (found[0], found[2] * number)
                continue
            for place, (small, large) in enumerate((node.args, node.args[::-1])):
                found = _multiplied(large, node, changed)
                if found is None or not isinstance(small, Node):
                    continue
                value, operation, factor = found
                one, other = small.meta["val"], value.meta["val"]
                fewer = small in constants or one.numel() < other.numel()
                if not fewer or one.dtype != other.dtype or one.dim() == 0:
                    continue
                scaled = inserted(node, operation, (small, factor), operation(one, factor))
                if small in constants:
                    constants[scaled] = operation(constants[small], factor)
                node.args = (scaled, value) if place == 0 else (value, scaled)
                break
        elif node.target in (*_ADD, *_SUBTRACT) and not node.kwargs and len(node.args) == 2:
            _add_to_few(node, constants, changed)


def _add_to_few(node: Any, constants: dict[Any, Tensor], changed: set[Any]) -> None:
    """(x + y) + number as x + (y + number), where y has fewer entries than x."""
    inner, number = node.args
    if not isinstance(inner, Node) or not isinstance(number, int | float):
        return
    if inner.target not in (_ATEN.add.Tensor, _ATEN.sub.Tensor) or list(inner.users) != [node]:
        return
    if inner.kwargs or _touches(inner, changed):
        return
    if not all(isinstance(each, Node) for each in inner.args):
        return
    arguments: Any = inner.args
    large, few = arguments
    one, other = few.meta["val"], large.meta["val"]
    fits = one.dtype == other.dtype and one.is_floating_point() and one.dim() > 0
    if not fits or one.numel() >= other.numel() or not _alike(inner, node):
        return
    turned = inner.target is _ATEN.sub.Tensor
    operation = _OPPOSITE[node.target] if turned else node.target
    found = inserted(inner, operation, (few, number), one)
    if few in constants:
        constants[found] = operation(constants[few], number)
    inner.args = (large, found)
    node.replace_all_uses_with(inner)


def _is_ordinary(number: float) -> bool:
    """Whether it is so far from zero and infinity that single precision rounds it and no more."""
    return 1e-30 < abs(number) < 1e30


def _multiplied(node: Any, user: Any, changed: set[Any]) -> tuple[Any, Any, Any] | None:
    """Factor, operation and number of a product with a number that ``user`` alone uses."""
    if not isinstance(node, Node) or node.kwargs or list(node.users) != [user]:
        return None
    if _touches(node, changed):
        return None
    if node.target not in (*_MULTIPLY, *_DIVIDE) or not node.meta["val"].is_floating_point():
        return None
    value, factor = node.args
    if not isinstance(value, Node) or not isinstance(factor, int | float):
        return None
    if not _is_ordinary(factor):
        return None  # entries of both signs have other sums before than after
    alike = _alike(value, node) or _alike_for_all(value, node)
    return (value, node.target, factor) if alike else None


def _write_constants(module: GraphModule, constants: dict[Any, Tensor]) -> None:
    """Put the values in place of the operations; results that leave the graph are copies."""
    graph: Any = module.graph
    (output,) = (node for node in graph.nodes if node.op == "output")
    for result in output.all_input_nodes:
        if root_of(result) in constants:
            # A caller may write into what it gets, and the constant would be another at the next
            # call.
            copy = inserted(output, _ATEN.clone.default, (result,), result.meta["val"])
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


#: Functions of torch that take the arguments of its operations, in two thirds of a call's time.
_FUNCTIONS = {
    getattr(getattr(_ATEN, name), overload): getattr(torch, name)
    for name in (
        "abs add bmm cat clamp_min cos digamma div eq exp expm1 ge gt le lgamma log log1p lt "
        "maximum minimum mm mul mv ne neg pow reciprocal rsqrt rsub sigmoid sin sqrt sub sum t "
        "tanh transpose unsqueeze where xlogy"
    ).split()
    for overload in getattr(_ATEN, name).overloads()
    if "out" not in overload and "name" not in overload.lower()
}


#: Functions of a tensor and a number, which is to the processor what a tensor of it is.
_OF_NUMBERS = (torch.add, torch.sub, torch.rsub, torch.mul, torch.div, torch.pow)


def _own_call(node: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    function = _FUNCTIONS.get(node.target)
    if function is None:
        function = getattr(node.target, "_op", node.target)
    if function not in _OF_NUMBERS or not _has_number(node):
        return function, node.args, node.kwargs
    value, number = node.args
    if function is torch.pow:
        return (torch.mul, (value, value), {}) if number == 2 else (function, node.args, {})
    # torch makes a tensor of a number at every call, which takes as long as a small operation.
    like = value.meta["val"]
    held = torch.tensor(number, dtype=like.dtype, device=like.device)
    if function is torch.rsub:
        return torch.sub, (held, value), {}
    return function, (value, held), {}


def _has_number(node: Any) -> bool:
    """Whether it is an operation of a tensor of floating type and a number, on the processor."""
    if node.kwargs or len(node.args) != 2 or not isinstance(node.args[0], Node):
        return False
    value, number = node.args[0].meta.get("val"), node.args[1]
    return (
        isinstance(value, Tensor)
        # Of half precision torch takes numbers as they are.
        and value.dtype in (torch.float32, torch.float64)
        and value.device.type == "cpu"
        and isinstance(number, int | float)
    )


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
        # The text of a floating number may not be valid Python, as of nan and inf.
        return repr(value) if type(value) in (int, bool, type(None)) else bound(value)

    for node in module.graph.nodes:
        names[node] = f"node_{len(names)}"
        if node.op == "get_attr":
            held = getattr(module, node.target)
            # Constants of the graph's own never change, so that they are made values once.
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
    return values["replay"]
