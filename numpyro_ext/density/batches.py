"""Batches of a loader: as arrays, and sums over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import io_callback

from numpyro_ext.density.arguments import Arguments
from numpyro_ext.density.layout import Data
from numpyro_ext.programs.callbacks import remembered
from ppl_ext.arguments import check_range
from ppl_ext.batches.batch import Batch
from ppl_ext.batches.passes import Passes, total_rows
from ppl_ext.target.on_host import on_host as without_device

#: Batches that one compiled loop takes at most, and their bytes.
MOST_TOGETHER, MOST_BYTES = 128, 2**24
#: Bytes at a multiple of which an array lies that JAX takes over as it is, on processors.
_ALIGNED = 64


def on_host(leaf: Any) -> np.ndarray:
    """An array of a loader as one of NumPy's of its own, in JAX's precision."""
    array = np.asarray(without_device(leaf))
    own = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if own.kind in "iu" and array.size:
        check_range("", array, own)
    return np.array(array, own, order="C")


def place(leaf: Any) -> Array:
    """An array of a loader on JAX's device."""
    return jax.device_put(on_host(leaf))


def array_or_none(value: Any) -> np.ndarray | None:
    """An argument as an array of NumPy, None of what is no array."""
    if isinstance(value, np.ndarray):
        return value  # with the mask that it may have
    return np.asarray(value) if isinstance(value, Array) else None


def placed(batch: Batch) -> Batch:
    """A batch of a loader as arrays of its own: on JAX's device, unless a block is made of it."""
    batch = batch.map(on_host)
    return batch if together(batch) > 1 else batch.map(jax.device_put)


