"""The Gauss-Newton matrix of all rows by JAX; see :mod:`ppl_ext.laplace.likelihood`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jaxtyping import Float

from numpyro_ext.curvature import Curvature, jacobian_rows
from numpyro_ext.curvature.fisher import drawn_values, needs_draws
from numpyro_ext.curvature.kronecker import kronecker_factors
from numpyro_ext.density import Data
from numpyro_ext.density.batches import place, scan_over_batches
from numpyro_ext.density.layout import Indices
from numpyro_ext.laplace.gaussian import Algebra
from ppl_ext.batches.passes import total_rows
from ppl_ext.laplace.likelihood import LikelihoodShell


class LikelihoodCurvature(LikelihoodShell):
    def drawn_sites(self, position: Float[Array, " D"], data: Data) -> list[str]:
        """Observed sites whose Fisher information is estimated by drawing observations.

        Raises
        ------
        ArgumentError
            A site's distribution is not drawn from.
        """
        drawn: list[str] = []

        def look(position: Array, data: Data) -> None:
            outputs = self.target.outputs(position, data, self.target.first_rows())
            for name, output in outputs.items():
                if needs_draws(output):
                    drawn_values(output, random.key(0), 1)
                    drawn.append(name)

        jax.eval_shape(look, position, data.on_device())
        return drawn

    def at(self, position: Float[Array, " D"], data: Data, rng_key: Array) -> Curvature:
        """The matrix at a position (D,), of one position.

        ``rng_key`` serves distributions without a registered Fisher information.
        """
        rows = _Rows(self, position, data.on_device(), rng_key)
        if self.options.structure == "kfac":
            return kronecker_factors(
                lambda function: rows.total(lambda r: function(r[None])),
                self.coordinates.slices,
                self.target.layout.shapes,
                position[None],
            )
        nothing = jnp.zeros(len(self.coordinates), position.dtype)
        if self.options.structure == "low_rank":
            return self._low_rank(rows, nothing)
        return self._summed(rows, nothing, Curvature)

    def _low_rank(self, rows: _Rows, nothing: Array) -> Curvature:
        rank = min(self.options.rank, rows.count, len(nothing))

        def merge(carry: tuple[Array, Array], r: Array) -> tuple[Array, Array]:
            kept, total = carry
            merged = Algebra.leading(jnp.concatenate([kept, r]), rank)
            return merged, total + (r**2).sum(axis=0)

        if rows.single is not None:
            kept, total = (
                Algebra.leading(rows.single, rank),
                (rows.single**2).sum(axis=0),
            )
        else:
            start = jnp.zeros((rank, len(nothing)), nothing.dtype), nothing
            kept, total = rows.fold(merge, start)
        return self._leading_terms(rows, kept, total, Curvature, jnp)

    def rows_of_batch(
        self, position: Float[Array, " D"], data: Data, indices: Indices, rng_key: Array
    ) -> Float[Array, "R d"]:
        """Rows F^(1/2) J of one batch at a position (D,), shape (R, D'), differentiable in it."""
        latents = tuple(self.coordinates.slices)
        found = jacobian_rows(
            self.target, position[None], data, indices, rng_key, self.structure, latents
        )
        return found[0]


class _Rows:
    """The rows R (R, D') of the Jacobian of all whitened outputs at one position, by chunks."""

    def __init__(
        self, curvature: LikelihoodCurvature, position: Array, data: Data, rng_key: Array
    ) -> None:
        self.curvature = curvature
        self.position, self.data, self.rng_key = position, data, rng_key
        self.single: Array | None = None
        passes, self.groups = curvature.target.passes, []
        if passes is not None:
            first = passes.first(place)
            rows = jax.eval_shape(lambda: self._of_batch(1.0, first.args, first.kwargs, rng_key))
            size = total_rows(curvature.target.batch_plates, first.rows) or first.rows
            self.count = round(len(rows) * size / first.rows)
            return
        groups: dict[tuple[int, ...], list[tuple[float, Indices]]] = {}
        for weight, indices in curvature.target.sweep():
            size = tuple(len(numbers) for numbers in indices.values())
            groups.setdefault(size, []).append((weight, indices))
        self.groups = list(groups.values())
        if len(self.groups) == 1 and len(self.groups[0]) == 1:
            self.single = self._of_chunk(*self.groups[0][0], rng_key)
            self.count = len(self.single)
        else:
            self.count = sum(self._count(group[0][1]) * len(group) for group in self.groups)

    def _count(self, indices: Indices) -> int:
        shape = jax.eval_shape(lambda: self._of_chunk(1.0, indices, self.rng_key))
        return int(shape.shape[0])

    def _of_chunk(self, weight: float, indices: Indices, rng_key: Array) -> Array:
        found = self.curvature.rows_of_batch(self.position, self.data, indices, rng_key)
        return math.sqrt(weight) * found

    def _of_batch(self, weight: float, args: Any, own: Any, rng_key: Array) -> Array:
        data = self.curvature.target.bind(*args, **{**self.data.kwargs, **own})
        return math.sqrt(weight) * self.curvature.rows_of_batch(self.position, data, {}, rng_key)

    def _scan(self, step: Callable[[Any, Array], tuple[Any, Any]], carry: Any) -> tuple[Any, list]:
        target = self.curvature.target
        if target.passes is not None:

            def batch(carry: Any, weight: float, data: Data, number: Array) -> tuple[Any, Any]:
                key = random.fold_in(self.rng_key, number)
                found = self.curvature.rows_of_batch(self.position, data, {}, key)
                return step(carry, math.sqrt(weight) * found)

            return scan_over_batches(target.passes, target.arguments, self.data, batch, carry)
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
        if self.single is not None:
            return function(initial, self.single)
        return self._scan(lambda carry, rows: (function(carry, rows), None), initial)[0]

    def total(self, function: Callable[[Array], Any]) -> Any:
        """The sum of ``function(rows)`` over the chunks."""
        none = jnp.zeros((0, len(self.curvature.coordinates)), self.position.dtype)
        # What a sum over no rows is has the right shape.
        return self.fold(
            lambda total, rows: jax.tree.map(jnp.add, total, function(rows)), function(none)
        )

    def all(self) -> Array:
        """All rows, (R, D')."""
        if self.single is not None:
            return self.single
        _, parts = self._scan(lambda carry, rows: (carry, rows), None)
        return jnp.concatenate([part.reshape(-1, part.shape[-1]) for part in parts])
