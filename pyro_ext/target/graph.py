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
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from pyro_ext.errors import ArgumentError, EvaluationWarning, ModelCheckError
from pyro_ext.target.handlers import without_host_checks

MODES = ("inductor", "graph", "handlers", "loop")

#: Graphs kept by one function; the oldest makes room.
MAX_GRAPHS = 32

# What vmap, functorch's grad and make_fx raise when a model does something that they cannot
# express. The model itself has been run eagerly before, so its own faults come up there.
_LIFT_FAILURES = (RuntimeError, TypeError, ValueError, AssertionError, KeyError)

Single = Callable[[Tensor, Any], Any]


def _static_key(leaf: Any) -> Hashable:
    if isinstance(leaf, (bool, int, float, complex, str, bytes, type(None), torch.dtype)):
        return type(leaf), leaf
    return type(leaf), id(leaf)


class _Inputs:
    """Arguments split into tensors, which a graph takes as inputs, and everything else."""

    def __init__(self, arguments: Any) -> None:
        leaves, self.spec = pytree.tree_flatten(arguments)
        self.leaves = leaves
        self.positions = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.tensors = [leaves[i] for i in self.positions]
        # Identity keys are safe only while the objects live, so whoever keeps the key keeps them.
        self.static = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
        self.key: Hashable = (
            str(self.spec),
            tuple(_static_key(leaf) for leaf in self.static),
            tuple((tuple(t.shape), t.dtype, t.device) for t in self.tensors),
        )

    def rebuild(self, tensors: list[Tensor] | tuple[Tensor, ...]) -> Any:
        leaves = list(self.leaves)
        for position, tensor in zip(self.positions, tensors, strict=True):
            leaves[position] = tensor
        return pytree.tree_unflatten(leaves, self.spec)


class BatchedFunction:
    """Lift ``single(z, arguments)`` from one flat vector (D,) to particles (P, D).

    Parameters
    ----------
    single : callable
        Function of one flat vector and a pytree of arguments, returning a pytree of tensors.
    mode : {"inductor", "graph", "handlers", "loop"}
        Fastest way to try; slower ones follow when a model does not allow it, with one
        :class:`~pyro_ext.errors.EvaluationWarning` that gives the reason.
    particle_chunk : int, optional
        Evaluate at most this many particles at once, which bounds memory.
    """

    def __init__(self, single: Single, mode: str = "graph", particle_chunk: int | None = None):
        if mode not in MODES:
            raise ValueError(f"Expected evaluation to be one of {MODES}, found {mode!r}.")
        self.single = single
        self.mode = mode
        self.particle_chunk = particle_chunk
        self._graphs: dict[Hashable, tuple[Callable[..., Any], _Inputs]] = {}
        self._told_many = False

    def retrace(self) -> None:
        """Forget the traced graphs, for example after changing a tensor the model closes over."""
        self._graphs.clear()

    def __call__(self, z: Tensor, arguments: Any) -> Any:
        chunk = self.particle_chunk
        if chunk is None or z.shape[0] <= chunk:
            return self._evaluate(z, arguments)
        parts = [self._evaluate(part, arguments) for part in z.split(chunk)]
        return pytree.tree_map(lambda *pieces: torch.cat(pieces), *parts)

    def _evaluate(self, z: Tensor, arguments: Any) -> Any:
        z = z.detach()
        with torch.no_grad():
            if self.mode in ("graph", "inductor"):
                inputs = _Inputs(arguments)
                key = (tuple(z.shape), z.dtype, z.device, inputs.key)
                entry = self._graphs.get(key)
                if entry is not None:
                    return entry[0](z, *inputs.tensors)
                try:
                    graph = self._trace(z, inputs)
                except (ModelCheckError, ArgumentError):
                    raise
                except _LIFT_FAILURES as error:
                    self._fall_back("graph" if self.mode == "inductor" else "handlers", error)
                    return self._evaluate(z, arguments)
                else:
                    self._keep(key, graph, inputs)
                    return graph(z, *inputs.tensors)
            if self.mode == "handlers":
                try:
                    return self._through_handlers(z, arguments)
                except (ModelCheckError, ArgumentError):
                    raise
                except _LIFT_FAILURES as error:
                    self._fall_back("loop", error)
            return self._loop(z, arguments)

    def _keep(self, key: Hashable, graph: Callable[..., Any], inputs: _Inputs) -> None:
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
        warnings.warn(
            f"Slower evaluation: {explanation}. Reason: {reason}",
            EvaluationWarning,
            stacklevel=2,
        )
        self.mode = mode
        self._graphs.clear()

    def _through_handlers(self, z: Tensor, arguments: Any) -> Any:
        with without_host_checks(), _without_batching_rule_warnings():
            return torch.func.vmap(self.single, in_dims=(0, None))(z, arguments)

    def _loop(self, z: Tensor, arguments: Any) -> Any:
        with without_host_checks():
            rows = [self.single(row, arguments) for row in z]
        return pytree.tree_map(lambda *pieces: torch.stack(pieces), *rows)

    def _trace(self, z: Tensor, inputs: _Inputs) -> Callable[..., Any]:
        def batched(z: Tensor, *tensors: Tensor) -> Any:
            return torch.func.vmap(self.single, in_dims=(0, None))(z, inputs.rebuild(tensors))

        with without_host_checks(), _without_batching_rule_warnings():
            module = make_fx(batched)(z, *inputs.tensors)
        module.graph.eliminate_dead_code()
        if self.mode == "inductor":
            _materialize_accumulators(module.graph)
        module.recompile()
        self._require_same_result(module, z, inputs)
        if self.mode == "inductor":
            compiled = torch.compile(module)
            self._require_same_result(compiled, z, inputs)
            return compiled
        return module

    def _require_same_result(self, module: Callable[..., Any], z: Tensor, inputs: _Inputs) -> None:
        """Compare the graph with the handlers away from the point where it was traced."""
        other = z + 0.125 * torch.cos(torch.arange(z.numel(), dtype=z.dtype).reshape(z.shape)).to(z)
        traced = pytree.tree_leaves(module(other, *inputs.tensors))
        direct = pytree.tree_leaves(self._through_handlers(other, inputs.rebuild(inputs.tensors)))
        for one, two in zip(traced, direct, strict=True):
            if not torch.allclose(one, two, rtol=1e-3, atol=1e-5, equal_nan=True):
                raise RuntimeError(
                    "the graph gives another result than the model at other parameters, so the "
                    "model's computation depends on values, or was compiled wrongly"
                )


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


@contextmanager
def _without_batching_rule_warnings() -> Iterator[None]:
    """Hide functorch's notes on operations that it loops over; results are the same."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


def as_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], indices: Mapping[str, Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Tensor]]:
    """The pytree that single functions take: positional, keyword arguments and row indices."""
    return (tuple(args), dict(kwargs), dict(indices))
