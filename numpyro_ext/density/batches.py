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
    size = total_rows(_plates(first, arguments, data), rows) or rows
    whole, left = divmod(size, rows)
    reader = _Reader(passes, size, rows)

    def part(carry: Any, number: Array, rows: int) -> tuple[Any, Any]:
        shapes = [
            jax.ShapeDtypeStruct((rows, *leaf.shape[1:]) if leaf.ndim else (), leaf.dtype)
            for _, leaf in first.leaves()
        ]
        leaves = iter(io_callback(reader, shapes, number))
        batch = first.map(lambda leaf: next(leaves))
        bound = arguments.bind(batch.args, {**data.kwargs, **batch.kwargs})
        return step(carry, rows / size, bound, number)

    def one(carry: tuple[Array, Any], _: None) -> tuple[tuple[Array, Any], Any]:
        following, output = part(carry[1], carry[0], rows)
        return (carry[0] + 1, following), output

    (number, carry), outputs = lax.scan(one, (jnp.asarray(0, jnp.int32), carry), None, whole)
    if not left:
        return carry, [outputs]
    # Read after the others: the number waits for their sum.
    number, carry = lax.optimization_barrier((number, carry))
    carry, output = part(carry, number, left)
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


def _plates(first: Batch, arguments: Arguments, data: Data) -> Any:
    """The plates that the first batch is part of."""
    arguments.bind(first.args, {**data.kwargs, **first.kwargs})
    return arguments.bound.batch_plates
