"""Evaluating one function of a particle for many particles at once.

A function of a single flat vector is lifted to a batch in the fastest way that the model
allows: ``torch.func.vmap`` over particles traced once to an ATen graph (optionally compiled by
Inductor), the same ``vmap`` run through Pyro's handlers at every call, or a Python loop. A
traced graph replays tensor operations only: parameters, row indices and tensors passed as
arguments are its inputs, whereas tensors that the model closes over become constants. Every
new graph is compared with the handlers at other parameters than those it was traced at.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ppl_ext.errors import ArgumentError, EvaluationWarning, ModelCheckError
from ppl_ext.process import KEEPERS, swapped
from pyro_ext.density.handlers import without_host_checks
from pyro_ext.density.numpy_graph import numpy_replay
from pyro_ext.density.own_buffers import OwnBuffers
from pyro_ext.density.reuse import write_over
from pyro_ext.density.short_functions import ShortFunctions
from pyro_ext.density.shortened import Shortened
from pyro_ext.density.simplify import replayed, simplify

MODES = ("inductor", "graph", "handlers", "loop")

#: Graphs kept by one function; the oldest makes room.
MAX_GRAPHS = 32

# What vmap, functorch's grad and make_fx raise when a model does something that they cannot
# express. The model itself has been run eagerly before, so its own faults come up there.
_LIFT_FAILURES = (RuntimeError, TypeError, ValueError, AssertionError, KeyError)

Single = Callable[[Tensor, Any], Any]
_LEAVES = (Tensor, torch.nn.Parameter, int, float, bool, str, type(None))
_PLAIN = (Tensor, complex, bytes, torch.dtype, FunctionType, BuiltinFunctionType, type)


def _static_key(leaf: Any) -> Hashable:
    if isinstance(leaf, (bool, int, float, complex, str, bytes, type(None), torch.dtype)):
        return type(leaf), leaf
    return type(leaf), id(leaf)


class Inputs:
    """Arguments split into tensors, which a graph takes as inputs, and everything else."""

    def __init__(self, arguments: Any) -> None:
        leaves, self._spec = _flattened(arguments)
        # Identity keys are safe only while the objects live, so whoever keeps the key keeps them.
        self.leaves = leaves
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.key: tuple[Hashable, ...] = (
            str(self._spec) if isinstance(self._spec, pytree.TreeSpec) else self._spec,
            *(
                (leaf.shape, leaf.dtype, leaf.device)
                if isinstance(leaf, Tensor)
                else _static_key(leaf)
                for leaf in leaves
            ),
        )

    @property
    def may_change(self) -> bool:
        """Whether an argument is an object that may change without being seen from outside."""
        return not all(type(leaf) in _LEAVES or isinstance(leaf, _PLAIN) for leaf in self.leaves)

    def is_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the arguments of a call are these very ones, each of the form that it had.

        Values of tensors may differ. False where one would have to look into containers.
        """
        if type(self._spec) is not tuple or (len(args), tuple(kwargs)) != self._spec[:2]:
            return False
        for given, leaf, form in zip(
            (*args, *kwargs.values()), self.leaves, self.key[1:], strict=False
        ):
            if given is not leaf:
                return False
            # A tensor may be resized in place.
            if isinstance(leaf, Tensor) and (leaf.shape, leaf.dtype, leaf.device) != form:
                return False
        return True

    def rebuild(self, tensors: list[Tensor] | tuple[Tensor, ...]) -> Any:
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        if isinstance(self._spec, pytree.TreeSpec):
            return pytree.tree_unflatten(leaves, self._spec)
        number, *names = self._spec
        rest = iter(leaves[number:])
        return (tuple(leaves[:number]), *(dict(zip(keys, rest, strict=False)) for keys in names))


