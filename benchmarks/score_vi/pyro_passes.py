"""Passes over memory in Pyro, counted while a step is taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.score_vi import pyro_memory
from benchmarks.score_vi.memory import num_parameters
from benchmarks.score_vi.passes import DRAW, OTHER, SCORE, STEPS, Moved, in_vectors, longest_short
from pyro_ext.guides.normal import DiagonalNormalDensity
from pyro_ext.score.gradient_steps import GradientSolver
from pyro_ext.score.guide_engine import GuideEngine

#: Bytes of the parts of long tensors that stay in the processor's cache.
CACHE = 2**24
#: Operations that write over a tensor without reading it.
_FILL = ("normal_", "uniform_", "copy_", "zero_", "fill_")


class Count(TorchDispatchMode):
    """Counts bytes of long tensors that operations read and write, by part and kind.

    A tensor is long where the memory that it is a part of is.

    Parameters
    ----------
    longest : int
        Bytes of the longest memory that is left out.
    """

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.moved: Counter[tuple[str, str]] = Counter()
        #: Bytes of long memory that was held at most.
        self.most = 0
        self._longest, self._part = longest, OTHER
        # Parts of long tensors by address and size, the one that was used longest ago first.
        self._cache: dict[tuple[int, int], set[str]] = {}
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}

    @contextmanager
    def named(self, part: str) -> Iterator[None]:
        """What is counted inside belongs to a part."""
        before, self._part = self._part, part
        try:
            yield
        finally:
            self._part = before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        found = func(*args, **options)
        schema = func._schema
        written, given = [], []
        for place, argument in enumerate(schema.arguments):
            value = args[place] if place < len(args) else options.get(argument.name)
            tensors = [each for each in tree_leaves(value) if isinstance(each, Tensor)]
            if argument.alias_info is not None and argument.alias_info.is_write:
                written += tensors
                name = schema.name.partition("::")[2]
                if argument.is_out or name in _FILL:
                    continue
            given += tensors
        # A new tensor is written; a view, or what an operation has changed in place, is not new.
        known = {each.untyped_storage().data_ptr() for each in (*given, *written)}
        made = [each for each in tree_leaves(found) if isinstance(each, Tensor)]
        new = [each for each in made if each.untyped_storage().data_ptr() not in known]
        is_view = not written and not new and bool(made)
        for kind, tensors in (("read", given), ("written", [*written, *new])):
            for each in tensors:
                self._hold(each)
                if not is_view and self._is_long(each) and "empty" not in schema.name:
                    self._move(each, kind)
        self._look()
        return found

    def _move(self, tensor: Tensor, kind: str) -> None:
        size = tensor.numel() * tensor.element_size()
        place = tensor.data_ptr(), size
        before = self._cache.pop(place, set())
        # What was read or written a moment ago is read from the cache.
        if not before or (kind == "written" and kind not in before):
            self.moved[self._part, kind] += size
        if size <= self._longest:
            self._cache[place] = before | {kind}
            while sum(length for _, length in self._cache) > CACHE:
                del self._cache[next(iter(self._cache))]

    def _is_long(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().nbytes() > self._longest

    def _hold(self, tensor: Tensor) -> None:
        if self._is_long(tensor):
            memory = tensor.untyped_storage()
            self._held[memory.data_ptr()] = StorageWeakRef(memory), memory.nbytes()

    def _look(self) -> None:
        self._held = {at: held for at, held in self._held.items() if not held[0].expired()}
        self.most = max(self.most, sum(size for _, size in self._held.values()))


def passes(method: str, layers: tuple[int, ...], x: Any, y: Any) -> tuple[Moved, float]:
    """Vectors that a step reads and writes, by part, and long vectors that it holds at most."""
    dim, threads = num_parameters(layers), torch.get_num_threads()
    # Operations of other threads are not seen.
    torch.set_num_threads(1)
    step = pyro_memory.CASES[method](layers, x, y)
    for _ in range(2):
        step()
    count = Count(4 * longest_short(dim))
    with _named_parts(count), count:
        # The first of these shows what memory is held between steps.
        step()
        count.moved.clear()
        step()
    torch.set_num_threads(threads)
    return in_vectors(count.moved, dim), count.most / (4 * dim)


@contextmanager
def _named_parts(count: Count) -> Iterator[None]:
    """Parts of the steps that are taken inside are named."""
    parts = (
        (DiagonalNormalDensity, "sample", DRAW),
        (GuideEngine, "_score", SCORE),
        (GradientSolver, "_gradient_steps", STEPS),
    )
    with ExitStack() as stack:
        for owner, name, part in parts:
            named = _named(getattr(owner, name), count, part)
            stack.enter_context(mock.patch.object(owner, name, named))
        yield


def _named(function: Callable[..., Any], count: Count, part: str) -> Callable[..., Any]:
    @wraps(function)
    def named(*args: Any, **options: Any) -> Any:
        with count.named(part):
            return function(*args, **options)

    return named
