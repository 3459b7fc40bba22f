"""Operations that a program repeats, step by step or site by site, done at once.

A program with a Python loop of a thousand steps is a graph of a thousand times the operations of
one, of which most are the same on other rows of the data. Here the operations of one run are
recorded, those that are the same are found, and the program becomes a function that does each kind
once, on arguments that are stacked. Operations are the same where they compute the same of
arguments that were computed by the same operations, from rows or numbers that may differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN: Any = torch.ops.aten

#: Operations from which on they are joined where they are the same.
FEWEST_ALIKE = 4
#: Operations from which on a program is worth it, and how many times fewer have to be left.
FEWEST, TIMES_FEWER = 256, 2
#: Entries of a constant up to which it is told from others by its numbers.
SHORT = 4096
#: Terms from which on a sum is taken at once.
MANY_TERMS = 16

#: Operations that read no more than the shape and the kind of their arguments.
_FILLED = {
    each
    for name in ("zeros_like", "ones_like", "new_zeros", "new_ones", "new_full", "full_like")
    for each in (getattr(getattr(_ATEN, name), o) for o in getattr(_ATEN, name).overloads())
}
#: Operations of which an argument may be a number that differs from step to step.
_ARITHMETIC = (_ATEN.add.Tensor, _ATEN.sub.Tensor, _ATEN.mul.Tensor, _ATEN.div.Tensor)
#: Operations that leave the numbers of their result as they are found in memory.
_UNDEFINED = (_ATEN.empty, _ATEN.empty_like, _ATEN.new_empty, _ATEN.empty_strided)
_JOINS = (_ATEN.cat.default, _ATEN.stack.default)


_GIVEN = ("input", "outside", "constant", "undefined")


@dataclass(frozen=True)
class _Ref:
    """A node as an argument."""

    node: Node


@dataclass(eq=False)
class Node:
    """A tensor of the recorded run, or the results of an operation that has several.

    Parameters
    ----------
    kind : str or operation
        "input", "outside", "constant" and "undefined" are given; "row" is entries of a tensor
        along a dimension, "result" one of several results, "total" a sum, and the rest are
        operations.
    args : Any
        What is known of it besides: an input's number; dimension, start and length of rows (None
        for one without the dimension); a result's number; leaves and structure of an operation's
        arguments, nodes as ``_Ref``.
    value : tensor or tuple of tensor
        In the recorded run.
    sources : list of Node
        What it is computed from.
    """

    kind: Any
    args: Any
    value: Any
    sources: list[Node] = field(default_factory=list)
    alike: Alike = field(default_factory=lambda: Alike())
    place: int = 0
    form: Any = None
    depends: bool = False

    def __post_init__(self) -> None:
        self.form = pytree.tree_map(_form, self.value)
        self.depends = self.kind == "input" or any(each.depends for each in self.sources)

    @property
    def given(self) -> bool:
        """Whether it is no result of an operation."""
        return isinstance(self.kind, str) and self.kind in _GIVEN

    @property
    def followed(self) -> bool:
        """Whether automatic differentiation follows it."""
        return any(each.requires_grad for each in pytree.tree_leaves(self.value))


def _form(value: Any) -> Any:
    """Shape and kind of a tensor's numbers."""
    return (value.shape, value.dtype, value.device) if isinstance(value, Tensor) else type(value)


@dataclass(eq=False)
class Alike:
    """Nodes that are the same operation of arguments that are the same operations."""

    nodes: list[Node] = field(default_factory=list)

    @property
    def joined(self) -> bool:
        """Whether they are computed at once."""
        return len(self.nodes) >= FEWEST_ALIKE and not self.nodes[0].given


