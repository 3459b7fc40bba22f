"""Sweeps over all rows of the data, in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ext.density.layout import DataPlate, Indices
from ppl_ext.target.layouts import Piece, sweep_pieces


def sum_over_rows(
    plates: Mapping[str, DataPlate], chunk: int | None, function: Callable[[Indices], Any]
) -> Any:
    """Weighted sum of a function of row indices over every chunk of the full data.

    The function returns a pytree of arrays and is traced once for each size of chunk. A chunk
    of n rows is evaluated with plate scale N/n and weighted n/N, so that sites inside
    the plate are counted once and sites outside are averaged over chunks that all agree.
    """
    total: Any = None
    for group in sweep_pieces(plates, chunk):
        count = math.prod(piece.chunks for piece in group.values())
        weight = math.prod(piece.share for piece in group.values())

        def of_chunk(number: Array | int, group: dict[str, Piece] = group) -> Any:
            indices: Indices = {}
            for name, (start, rows, pieces, _) in group.items():
                # The number of a chunk of several plates, written in the base of their numbers of
                # pieces: so one loop goes through all combinations.
                indices[name] = start + (number % pieces) * rows + jnp.arange(rows)
                number = number // pieces
            return function(indices)

        if count == 1:
            part = of_chunk(0)
        else:
            zero = jax.tree.map(
                lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(of_chunk, 0)
            )

            def add(
                carry: Any, number: Array, of_chunk: Callable[..., Any] = of_chunk
            ) -> tuple[Any, None]:
                return jax.tree.map(jnp.add, carry, of_chunk(number)), None

            part, _ = lax.scan(add, zero, jnp.arange(count))
        part = jax.tree.map(lambda leaf, weight=weight: leaf * weight, part)
        total = part if total is None else jax.tree.map(jnp.add, total, part)
    return total
