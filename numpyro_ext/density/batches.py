"""Batches of a loader: as arrays, and sums over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import io_callback

from numpyro_ext.density.arguments import Arguments
from numpyro_ext.density.layout import Data
from ppl_ext.batches.batch import Batch
from ppl_ext.batches.passes import Passes, total_rows


def on_host(leaf: Any) -> np.ndarray:
    """An array of a loader as one of NumPy's of its own, in JAX's precision."""
    array = np.array(np.asarray(leaf.detach().cpu() if hasattr(leaf, "detach") else leaf))
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def place(leaf: Any) -> Array:
    """An array of a loader on JAX's device."""
    return jax.device_put(on_host(leaf))


class _Reader:
    """Gives a compiled program the batches of one pass after another."""

    def __init__(self, passes: Passes, size: int, rows: int) -> None:
        self._passes, self._size, self._rows = passes, size, rows
        self._pass: Iterator[Batch] = iter(())

    def __call__(self, number: Any) -> list[np.ndarray]:
        """Batch ``number`` of a pass; the first begins another one."""
        if int(number) == 0:
            self._pass = self._passes.of_equal_size(on_host, self._size, self._rows)
        found = next(self._pass)
        if (int(number) + 1) * self._rows >= self._size:
            # To the end, which sees to it that there are no more rows.
            for _ in self._pass:
                pass
        return [leaf for _, leaf in found.leaves()]


def sum_over_batches(
    passes: Passes, arguments: Arguments, data: Data, function: Callable[[Data], Any]
) -> Any:
    """Weighted sum of a function of arguments over batches that hold all rows once.

    The function returns a pytree of arrays. It is compiled for batches of one size, into which a
    pass is cut, and for the rows that are left; a callback reads them. A batch of n of N rows is
    evaluated with the plate's scale N/n and weighted n/N, as a chunk of a sweep is. Keyword
    arguments of ``data`` that no batch has are those of all.
    """
    first = passes.first(on_host)
    rows = first.rows
    size = total_rows(_plates(first, arguments, data), rows) or rows
    whole, left = divmod(size, rows)
    reader = _Reader(passes, size, rows)

    def part(number: Array, rows: int) -> Any:
        shapes = [
            jax.ShapeDtypeStruct((rows, *leaf.shape[1:]) if leaf.ndim else (), leaf.dtype)
            for _, leaf in first.leaves()
        ]
        leaves = iter(io_callback(reader, shapes, number))
        batch = first.map(lambda leaf: next(leaves))
        found = function(arguments.bind(batch.args, {**data.kwargs, **batch.kwargs}))
        return jax.tree.map(lambda leaf: leaf * (rows / size), found)

    def add(carry: tuple[Array, Any], _: None) -> tuple[tuple[Array, Any], None]:
        number, total = carry
        return (number + 1, jax.tree.map(jnp.add, total, part(number, rows))), None

    shapes = jax.eval_shape(partial(part, rows=rows), jax.ShapeDtypeStruct((), jnp.int32))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    number, total = lax.scan(add, (jnp.asarray(0, jnp.int32), zero), None, length=whole)[0]
    if left:
        # Read after the others: the number waits for their sum.
        number, total = lax.optimization_barrier((number, total))
        total = jax.tree.map(jnp.add, total, part(number, left))
    return total


def _plates(first: Batch, arguments: Arguments, data: Data) -> Any:
    """The plates that the first batch is part of."""
    arguments.bind(first.args, {**data.kwargs, **first.kwargs})
    return arguments.bound.batch_plates