def _flattened(arguments: Any) -> tuple[list[Any], Any]:
    """The leaves of a pytree, and what it takes to put them together again.

    Those of :func:`as_arguments` are found without torch's help, which takes as long as ten
    operations on small tensors.
    """
    if len(arguments) == 3 and type(arguments[1]) is type(arguments[2]) is dict:
        args, kwargs, indices = arguments
        leaves = [*args, *kwargs.values(), *indices.values()]
        if all(type(leaf) in _LEAVES for leaf in leaves):
            return leaves, (len(args), tuple(kwargs), tuple(indices))
    return pytree.tree_flatten(arguments)


#: Differences from the model that are taken for rounding, relative and absolute.
RELATIVE, ABSOLUTE = 1e-3, 1e-5
#: Positions that tell how much an entry of a result is rounded, and how often that is allowed.
NEAR, ROUNDINGS = 4, 30.0


class Memory:
    """Memory for a long result, which the caller may lend, for one use.

    Memory that a program holds already is several times faster to write than memory that the
    system has to hand out, and a result of the last evaluation is often of no use any more.
    """

    def __init__(self) -> None:
        self._lent: Tensor | None = None

    def lend(self, tensor: Tensor | None) -> None:
        """Let the next result be written into ``tensor``, if it fits; None takes it back."""
        self._lent = tensor

    def empty(self, shape: list[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor with any content: the lent one or a new one."""
        lent, self._lent = self._lent, None
        if (
            lent is not None
            and list(lent.shape) == shape
            and (lent.dtype, lent.device) == (dtype, device)
            and lent.is_contiguous()
        ):
            return lent
        return torch.empty(shape, dtype=dtype, device=device)


class _Last(NamedTuple):
    """A graph and what it was replayed for last."""

    graph: Callable[..., Any]
    inputs: Inputs
    arguments: Any
    in_dims: Any
    form: tuple[Any, ...]


class BatchedFunction:
    """Lift ``single(z, arguments)`` from one flat vector (D,) to particles (P, D).

    Parameters
    ----------
    single : callable
        Function of one flat vector and a pytree of arguments, returning a pytree of tensors.
    mode : {"inductor", "graph", "handlers", "loop"}
        Fastest way to try; slower ones follow when a model does not allow it, with one
        :class:`~ppl_ext.errors.EvaluationWarning` that gives the reason.
    particle_chunk : int, optional
        Evaluate at most this many particles at once, which bounds memory.
    inner : Shortened, optional
        A part of ``single``, of a program of many steps.
    """

    def __init__(
        self,
        single: Single,
        mode: str = "graph",
        particle_chunk: int | None = None,
        inner: Shortened | None = None,
    ) -> None:
        if mode not in MODES:
            raise ArgumentError(f"Expected evaluation to be one of {MODES}, found {mode!r}.")
        self.single = single
        self.mode = mode
        self.particle_chunk = particle_chunk
        self.inner = inner
        self.memory = Memory()
        self._graphs: dict[Hashable, tuple[Callable[..., Any], Inputs]] = {}
        # So that the same arguments, step after step, need not be looked up again.
        self._last: _Last | None = None
        self._told_many = False
        self._untold: list[str] = []
        self._succeeded = False
        # Whether the model writes into tensors that it makes: see OwnBuffers.
        self._writes = False

    def retrace(self) -> None:
        """Forget the traced graphs, for example after changing a tensor the model closes over."""
        self._graphs.clear()
        self._last = None
        if self.inner is not None:
            self.inner.forget()

    def __call__(self, z: Float[Tensor, "P D"], arguments: Any, in_dims: Any = None) -> Any:
        """Results at particles (P, D), each with a leading axis of P.

        ``in_dims`` says which of the arguments have a leading axis of particles too, as for
        ``torch.func.vmap``: None or 0 for each; default none, so that all particles share them.
        """
        last = self._last
        if (
            last is not None
            and last.arguments is arguments
            and last.in_dims is in_dims
            and last.form == (z.shape, z.dtype, z.device)
            and last.inputs.is_of(arguments[0], arguments[1])
        ):
            with torch.no_grad():
                return last.graph(z.detach(), *last.inputs.tensors)
        chunk = self.particle_chunk
        if chunk is None or z.shape[0] <= chunk:
            return self._evaluate(z, arguments, in_dims)
        parts = [
            self._evaluate(
                z[start : start + chunk], _part(arguments, in_dims, start, chunk), in_dims
            )
            for start in range(0, len(z), chunk)
        ]
        return pytree.tree_map(lambda *pieces: torch.cat(pieces), *parts)

    def _evaluate(self, z: Tensor, arguments: Any, in_dims: Any) -> Any:
        result = self._evaluated(z, arguments, in_dims)
        # A way that works is there to be told of; where none is, the error says why.
        self._succeeded = True
        while self._untold:
            warnings.warn(self._untold.pop(0), EvaluationWarning, stacklevel=2)
        return result

    def _evaluated(self, z: Tensor, arguments: Any, in_dims: Any) -> Any:
        z = z.detach()
        with torch.no_grad():
            if self.mode in ("graph", "inductor"):
                inputs = Inputs(arguments)
                key = (tuple(z.shape), z.dtype, z.device, inputs.key, in_dims)
                entry = self._graphs.get(key)
                if entry is not None:
                    form = z.shape, z.dtype, z.device
                    self._last = _Last(entry[0], inputs, arguments, in_dims, form)
                    return entry[0](z, *inputs.tensors)
                try:
                    graph = self._trace(z, inputs, in_dims)
                except (ModelCheckError, ArgumentError):
                    raise
                except _LIFT_FAILURES as error:
                    if not self._found_writes(error):
                        self._fall_back("graph" if self.mode == "inductor" else "handlers", error)
                    return self._evaluated(z, arguments, in_dims)
                else:
                    self._keep(key, graph, inputs)
                    return graph(z, *inputs.tensors)
            if self.mode == "handlers":
                try:
                    return self._through_handlers(z, arguments, in_dims)
                except (ModelCheckError, ArgumentError):
                    raise
                except _LIFT_FAILURES as error:
                    if self._found_writes(error):
                        return self._evaluated(z, arguments, in_dims)
                    self._fall_back("loop", error)
            try:
                return self._loop(z, arguments, in_dims)
            except (ModelCheckError, ArgumentError):
                raise
            except _LIFT_FAILURES as error:
                if self._succeeded:
                    raise
                raise ModelCheckError(
                    "The model runs, but its density cannot be differentiated: "
                    f"{type(error).__name__}: {error}\nExpected torch's operations on everything "
                    "that depends on a latent site: NumPy, .numpy(), .item() and writing into a "
                    "tensor in place have no gradient."
                ) from error

    def _keep(self, key: Hashable, graph: Callable[..., Any], inputs: Inputs) -> None:
        if len(self._graphs) == MAX_GRAPHS:
            if not self._told_many:
                self._told_many = True
                warnings.warn(
                    f"The model was traced for {MAX_GRAPHS} kinds of arguments, which is slow. A "
                    "new graph is needed for every new shape, Python number and NumPy array: pass "
                    "data that change as torch tensors, in batches of few different lengths.",
                    EvaluationWarning,
                    stacklevel=2,
                )
            del self._graphs[next(iter(self._graphs))]
        self._graphs[key] = (graph, inputs)

    def _fall_back(self, mode: str, error: Exception) -> None:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        explanation = {
            "graph": "Inductor could not compile the model, so its graph is replayed as it is",
            "handlers": "the model could not be traced to a graph, so each evaluation runs it "
            "through Pyro's handlers",
            "loop": "the model could not be vectorized over particles, so each evaluation loops "
            "over them",
        }[mode]
        self._untold.append(f"Slower evaluation: {explanation}. Reason: {reason}")
        self.mode = mode
        self._graphs.clear()
        self._last = None

    def _found_writes(self, error: Exception) -> bool:
        """Whether vectorising failed, for the first time, for a write into a tensor of all."""
        first = not self._writes and "inplace arithmetic" in str(error)
        self._writes |= first
        return first

    def _one(self, z: Tensor, arguments: Any) -> Any:
        """The function of one position inside of ``vmap``."""
        with OwnBuffers(z) if self._writes else nullcontext():
            return self.single(z, arguments)

    def _through_handlers(self, z: Tensor, arguments: Any, in_dims: Any) -> Any:
        with without_host_checks(), _without_batching_rule_warnings():
            return torch.func.vmap(self._one, in_dims=(0, in_dims))(z, arguments)

    def _loop(self, z: Tensor, arguments: Any, in_dims: Any) -> Any:
        with without_host_checks():
            rows = [
                self.single(row, _part(arguments, in_dims, number)) for number, row in enumerate(z)
            ]
        return pytree.tree_map(lambda *pieces: torch.stack(pieces), *rows)

    def _trace(self, z: Tensor, inputs: Inputs, in_dims: Any) -> Callable[..., Any]:
        if self.inner is None:
            return self._traced(z, inputs, in_dims)
        one = _part(inputs.rebuild(inputs.tensors), in_dims, 0)
        with without_host_checks(), _without_batching_rule_warnings():
            try:
                plan = self.inner.plan(z[0], one, (z.dtype, z.device, Inputs(one).key))
                with self.inner.using(plan):
                    return self._traced(z, inputs, in_dims)
            except (ModelCheckError, ArgumentError):
                raise
            except _LIFT_FAILURES:
                # The short form is one way more; what the model itself does not allow comes here.
                return self._traced(z, inputs, in_dims)

    def _traced(self, z: Tensor, inputs: Inputs, in_dims: Any) -> Callable[..., Any]:
        def batched(z: Tensor, *tensors: Tensor) -> Any:
            return torch.func.vmap(self._one, in_dims=(0, in_dims))(z, inputs.rebuild(tensors))

        with without_host_checks(), _without_batching_rule_warnings(), ShortFunctions():
            module = _made(batched)(z, *inputs.tensors)
        module.graph.eliminate_dead_code()
        _drop_identities(module.graph)
        replay: Callable[..., Any]
        if self.mode == "inductor":
            _materialize_accumulators(module.graph)
            module.recompile()
            self._require_same_result(module, z, inputs, in_dims)
            replay = torch.compile(module)
        else:
            simplify(module)
            _join_in_place(module.graph, self.memory)
            write_over(module.graph, LONG)
            replay = replayed(module)
        self._require_same_result(replay, z, inputs, in_dims)
        if self.mode == "graph":
            return numpy_replay(module, replay, [_elsewhere(torch.zeros_like(z)), *inputs.tensors])
        return replay

    def _require_same_result(
        self, module: Callable[..., Any], z: Tensor, inputs: Inputs, in_dims: Any
    ) -> None:
        """Compare the graph with the handlers away from the point where it was traced."""

        def direct(z: Tensor) -> list[Any]:
            found = self._through_handlers(z, inputs.rebuild(inputs.tensors), in_dims)
            return pytree.tree_leaves(found)

        other = _elsewhere(z)
        traced, expected = pytree.tree_leaves(module(other, *inputs.tensors)), direct(other)
        if all(_close(*pair) for pair in zip(traced, expected, strict=True)):
            return
        # Long sums that nearly cancel are rounded otherwise where they are ordered otherwise.
        # How much that is shows in the model itself, next to where it was evaluated.
        near = [direct(each) for each in _next_to(other)]
        if not all(map(_within_rounding, traced, expected, *near)):
            raise RuntimeError(
                "the graph gives another result than the model at other parameters, so the "
                "model's computation depends on values, or was compiled wrongly"
            )


def _made(function: Callable[..., Any]) -> Callable[..., torch.fx.GraphModule]:
    """``make_fx`` of a function.

    It describes every value by a tensor without memory, of a mode that it would otherwise make
    anew for each, which takes two thirds of the time.
    """

    def made(*tensors: Tensor) -> torch.fx.GraphModule:
        with tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):
            return make_fx(function)(*tensors)

    return made


def _elsewhere(z: Tensor) -> Tensor:
    """Other positions than those that a graph was traced at."""
    return z + 0.125 * torch.cos(torch.arange(z.numel(), dtype=z.dtype).reshape(z.shape)).to(z)


def _next_to(z: Tensor) -> list[Tensor]:
    """Positions that differ from ``z`` by one or two units in the last place."""
    generator = torch.Generator().manual_seed(0)
    epsilon = torch.finfo(z.dtype).eps
    signs = (
        torch.randint(0, 2, z.shape, generator=generator).to(z) * 2.0 - 1.0 for _ in range(NEAR)
    )
    return [z * (1.0 + epsilon * each) for each in signs]


def _close(one: Tensor, two: Tensor) -> bool:
    """Whether two results agree; compared in pieces, since the comparison makes copies."""
    pieces = zip(one.reshape(-1).split(2**20), two.reshape(-1).split(2**20), strict=True)
    return all(
        torch.allclose(*pair, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True) for pair in pieces
    )


def _within_rounding(one: Tensor, two: Tensor, *near: Tensor) -> bool:
    """Whether two results differ by no more than what rounding makes of them."""
    if not two.is_floating_point():
        return _close(one, two)
    rounding = torch.stack([(each - two).abs().nan_to_num(0.0, 0.0) for each in near]).amax(0)
    allowed = RELATIVE * two.abs() + ABSOLUTE + ROUNDINGS * rounding
    same = (one == two) | (one.isnan() & two.isnan())
    near_enough = two.isfinite() & ((one - two).abs() <= allowed)
    return bool((same | near_enough).all())


def _materialize_accumulators(graph: torch.fx.Graph) -> None:
    """Give every tensor that is accumulated into memory of its own.

    Zeros that are expanded over particles share their memory, and Inductor (torch 2.13) adds all
    particles' entries into it.
    """
    for node in list(graph.nodes):
        name = str(node.target)
        if name.startswith(("aten.index_add.", "aten.index_put.", "aten.scatter")):
            with graph.inserting_before(node):
                own = graph.call_function(
                    torch.ops.aten.clone.default,
                    (node.args[0],),
                    {"memory_format": torch.contiguous_format},
                )
            node.update_arg(0, own)


#: Entries from which on a copy costs more than the calls that avoid it.
LONG = 2**14
_ATEN: Any = torch.ops.aten
_VIEWS = (
    _ATEN.view.default,
    _ATEN._unsafe_view.default,
    _ATEN.transpose.int,
    _ATEN.squeeze.dim,
    _ATEN.unsqueeze.default,
)


_SAME = (
    _ATEN.view.default,
    _ATEN._unsafe_view.default,
    _ATEN.expand.default,
    _ATEN.permute.default,
    _ATEN.detach.default,
    _ATEN.alias.default,
)


def _drop_identities(graph: torch.fx.Graph) -> None:
    """Take out views that are the tensor that they are of.

    Vectorizing and differentiating leave many, and for small models each costs as much as an
    operation.
    """
    for node in list(graph.nodes):
        if node.target not in _SAME or not node.all_input_nodes:
            continue
        source = node.args[0]
        ours, theirs = node.meta["val"], source.meta.get("val")
        if (
            isinstance(theirs, Tensor)
            and ours.shape == theirs.shape
            and ours.stride() == theirs.stride()
        ):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _join_in_place(graph: torch.fx.Graph, memory: Memory) -> None:
    """Write the pieces of a joined result to their places as soon as each is computed.

    The gradient of a flat vector is joined from those of the sites, at the end and by copying, so
    that it is in memory twice. Here the joined tensor is made first, every piece is copied into it
    and freed, and matrix products, the gradients of large sites, are computed in it. Nothing may
    remove dead code from the graph afterwards.
    """
    order = {node: position for position, node in enumerate(graph.nodes)}
    (output,) = (node for node in graph.nodes if node.op == "output")
    for join in output.all_input_nodes:
        if join.target is not _ATEN.cat.default or join.args[1:] != (1,) or len(join.users) != 1:
            continue
        pieces: list[Any] = list(join.args[0])
        whole = join.meta["val"]
        if whole.numel() < LONG:
            continue
        # Each piece is a view, or a view of a view, of what its source has computed.
        views = {piece: _views_of_source(piece) for piece in pieces}
        sources = {piece: (chain[-1].args[0] if chain else piece) for piece, chain in views.items()}
        if len(views) < len(pieces) or any(
            sources[piece].op == "placeholder" or piece.meta["val"].dtype != whole.dtype
            for piece in pieces
        ):
            continue
        with graph.inserting_before(min(sources.values(), key=order.__getitem__)):
            description = (list(whole.shape), whole.dtype, whole.device)
            joined = graph.call_function(memory.empty, description)
        join.replace_all_uses_with(joined)
        graph.erase_node(join)
        stop = 0
        for piece in pieces:
            start, stop = stop, stop + piece.meta["val"].shape[1]
            source, chain = sources[piece], views[piece]
            with graph.inserting_before(source):
                place = graph.call_function(_ATEN.slice.Tensor, (joined, 1, start, stop))
            if _same_memory(source, piece) and source.target is _ATEN.bmm.default:
                with graph.inserting_before(source):
                    shape = list(source.meta["val"].shape)
                    out = graph.call_function(_ATEN.view.default, (place, shape))
                    graph.call_function(_ATEN.bmm.out, source.args, {"out": out})
                for node in (*chain, source):
                    graph.erase_node(node)
                continue
            latest = source
            for node in reversed(chain):
                latest.append(node)
                latest = node
            with graph.inserting_after(piece):
                graph.call_function(_ATEN.copy_.default, (place, piece))


def _views_of_source(piece: Any) -> list[Any]:
    """The views that lead to ``piece``, and to nothing else, last one first."""
    chain, node = [], piece
    while node.target in _VIEWS and len(node.users) == 1:
        chain.append(node)
        node = node.args[0]
    return chain


def _same_memory(source: torch.fx.Node, piece: torch.fx.Node) -> bool:
    """Whether a piece, a view of its source, has the source's entries in the source's order."""
    alone = len(source.users) == (0 if source is piece else 1)
    return alone and source.meta["val"].is_contiguous() and piece.meta["val"].is_contiguous()


def _modes_of_torch() -> Callable[[], None]:
    """Note torch's stacks of modes, which an exception may leave too high; see ``process``."""
    level = torch._C._functorch.get_dynamic_layer_stack_depth()
    modes = torch._C._len_torch_dispatch_stack()
    functions = torch._C._len_torch_function_stack()
    differentiates = torch.is_grad_enabled()

    def put_back() -> None:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(level)
        while torch._C._len_torch_dispatch_stack() > modes:
            torch._C._pop_torch_dispatch_stack(None)
        while torch._C._len_torch_function_stack() > functions:
            torch._C._pop_torch_function_stack()
        torch.set_grad_enabled(differentiates)

    return put_back


KEEPERS.append(_modes_of_torch)


@contextmanager
def _without_batching_rule_warnings() -> Iterator[None]:
    """Hide functorch's notes on operations that it loops over; results are the same."""
    with swapped(warnings.catch_warnings()):
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


#: For ``BatchedFunction``: particles share the arguments but have row indices of their own.
OWN_ROWS = (None, None, 0)


def _part(arguments: Any, in_dims: Any, start: int, count: int | None = None) -> Any:
    """The arguments of one particle, or of ``count`` from ``start`` on."""
    if in_dims is None:
        return arguments
    where = start if count is None else slice(start, start + count)
    return tuple(
        part if dim is None else pytree.tree_map(lambda tensor: tensor[where], part)
        for part, dim in zip(arguments, in_dims, strict=True)
    )


def as_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], indices: Mapping[str, Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Tensor]]:
    """The pytree that single functions take: positional, keyword arguments and row indices."""
    return (tuple(args), dict(kwargs), dict(indices))
