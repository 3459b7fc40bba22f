"""Evaluating one function of a particle for many particles at once.

A function of a single flat vector is lifted to a batch in the fastest way that the model
allows: ``torch.func.vmap`` over particles traced once to an ATen graph (optionally compiled by
Inductor), the same ``vmap`` of the function itself at every call, or a Python loop. A traced graph
replays tensor operations only: parameters, row indices and tensors passed as arguments are its
inputs, whereas tensors that the function closes over become constants. Every new graph is compared
with the function at other parameters than those it was traced at.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ppl_ext.errors import ArgumentError, EvaluationWarning, ModelCheckError
from pyro_ext.graphs.agreement import close, elsewhere, next_to, within_rounding
from pyro_ext.graphs.arguments import Inputs, part_of
from pyro_ext.graphs.in_place import (
    LONG,
    Memory,
    drop_identities,
    join_in_place,
    materialize_accumulators,
)
from pyro_ext.graphs.numpy_graph import numpy_replay
from pyro_ext.graphs.own_buffers import OwnBuffers
from pyro_ext.graphs.reuse import write_over
from pyro_ext.graphs.short_functions import ShortFunctions
from pyro_ext.graphs.shortened import Shortened
from pyro_ext.graphs.simplify import replayed, simplify

MODES = ("inductor", "graph", "handlers", "loop")

#: Graphs kept by one function; the oldest makes room.
MAX_GRAPHS = 32

# What vmap, functorch's grad and make_fx raise when a model does something that they cannot
# express. The model itself has been run eagerly before, so its own faults come up there.
_LIFT_FAILURES = (RuntimeError, TypeError, ValueError, AssertionError, KeyError)

Single = Callable[[Tensor, Any], Any]


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
    around : callable, optional
        Gives the context in which ``single`` is run: while it is traced, and at every call where it
        is not. Replays of a graph enter none.
    """

    def __init__(
        self,
        single: Single,
        mode: str = "graph",
        particle_chunk: int | None = None,
        inner: Shortened | None = None,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        if mode not in MODES:
            raise ArgumentError(f"Expected evaluation to be one of {MODES}, found {mode!r}.")
        self.single = single
        self.mode = mode
        self.particle_chunk = particle_chunk
        self.inner = inner
        self._around = around
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
                z[start : start + chunk], part_of(arguments, in_dims, start, chunk), in_dims
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
                # What a graph is made for: shapes, numbers of Python, and axes of particles.
                key = (tuple(z.shape), z.dtype, z.device, inputs.key, in_dims)
                if (entry := self._graphs.get(key)) is not None:
                    if inputs.is_flat:
                        # Kept only where ``is_of`` can tell later arguments, which takes no look
                        # into containers.
                        form = z.shape, z.dtype, z.device
                        self._last = _Last(entry[0], inputs, arguments, in_dims, form)
                    return entry[0](z, *inputs.tensors)
                try:
                    graph = self._trace(z, inputs, in_dims)
                except (ModelCheckError, ArgumentError):
                    raise
                except _LIFT_FAILURES as error:
                    # Where the model writes into its own tensors the same way is tried once more,
                    # with copies.
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
            # The oldest, as dictionaries keep their order.
            del self._graphs[next(iter(self._graphs))]
        self._graphs[key] = (graph, inputs)

    def _fall_back(self, mode: str, error: Exception) -> None:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if "get value out of a tracing tensor" in reason:
            reason = (
                "it takes a number out of a tensor, as .item(), a condition on one and a loop over "
                "a plate's rows do. Write torch.where(...) and `with plate(...):` in their place"
            )
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
        """Whether vectorising failed, for the first time, for a write that `OwnBuffers` can do."""
        told = any(words in str(error) for words in ("inplace arithmetic", "with a boolean mask"))
        first = told and not self._writes
        self._writes |= first
        return first

    def _one(self, z: Tensor, arguments: Any) -> Any:
        """The function of one position inside of ``vmap``."""
        with OwnBuffers(z) if self._writes else nullcontext():
            return self.single(z, arguments)

    def _through_handlers(self, z: Tensor, arguments: Any, in_dims: Any) -> Any:
        with self._around():
            return torch.func.vmap(self._one, in_dims=(0, in_dims))(z, arguments)

    def _loop(self, z: Tensor, arguments: Any, in_dims: Any) -> Any:
        with self._around():
            rows = [
                self.single(row, part_of(arguments, in_dims, number))
                for number, row in enumerate(z)
            ]
        return pytree.tree_map(lambda *pieces: torch.stack(pieces), *rows)

    def _trace(self, z: Tensor, inputs: Inputs, in_dims: Any) -> Callable[..., Any]:
        if self.inner is None:
            return self._traced(z, inputs, in_dims)
        one = part_of(inputs.rebuild(inputs.tensors), in_dims, 0)
        with self._around():
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

        with self._around(), ShortFunctions():
            module = _made(batched)(z, *inputs.tensors)
        # Before pieces are written into lent memory: such writes have no users and would go too.
        module.graph.eliminate_dead_code()
        drop_identities(module.graph)
        replay: Callable[..., Any]
        if self.mode == "inductor":
            # Inductor alone adds into shared memory; a replay calls torch's own operations.
            materialize_accumulators(module.graph)
            module.recompile()
            # Also before compiling, which takes long; after it mistakes of the compiler count as
            # well.
            self._require_same_result(module, z, inputs, in_dims)
            replay = torch.compile(module)
        else:
            simplify(module)
            join_in_place(module.graph, self.memory)
            write_over(module.graph, LONG)
            replay = replayed(module)
        self._require_same_result(replay, z, inputs, in_dims)
        if self.mode == "graph":
            # Compared near zero, where a model is finite, whatever the positions of this call are.
            return numpy_replay(module, replay, [elsewhere(torch.zeros_like(z)), *inputs.tensors])
        return replay

    def _require_same_result(
        self, module: Callable[..., Any], z: Tensor, inputs: Inputs, in_dims: Any
    ) -> None:
        """Compare the graph with the handlers away from the point where it was traced."""

        def direct(z: Tensor) -> list[Any]:
            found = self._through_handlers(z, inputs.rebuild(inputs.tensors), in_dims)
            return pytree.tree_leaves(found)

        other = elsewhere(z)
        traced, expected = pytree.tree_leaves(module(other, *inputs.tensors)), direct(other)
        if all(close(*pair) for pair in zip(traced, expected, strict=True)):
            return
        # Long sums that nearly cancel are rounded otherwise where they are ordered otherwise.
        # How much that is shows in the model itself, next to where it was evaluated.
        near = [direct(each) for each in next_to(other)]
        if not all(map(within_rounding, traced, expected, *near)):
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
