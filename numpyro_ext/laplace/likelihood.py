"""The Gauss-Newton matrix of all rows at one position, in its structure, differentiable.

The structures are those of :mod:`ppl_ext.curvature`. Here they are those of
the whole likelihood, however many chunks the rows come in: the nearest Kronecker product is found
by a sweep for each half step, and the leading terms of ``"low_rank"`` are updated chunk by chunk
(exact for one chunk, else those of a merged decomposition; the diagonal is exact always). And they
follow the change of the Fisher information with the position, which the gradient of the log
determinant needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from numpyro_ext.curvature import (
    Curvature,
    GaussNewton,
    RowStructure,
    jacobian_rows,
)
from numpyro_ext.curvature.coordinates import Coordinates
from numpyro_ext.curvature.fisher import needs_draws
from numpyro_ext.curvature.kronecker import kronecker_factors
from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.layout import Indices

#: Dimension up to which ``"full"`` is a matrix even where there are fewer rows than dimensions.
MATRIX_UP_TO = 2000


class LikelihoodCurvature:
    """The Gauss-Newton matrix of a program's likelihood over all rows.

    Parameters
    ----------
    target : LogDensity
    coordinates : Coordinates
        D' in number.
    options : GaussNewton
    structure : RowStructure
        What is known of the rows.
    """

    def __init__(
        self,
        target: LogDensity,
        coordinates: Coordinates,
        options: GaussNewton,
        structure: RowStructure,
    ) -> None:
        self.target, self.coordinates, self.options = target, coordinates, options
        self.structure = structure

    def drawn_sites(self, position: Array, data: Data) -> list[str]:
        """Observed sites whose Fisher information is estimated by drawing observations."""
        found = jax.eval_shape(
            self.target.outputs, position, data.on_device(), self.target.first_rows()
        )
        return [name for name, output in found.items() if needs_draws(output)]

    def at(self, position: Array, data: Data, rng_key: Array) -> Curvature:
        """The matrix at a position (D,), of one position.

        ``rng_key`` serves distributions without a registered Fisher information.
        """
        rows = _Rows(self, position, data.on_device(), rng_key)
        structure = self.options.structure
        dim, dtype = len(self.coordinates), position.dtype
        nothing = jnp.zeros((1, dim), dtype)
        if structure == "full":
            if dim <= MATRIX_UP_TO or rows.count >= dim:
                return Curvature(nothing, rows.sum(lambda r: r.T @ r)[None])
            return Curvature(nothing, rows=rows.all()[None])
        if structure == "diag":
            return Curvature(rows.sum(lambda r: (r**2).sum(0))[None])
        if structure == "low_rank":
            rank = min(self.options.rank, rows.count, dim)
            return _low_rank(rows, rank, nothing[0])
        return kronecker_factors(
            lambda function: rows.sum(lambda r: function(r[None])),
            self.coordinates.slices,
            self.target.layout.shapes,
            position[None],
        )

    def rows_of_batch(self, position: Array, data: Data, indices: Indices, rng_key: Array) -> Array:
        """Rows F^(1/2) J of one batch at a position (D,), shape (R, D'), differentiable in it."""
        latents = tuple(self.coordinates.slices)
        found = jacobian_rows(
            self.target, position[None], data, indices, rng_key, self.structure, latents
        )
        return found[0]


def _low_rank(rows: _Rows, rank: int, nothing: Array) -> Curvature:
    """The leading ``rank`` terms of R' R, and the diagonal of the others."""

    def merge(carry: tuple[Array, Array], r: Array) -> tuple[Array, Array]:
        kept, total = carry
        return _leading(jnp.concatenate([kept, r]), rank), total + (r**2).sum(axis=0)

    if rows.only is not None:
        kept, total = _leading(rows.only, rank), (rows.only**2).sum(axis=0)
    else:
        start = jnp.zeros((rank, len(nothing)), nothing.dtype), nothing
        kept, total = rows.fold(merge, start)
    rest = total - (kept**2).sum(axis=0)
    # A difference within rounding of zero is zero, not a precision.
    rounding = 10.0 * rows.count * jnp.finfo(nothing.dtype).eps * total
    return Curvature(jnp.where(rest > rounding, rest, 0.0)[None], rows=kept[None])


def _leading(rows: Array, rank: int) -> Array:
    """Rows (rank, D) with the leading terms of R' R, and their derivative up to rotations."""
    gram = rows @ rows.T
    held = lax.stop_gradient(gram)
    values, vectors = jnp.linalg.eigh(held)
    kept, dropped = vectors[:, -rank:], vectors[:, :-rank]
    # First-order change of the leading eigenspace, into the other one.
    gaps = values[-rank:] - values[:-rank, None]
    rounding = len(values) * jnp.finfo(rows.dtype).eps * values[-1]
    slopes = jnp.where(gaps > rounding, 1.0 / jnp.where(gaps > rounding, gaps, 1.0), 0.0)
    kept = kept + dropped @ (slopes * (dropped.T @ (gram - held) @ kept))
    return kept.T @ rows


class _Rows:
    """The rows R (R, D') of the Jacobian of all whitened outputs at one position, by chunks."""

    def __init__(
        self, curvature: LikelihoodCurvature, position: Array, data: Data, rng_key: Array
    ) -> None:
        self.curvature = curvature
        self.position, self.data, self.rng_key = position, data, rng_key
        groups: dict[tuple[int, ...], list[tuple[float, Indices]]] = {}
        for weight, indices in curvature.target.sweep():
            size = tuple(len(numbers) for numbers in indices.values())
            groups.setdefault(size, []).append((weight, indices))
        self.groups = list(groups.values())
        self.only: Array | None = None
        if len(self.groups) == 1 and len(self.groups[0]) == 1:
            self.only = self._of_chunk(*self.groups[0][0], rng_key)
            self.count = len(self.only)
        else:
            self.count = sum(self._count(group[0][1]) * len(group) for group in self.groups)

    def _count(self, indices: Indices) -> int:
        shape = jax.eval_shape(lambda: self._of_chunk(1.0, indices, self.rng_key))
        return int(shape.shape[0])

    def _of_chunk(self, weight: float, indices: Indices, rng_key: Array) -> Array:
        found = self.curvature.rows_of_batch(self.position, self.data, indices, rng_key)
        return math.sqrt(weight) * found

    def _scan(self, step: Callable[[Any, Array], tuple[Any, Any]], carry: Any) -> tuple[Any, list]:
        outputs = []
        for number, group in enumerate(self.groups):
            weight = group[0][0]
            keys = random.split(random.fold_in(self.rng_key, number), len(group))
            stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *(each for _, each in group))

            def chunk(carry: Any, each: Any, weight: float = weight) -> tuple[Any, Any]:
                return step(carry, self._of_chunk(weight, *each))

            carry, output = lax.scan(chunk, carry, (stacked, keys))
            outputs.append(output)
        return carry, outputs

    def fold(self, function: Callable[[Any, Array], Any], initial: Any) -> Any:
        """``function(carry, rows)`` over the chunks, from ``initial``."""
        if self.only is not None:
            return function(initial, self.only)
        return self._scan(lambda carry, rows: (function(carry, rows), None), initial)[0]

    def sum(self, function: Callable[[Array], Any]) -> Any:
        """The sum of ``function(rows)`` over the chunks."""
        none = jnp.zeros((0, len(self.curvature.coordinates)), self.position.dtype)
        # What a sum over no rows is has the right shape.
        return self.fold(
            lambda total, rows: jax.tree.map(jnp.add, total, function(rows)), function(none)
        )

    def all(self) -> Array:
        """All rows, (R, D')."""
        if self.only is not None:
            return self.only
        _, parts = self._scan(lambda carry, rows: (carry, rows), None)
        return jnp.concatenate([part.reshape(-1, part.shape[-1]) for part in parts])