class _Recorder(TorchDispatchMode):
    """Keeps the operations of a run."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.known: dict[int, Node] = {}
        #: Why the run cannot be told by its operations.
        self.unfit = ""
        for number, each in enumerate(inputs):
            self._keep("input", number, each)

    def _keep(self, kind: Any, args: Any, value: Tensor, sources: Any = ()) -> Node:
        node = Node(kind, args, value, list(sources))
        self.nodes.append(node)
        self.known[id(value)] = node
        return node

    def node_of(self, value: Tensor) -> Node:
        """The node of a tensor, which comes from outside where no operation has made it."""
        known = self.known.get(id(value))
        return self._keep("outside", None, value) if known is None else known

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if self.unfit:
            return found
        # Joined operations run in another order, in which writes and draws would come elsewhere.
        if func._schema.is_mutable or torch.Tag.nondeterministic_seeded in func.tags:
            self.unfit = f"{func} changes a tensor or is random"
            return found
        # What torch.tensor makes of numbers of Python, the same at every run.
        if func is _ATEN.lift_fresh.default or func is _ATEN.lift_fresh_copy.default:
            self._keep("constant", None, found)
            return found
        leaves, spec = pytree.tree_flatten((args, kwargs))
        sources = [self.node_of(leaf) for leaf in leaves if isinstance(leaf, Tensor)]
        if func.overloadpacket in _UNDEFINED:
            self._keep("undefined", None, found)
            return found
        # Made of shapes or of constants alone: the value of this run is that of every run.
        if func in _FILLED or all(each.kind == "constant" for each in sources):
            for leaf in pytree.tree_leaves(found):
                if isinstance(leaf, Tensor) and id(leaf) not in self.known:
                    self._keep("constant", None, leaf)
            return found
        if isinstance(found, Tensor):
            self._call(func, leaves, spec, sources, found)
        elif func in (_ATEN.unbind.int, _ATEN.split_with_sizes.default, _ATEN.split.Tensor):
            self._pieces(func, args, kwargs, sources[0], found)
        elif isinstance(found, tuple) and all(isinstance(each, Tensor) for each in found):
            self._call(func, leaves, spec, sources, found)
        elif any(each.depends for each in sources):
            self.unfit = f"{func} gives Python a number"
        return found

    def _call(
        self, func: Any, leaves: list[Any], spec: Any, sources: list[Node], found: Any
    ) -> None:
        if func is _ATEN.select.int:
            source, dim, index = leaves
            dim, index = dim % source.dim(), index % source.shape[dim]
            self._keep("row", (dim, index, None), found, sources)
            return
        # With steps of one these are entries in a row; with longer ones an operation as any other.
        if func is _ATEN.slice.Tensor and (len(leaves) < 5 or leaves[4] == 1):
            source = leaves[0]
            dim = (leaves[1] if len(leaves) > 1 else 0) % source.dim()
            start = leaves[2] if len(leaves) > 2 and leaves[2] is not None else 0
            start = min(start + source.shape[dim] if start < 0 else start, source.shape[dim])
            self._keep("row", (dim, start, found.shape[dim]), found, sources)
            return
        left = iter(sources)
        given = [_Ref(next(left)) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        node = self._keep(func, (given, spec), found, sources)
        if isinstance(found, tuple):
            for number, each in enumerate(found):
                self._keep("result", number, each, [node])

    def _pieces(self, func: Any, args: Any, kwargs: Any, source: Node, found: Any) -> None:
        place = 1 if func is _ATEN.unbind.int else 2
        dim = args[place] if len(args) > place else kwargs.get("dim", 0)
        dim, start = dim % source.value.dim(), 0
        for piece in found:
            length = None if func is _ATEN.unbind.int else piece.shape[dim]
            self._keep("row", (dim, start, length), piece, [source])
            start += 1 if length is None else length

    def check_gradients(self) -> None:
        """See that automatic differentiation has followed every operation.

        It does not under ``torch.no_grad``, and follows functions with a gradient of their own in
        another way.
        """
        for node in self.nodes:
            if node.given or node.kind in ("result", _ATEN.detach.default):
                continue
            leaves = pytree.tree_leaves(node.value)
            own = torch.autograd.function.BackwardCFunction
            if any(isinstance(leaf.grad_fn, own) for leaf in leaves):
                self.unfit = "a function has a gradient of its own"
            real = any(leaf.is_floating_point() for leaf in leaves)
            if real and not node.followed and any(each.followed for each in node.sources):
                self.unfit = f"{node.kind} is without a gradient"


def joined(
    function: Callable[[Sequence[Tensor]], Any], inputs: Sequence[Tensor]
) -> Callable[[Sequence[Tensor]], Any] | None:
    """The function with operations that are the same done at once.

    Parameters
    ----------
    function : callable
        Of a list of tensors; gives a pytree of tensors.
    inputs : sequence of tensor
        Those of the run that is recorded, of which the first is differentiated. The operations
        must be the same for others of their shapes.

    Returns
    -------
    callable or None
        None where it would not be worth it, or where a run is more than its operations: where it
        changes tensors in place, is random, gives numbers to Python, or hides operations from
        automatic differentiation.
    """
    own = [each.detach() for each in inputs]
    # So that the recorder sees whether differentiation follows every operation.
    own[0].requires_grad_()
    with torch.enable_grad(), _Recorder(own) as recorder:
        result = function(own)
    leaves, spec = pytree.tree_flatten(result)
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        return None
    outputs = [recorder.node_of(leaf) for leaf in leaves]
    recorder.check_gradients()
    if recorder.unfit:
        return None
    needed = _needed(recorder.nodes, outputs)
    if any(node.kind == "undefined" for node in needed):
        return None
    nodes, outputs = _without_repeats(needed, outputs)
    nodes = _with_totals(nodes, outputs)
    kinds = _alike(nodes)
    operations = sum(not node.given for node in recorder.nodes)
    # Operations after joining: one of each kind that is joined.
    left = sum(1 if each.joined else len(each.nodes) for each in kinds if not each.nodes[0].given)
    if operations < FEWEST or left * TIMES_FEWER > operations:
        return None
    for node in nodes:
        if node.kind not in ("outside", "constant"):
            node.value = None  # with all that it takes to differentiate the run
    return _Joined(kinds, outputs, spec)


def _needed(nodes: list[Node], outputs: Sequence[Node]) -> list[Node]:
    needed, left = set(map(id, outputs)), list(outputs)
    while left:
        for source in left.pop().sources:
            if id(source) not in needed:
                needed.add(id(source))
                left.append(source)
    return [node for node in nodes if id(node) in needed]


def _without_repeats(nodes: list[Node], outputs: list[Node]) -> tuple[list[Node], list[Node]]:
    """The nodes with those that compute the same taken together."""
    same: dict[int, Node] = {}
    known: dict[Any, Node] = {}
    kept = []
    for node in nodes:
        node.sources = [same[id(source)] for source in node.sources]
        if not node.given and not isinstance(node.kind, str):
            left = iter(node.sources)
            given, spec = node.args
            # References follow their sources to the nodes that are kept.
            given = [_Ref(next(left)) if isinstance(leaf, _Ref) else leaf for leaf in given]
            node.args = (given, spec)
        first = known.setdefault(_description(node), node)
        same[id(node)] = first
        if first is node:
            kept.append(node)
    return kept, [same[id(node)] for node in outputs]


def _description(node: Node) -> Any:
    """What two nodes that compute the same have in common."""
    if node.kind == "constant" and node.value.numel() <= SHORT:
        value = node.value.detach().cpu().contiguous()
        return "constant", node.form, repr(value.reshape(-1).tolist())
    if node.given:
        return id(node)
    if isinstance(node.kind, str):
        return node.kind, node.args, *map(id, node.sources)
    given, spec = node.args
    parts = [id(leaf.node) if isinstance(leaf, _Ref) else repr(leaf) for leaf in given]
    return node.kind, str(spec), *parts


def _with_totals(nodes: list[Node], outputs: list[Node]) -> list[Node]:
    """The nodes with long sums, one term added after another, as one operation each."""
    users = Counter(id(source) for node in nodes for source in node.sources)
    users.update(map(id, outputs))
    inner: set[int] = set()
    for node in reversed(nodes):
        if id(node) in inner or not _adds(node):
            continue
        terms, left, passed = [], list(reversed(node.sources)), []
        while left:
            term = left.pop()
            # A partial sum that something else takes has to be there by itself.
            if _adds(term) and users[id(term)] == 1 and term.form == node.form:
                passed.append(id(term))
                left.extend(reversed(term.sources))
            else:
                terms.append(term)
        if len(terms) >= MANY_TERMS and all(term.form == node.form for term in terms):
            inner.update(passed)
            node.kind, node.args, node.sources = "total", None, terms
    return [node for node in nodes if id(node) not in inner]


def _adds(node: Node) -> bool:
    """Whether it is a sum of two tensors."""
    return node.kind is _ATEN.add.Tensor and len(node.sources) == len(node.args[0]) == 2


def _alike(nodes: list[Node]) -> list[Alike]:
    """Nodes that are the same, in an order in which they can be computed."""
    kinds: dict[Any, Alike] = {}
    for node in nodes:
        node.alike = kinds.setdefault(_kind(node), Alike())
        node.place = len(node.alike.nodes)
        node.alike.nodes.append(node)
    return list(kinds.values())


def _kind(node: Node) -> Any:
    """What nodes have in common that are the same operation of the same kinds of arguments."""
    if node.given:
        # Those of one kind are stacked, which would copy long ones, such as the data, at every run.
        return id(node) if node.value.numel() > SHORT else ("given", node.form)
    if node.kind == "total":
        return id(node)
    if node.kind == "row":
        (source,), (dim, _, length) = node.sources, node.args
        return "row", id(source) if source.given else id(source.alike), dim, length
    if node.kind == "result":
        return "result", id(node.sources[0].alike), node.args
    given, spec = node.args
    parts = [id(leaf.node.alike) if isinstance(leaf, _Ref) else repr(leaf) for leaf in given]
    for place in _numbers(node):
        parts[place] = "number"
    return node.kind, str(spec), node.form, *parts


def _numbers(node: Node) -> list[int]:
    """Where among its arguments a node has numbers that may differ."""
    if node.kind not in _ARITHMETIC:
        return []
    return [place for place, leaf in enumerate(node.args[0][:2]) if type(leaf) in (int, float)]


class _Joined:
    """The recorded function, of other inputs.

    Parameters
    ----------
    kinds : list of Alike
    outputs : list of Node
    spec : TreeSpec
        Of what is returned.
    """

    def __init__(self, kinds: list[Alike], outputs: list[Node], spec: Any) -> None:
        self.kinds, self.outputs, self.spec = kinds, outputs, spec

    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        values = _Values(inputs)
        for kind in self.kinds:
            values.compute(kind)
        found = [values.of(node) for node in self.outputs]
        return pytree.tree_unflatten(found, self.spec)


class _Values:
    """Values of nodes: of those that are alike together, along a first dimension, or in a list."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.inputs = inputs
        self.found: dict[int, Any] = {}

    def of(self, node: Node) -> Tensor:
        """The value of one node."""
        return self.found[id(node.alike)][node.place]

    def compute(self, kind: Alike) -> None:
        """Find the values of nodes, whose arguments have been found."""
        self.found[id(kind)] = (
            self._at_once(kind.nodes) if kind.joined else [self._alone(n) for n in kind.nodes]
        )

    def stacked(self, nodes: Sequence[Node]) -> Tensor:
        """Values of nodes of one shape, stacked."""
        tensors: list[Tensor] = []
        starts: dict[int, int] = {}
        length, places = 0, []
        for node in nodes:
            together = node.alike.joined
            key = id(node.alike if together else node)
            # Nodes that were computed at once are stacked already: their whole stack is taken,
            # once.
            if key not in starts:
                value = self.found[key] if together else self.of(node).unsqueeze(0)
                tensors.append(value)
                starts[key], length = length, length + len(value)
            places.append(starts[key] + node.place * together)
        return _at(tensors[0] if len(tensors) == 1 else torch.cat(tensors), places)

    def _alone(self, node: Node) -> Any:
        if node.kind == "input":
            return self.inputs[node.args]
        if node.given:
            return node.value
        if node.kind == "row":
            dim, start, length = node.args
            whole = self.of(node.sources[0])
            return whole.select(dim, start) if length is None else whole.narrow(dim, start, length)
        if node.kind == "result":
            (source,), number = node.sources, node.args
            held = self.found[id(source.alike)]
            return held[number][source.place] if source.alike.joined else held[source.place][number]
        if node.kind == "total":
            return self.stacked(node.sources).sum(0)
        # A join of many pieces of one shape is their stack seen in another way.
        if node.kind in _JOINS and len(node.sources) >= FEWEST_ALIKE and _alike_in_shape(node):
            options = [leaf for leaf in node.args[0] if not isinstance(leaf, _Ref)]
            dim = options[0] if options else 0
            together = self.stacked(node.sources)
            if node.kind is _ATEN.stack.default:
                return together.movedim(0, dim)
            dim = dim % (together.dim() - 1)
            return together.movedim(0, dim).flatten(dim, dim + 1)
        given, spec = node.args
        return _called(node.kind, given, spec, [self.of(source) for source in node.sources])

    def _at_once(self, nodes: list[Node]) -> Any:
        first = nodes[0]
        if first.kind == "row":
            return self._rows(nodes)
        if first.kind == "result":
            sources = [node.sources[0] for node in nodes]
            held, number = self.found[id(sources[0].alike)], first.args
            if not sources[0].alike.joined:
                held = [torch.stack(each) for each in zip(*held, strict=True)]
            return _at(held[number], [source.place for source in sources])
        tensors, dims, given = [], [], list(first.args[0])
        numbers = _numbers(first)
        for place, leaves in enumerate(zip(*(node.args[0] for node in nodes), strict=True)):
            if isinstance(leaves[0], _Ref):
                sources = [leaf.node for leaf in leaves]
                same = all(source is sources[0] for source in sources)
                tensors.append(self.of(sources[0]) if same else self.stacked(sources))
                dims.append(None if same else 0)
            elif place in numbers and any(leaf != leaves[0] for leaf in leaves):
                # Numbers that differ from step to step, in the type of the result, which they leave
                # as it is.
                _, dtype, device = first.form
                tensors.append(torch.tensor(leaves, dtype=dtype, device=device))
                dims.append(0)
                given[place] = _Ref(first)

        def call(*tensors: Tensor) -> Any:
            return _called(first.kind, given, first.args[1], tensors)

        # By vmap, so that an operation is done at once without a rule of its own for a further
        # axis.
        return torch.vmap(call, in_dims=tuple(dims))(*tensors)

    def _rows(self, nodes: list[Node]) -> Tensor:
        """Entries along a dimension of one source or of several."""
        dim, _, length = nodes[0].args
        sources = dict.fromkeys(node.sources[0] for node in nodes)
        first = next(iter(sources))
        device = self.of(first).device
        starts = torch.tensor([node.args[1] for node in nodes], device=device)
        if length is not None:
            starts = (starts.unsqueeze(-1) + torch.arange(length, device=device)).reshape(-1)
        if len(sources) == 1:
            source = self.of(first).movedim(dim, 0)
            # One operation, whose gradient adds up at once what a thousand slices would each add to
            # a vector of zeros.
            found = source.index_select(0, starts)
        else:
            numbers = {id(source): number for number, source in enumerate(sources)}
            which = torch.tensor([numbers[id(node.sources[0])] for node in nodes], device=device)
            if length is not None:
                which = which.repeat_interleave(length)
            together = self.stacked(list(sources)).movedim(dim + 1, 1)
            found = together[which, starts]
        if length is None:
            return found
        return found.unflatten(0, (len(nodes), length)).movedim(1, dim + 1)


def _alike_in_shape(node: Node) -> bool:
    """Whether all that is computed from is of one shape."""
    return all(source.form == node.sources[0].form for source in node.sources)


def _at(together: Tensor, places: list[int]) -> Tensor:
    """Entries along the first dimension."""
    if places == list(range(len(together))):
        return together
    return together.index_select(0, torch.tensor(places, device=together.device))


def _called(kind: Any, given: list[Any], spec: Any, tensors: Sequence[Tensor]) -> Any:
    """An operation of these tensors, which stand for the nodes among its arguments."""
    left = iter(tensors)
    leaves = [next(left) if isinstance(leaf, _Ref) else leaf for leaf in given]
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return kind(*args, **kwargs)