def together(batch: Batch) -> int:
    """How many batches of a form one compiled loop takes at most."""
    size = sum(leaf.nbytes for _, leaf in batch.leaves())
    return max(1, min(MOST_TOGETHER, MOST_BYTES // max(size, 1)))


@partial(jax.tree_util.register_dataclass, data_fields=["data", "first"], meta_fields=["own"])
@dataclass(frozen=True)
class Rest:
    """Arguments of steps that follow each other, an argument of a compiled loop.

    Parameters
    ----------
    data : Data
        Where ``own`` says so, arrays have the batches along their first axis.
    first : int array
        The batch of the first step.
    own : tuple of bool
    """

    data: Data
    first: Any
    own: tuple[bool, ...]

    def at(self, step: Array) -> Data:
        """Arguments of one of the steps, by number."""
        arrays = tuple(
            lax.dynamic_index_in_dim(array, self.first + step, keepdims=False) if own else array
            for array, own in zip(self.data.arrays, self.own, strict=True)
        )
        # Not fused with the step, which is then compiled as for arrays that lie there already.
        return self.data.with_arrays(lax.optimization_barrier(arrays))


class Block:
    """Batches of one size that are stacked, so that one compiled loop takes all of them.

    The stack always has the same size, whatever was read in time, so that the same program takes
    every step. Batches that cannot be stacked are taken one by one.

    Parameters
    ----------
    batches : list of Batch
    bind : callable
        Makes a batch the model's arguments.
    size : int
        Batches in a stack; one where none is to be made.
    """

    def __init__(self, batches: list[Batch], bind: Callable[[Batch], Data], size: int) -> None:
        self._bind, self._batches, self._taken = bind, batches, 0
        self._known: tuple[int, Data] | None = None
        leaves = [leaf for _, leaf in batches[0].leaves()]
        data = bind(batches[0])
        own = tuple(any(array is leaf for leaf in leaves) for array in data.arrays)
        self._stack: Rest | None = None
        # Arguments that are held as constants are no arrays of the program.
        if size > 1 and sum(own) == len(leaves):
            parts = [bind(each).arrays for each in batches]
            arrays = tuple(
                _stacked([each[i] for each in parts], size) if own[i] else array
                for i, array in enumerate(data.arrays)
            )
            self._stack = Rest(data.with_arrays(arrays).on_device(), np.int32(0), own)

    @property
    def left(self) -> int:
        """Batches that one loop may take now."""
        left = len(self._batches) - self._taken
        return left if self._stack is not None else min(left, 1)

    def data(self, number: int = 0) -> Data:
        """Arguments of one of the batches that are left."""
        number += self._taken
        if self._known is None or self._known[0] != number:
            self._known = number, self._bind(self._batches[number]).on_device()
        return self._known[1]

    def rest(self) -> Data | Rest:
        """What a compiled loop takes: arguments of one step, or of all that are left."""
        if self._stack is None:
            return self.data()
        return Rest(self._stack.data, np.int32(self._taken), self._stack.own)

    def take(self, number: int) -> None:
        """The next so many were taken."""
        self._taken += number


def _stacked(arrays: list[Any], size: int) -> np.ndarray:
    """Arrays along a new first axis of length ``size``; entries beyond the last are not set."""
    first = arrays[0]
    length = size * first.nbytes
    # Room to begin at a multiple: else JAX would copy the stack once more.
    memory = np.empty(length + _ALIGNED, np.uint8)
    start = -memory.ctypes.data % _ALIGNED
    stack = memory[start : start + length].view(first.dtype).reshape(size, *first.shape)
    for i, array in enumerate(arrays):
        stack[i] = array
    return stack


class _Reader:
    """Gives a compiled program the batches of one pass after another."""

    def __init__(self, passes: Passes, size: int, rows: int) -> None:
        self._passes, self._size, self._rows = passes, size, rows
        self._pass: Iterator[Batch] = iter(())

    def __call__(self, number: Any) -> list[np.ndarray]:
        """Batch ``number`` of a pass, and the next number; the first begins another pass."""
        if int(number) == 0:
            self._pass = self._passes.of_equal_size(on_host, self._size, self._rows)
        found = next(self._pass)
        if (int(number) + 1) * self._rows >= self._size:
            # To the end, which sees to it that there are no more rows.
            for _ in self._pass:
                pass
        return [*(leaf for _, leaf in found.leaves()), np.asarray(number + 1, np.int32)]


def scan_over_batches(
    passes: Passes,
    arguments: Arguments,
    data: Data,
    step: Callable[[Any, float, Data, Array], tuple[Any, Any]],
    carry: Any,
) -> tuple[Any, list[Any]]:
    """As ``lax.scan``, over batches that hold all rows once.

    ``step`` takes a carry, the weight and the arguments of a batch, and its number. It is compiled
    for batches of one size, into which a pass is cut, and for the rows that are left; a callback
    reads them. A batch of n of N rows is evaluated with the plate's scale N/n and weighted n/N, as
    a chunk of a sweep is. Keyword arguments of ``data`` that no batch has are those of all.

    Returns
    -------
    tuple of (pytree, list of pytree)
        The last carry, and what the steps give besides: one tree for whole batches, with these
        along the first axis, and one for the rest if there is one.
    """
    first = passes.first(on_host)
    rows = first.rows
    # Which finds out what plates the batches are part of.
    arguments.bind(first.args, {**data.kwargs, **first.kwargs})
    size = total_rows(arguments.bound.batch_plates, rows) or rows
    whole, left = divmod(size, rows)
    reader = remembered(_Reader(passes, size, rows).__call__)

    def part(carry: Any, number: Array, rows: int) -> tuple[tuple[Array, Any], Any]:
        shapes = [
            jax.ShapeDtypeStruct((rows, *leaf.shape[1:]) if leaf.ndim else (), leaf.dtype)
            for _, leaf in first.leaves()
        ]
        # The reader gives the next number: so no batch is read before those that come first.
        *values, following = io_callback(
            reader, [*shapes, jax.ShapeDtypeStruct((), jnp.int32)], number
        )
        leaves = iter(values)
        batch = first.map(lambda leaf: next(leaves))
        bound = arguments.bind(batch.args, {**data.kwargs, **batch.kwargs})
        carry, output = step(carry, rows / size, bound, number)
        return (following, carry), output

    def one(carry: tuple[Array, Any], _: None) -> tuple[tuple[Array, Any], Any]:
        return part(carry[1], carry[0], rows)

    (number, carry), outputs = lax.scan(one, (jnp.asarray(0, jnp.int32), carry), None, whole)
    if not left:
        return carry, [outputs]
    (_, carry), output = part(carry, number, left)
    return carry, [outputs, jax.tree.map(lambda leaf: leaf[None], output)]


def sum_over_batches(
    passes: Passes, arguments: Arguments, data: Data, function: Callable[[Data], Any]
) -> Any:
    """Weighted sum of a function of arguments, a pytree, over batches that hold all rows once."""

    def weighted(weight: float, data: Data) -> Any:
        return jax.tree.map(lambda leaf: leaf * weight, function(data))

    def add(total: Any, weight: float, data: Data, number: Array) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, weighted(weight, data)), None

    first = passes.first(place)
    bound = arguments.bind(first.args, {**data.kwargs, **first.kwargs})
    shapes = jax.eval_shape(partial(weighted, 1.0), bound)
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return scan_over_batches(passes, arguments, data, add, zero)[0]
