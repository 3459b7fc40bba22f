"""A program's curvature.

Its structures are described in :mod:`ppl_ext.curvature.program_curvature`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jaxtyping import Float

from numpyro_ext.curvature.coordinates import Coordinates
from numpyro_ext.curvature.curvature import OUTER_PRODUCTS, Curvature
from numpyro_ext.curvature.fisher import drawn_values, needs_draws
from numpyro_ext.curvature.gauss_newton import jacobian_rows
from numpyro_ext.curvature.prior import prior_curvature, prior_structure
from numpyro_ext.curvature.row_structure import row_structure
from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.batches import place, scan_over_batches
from numpyro_ext.density.layout import Indices
from numpyro_ext.programs import Program
from numpyro_ext.sharding import is_tracing
from ppl_ext.batches.passes import total_rows
from ppl_ext.curvature import program_curvature as shared
from ppl_ext.curvature.curvature import Rows, Sums
from ppl_ext.curvature.outer_products import kronecker_factors

#: Jacobians (P, R, D') at positions (P, D) of a batch of rows, with a key for what is drawn.
Jacobian = Callable[[Array, Data, Indices, Array], Array]


class ProgramCurvature(shared.ProgramCurvatureShell):
    kind = Curvature
    factors = staticmethod(partial(kronecker_factors, OUTER_PRODUCTS))

    def __init__(
        self, target: LogDensity, data: Data, options: shared.GaussNewton, *, often: bool = True
    ) -> None:
        sites = shared.sites_with_curvature(options, target.layout.names)
        super().__init__(options, Coordinates(target, sites), target.layout.shapes)
        # Anywhere will do: these positions show the structure, and are not started from.
        drawn = np.random.default_rng(0).uniform(-1.0, 1.0, (2, target.dim)).astype(target.dtype)
        positions, first = jax.device_put((drawn, drawn[0]))
        self.drawn = self._look_at_likelihood(target, first, data)
        self.prior = prior_structure(target, positions, data, options.prior_form, self.sites)
        self.rows = row_structure(target, first, data, target.first_rows())
        if often and options.structure == "kfac":
            self.rank_one = self._rank_one(target, positions, data)

    def _look_at_likelihood(
        self, target: LogDensity, position: Array, data: Data
    ) -> tuple[str, ...]:
        """Refuse a likelihood with factors; the sites whose Fisher information is made of draws."""
        factors: tuple[str, ...] = ()
        drawn: list[str] = []

        def look(position: Array, data: Data, indices: Indices) -> None:
            nonlocal factors
            factors = target.likelihood_factors(position, data, indices)
            for name, output in target.outputs(position, data, indices).items():
                if needs_draws(output):
                    # What cannot be drawn from is told here, before any step.
                    drawn_values(output, random.key(0), 1)
                    drawn.append(name)

        jax.eval_shape(look, position, data.on_device(), target.first_rows())
        shared.check_no_factors(factors, "numpyro")
        return tuple(drawn)

    def _rank_one(self, target: LogDensity, positions: Array, data: Data) -> frozenset[str]:
        """Sites whose rows have rank one as matrices."""
        data, indices = data.on_device(), target.first_rows()
        count = _num_rows(self._jacobian(target), positions, data, indices)
        if len(positions) * count * len(self.coordinates) > shared.LARGEST_JACOBIANS:
            return frozenset()

        def look(positions: Array, data: Data, indices: Indices, key: Array) -> Sums:
            rows = self._jacobian(target)(positions, data, indices, key)
            return OUTER_PRODUCTS.sites(rows, self.slices, target.layout.shapes)

        found = Program(look, rarely=True)(positions, data, indices, random.PRNGKey(0))
        return frozenset(name for name, holds in found.items() if holds)

    def at(
        self,
        target: LogDensity,
        z: Float[Array, "P D"],
        data: Data,
        indices: Indices | None,
        rng_key: Array,
    ) -> Curvature:
        """Curvature at positions z (P, D) of a batch of rows, or of all rows without one.

        ``rng_key`` serves distributions without a registered Fisher information.
        """
        chunks = target.sweep() if indices is None else [(1.0, indices)]
        jacobian = self._jacobian(target)

        def likelihood(positions: Array, key: Array) -> Curvature:
            return self._summed(_Rows(jacobian, target, positions, data, key, chunks))

        part = self._in_turns(likelihood, jacobian, z, data, chunks[0][1], rng_key)
        prior = prior_curvature(target, self.prior, z, data)
        return Curvature.of_prior(prior).plus(part)

    def of_all_rows(
        self, target: LogDensity, position: Float[Array, " D"], data: Data, rng_key: Array
    ) -> Curvature:
        """The likelihood's curvature of all rows at a position (D,), differentiable in it.

        It follows the change of the Fisher information with the position. All rows may be those of
        a loader. ``rng_key`` is that of :meth:`at`.
        """
        data, jacobian = data.on_device(), self._jacobian(target)
        chunks = target.sweep() if target.passes is None else []
        rows = _Rows(jacobian, target, position[None], data, rng_key, chunks)
        return self._summed(rows, shared.ROWS_UP_TO)

    def _jacobian(self, target: LogDensity) -> Jacobian:
        """A function for the Jacobian rows of a batch.

        Within a trace it is under ``jit``, so that it is traced once for all batches of one size.
        """

        def rows(z: Array, data: Data, indices: Indices, rng_key: Array) -> Array:
            return jacobian_rows(target, z, data, indices, rng_key, self.rows, self.sites)

        # Outside of a trace ``jit`` of this new function would compile it at every call.
        return jax.jit(rows) if is_tracing() else rows

    def _in_turns(
        self,
        function: Callable[[Array, Array], Curvature],
        jacobian: Jacobian,
        z: Array,
        data: Data,
        indices: Indices,
        rng_key: Array,
    ) -> Curvature:
        """A function of positions and a key at z; where batches are large, one by one.

        Rows that are kept take as much memory either way.
        """
        if (
            self.options.structure == "full"
            or len(z) * _num_rows(jacobian, z, data, indices) * len(self.coordinates)
            <= shared.LARGEST_JACOBIANS
        ):
            return function(z, rng_key)
        one_by_one = jax.lax.map(
            lambda pair: function(pair[0][None], pair[1]), (z, random.split(rng_key, len(z)))
        )
        return jax.tree.map(lambda leaf: leaf[:, 0], one_by_one)


class _Rows(Rows):
    """Rows of the chunks of a sweep, or of a loader's batches where there are none."""

    def __init__(
        self,
        jacobian: Jacobian,
        target: LogDensity,
        z: Array,
        data: Data,
        rng_key: Array,
        chunks: list[tuple[float, Indices]],
    ) -> None:
        self.jacobian, self.target, self.z = jacobian, target, z
        self.data, self.rng_key = data, rng_key
        # A scan takes chunks of one size. The last ones may be shorter.
        groups: dict[tuple[int, ...], list[tuple[float, Indices]]] = {}
        for weight, indices in chunks:
            size = tuple(len(numbers) for numbers in indices.values())
            groups.setdefault(size, []).append((weight, indices))
        self.groups = list(groups.values())
        if target.passes is not None and not chunks:
            first = target.passes.first(place)
            bound = target.bind(*first.args, **{**data.kwargs, **first.kwargs})
            share = first.rows / (total_rows(target.batch_plates, first.rows) or first.rows)
            # Rows of a pass, by those of its first batch and the share of all that it holds.
            parts: list[Any] = [(1.0 / share, bound, {})]
        else:
            parts = [(len(group), data, group[0][1]) for group in self.groups]
        shapes = [
            (times, jax.eval_shape(jacobian, z, given, indices, rng_key).shape)
            for times, given, indices in parts
        ]
        self._count = round(sum(times * shape[1] for times, shape in shapes))
        single = self._of_chunk(*chunks[0], rng_key) if len(chunks) == 1 else None
        super().__init__(jnp.zeros((len(z), 1, shapes[0][1][-1]), z.dtype), single)

    @property
    def count(self) -> int:
        return self._count

    def _of_chunk(self, weight: float, indices: Indices, rng_key: Array) -> Array:
        # Rows enter as r' r, so that a chunk's weight goes into them by its root.
        return math.sqrt(weight) * self.jacobian(self.z, self.data, indices, rng_key)

    def _scan(self, step: Callable[[Any, Array], tuple[Any, Any]], carry: Any) -> tuple[Any, list]:
        """The last carry, and what the steps give besides, by groups of chunks of one size."""
        target = self.target
        if not self.groups:

            def batch(carry: Any, weight: float, data: Data, number: Array) -> tuple[Any, Any]:
                key = random.fold_in(self.rng_key, number)
                return step(carry, math.sqrt(weight) * self.jacobian(self.z, data, {}, key))

            assert target.passes is not None
            return scan_over_batches(target.passes, target.arguments, self.data, batch, carry)
        outputs = []
        for number, group in enumerate(self.groups):
            weight = group[0][0]
            # The same at every pass, so that all are of one matrix.
            keys = random.split(random.fold_in(self.rng_key, number), len(group))
            stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *(each for _, each in group))

            def chunk(carry: Any, each: Any, weight: float = weight) -> tuple[Any, Any]:
                return step(carry, self._of_chunk(weight, *each))

            carry, output = lax.scan(chunk, carry, (stacked, keys))
            outputs.append(output)
        return carry, outputs

    def fold(self, function: Callable[[Sums, Array, Sums], Sums], carry: Sums, held: Sums) -> Sums:
        found: Sums = self._scan(lambda carry, rows: (function(carry, rows, held), None), carry)[0]
        return found

    def all(self) -> Array:
        if self.single is not None:
            return self.single
        _, parts = self._scan(lambda carry, rows: (carry, rows), None)
        number, _, dim = self.nothing.shape
        flat = [jnp.moveaxis(part, 0, 1).reshape(number, -1, dim) for part in parts]
        return jnp.concatenate(flat, axis=1)


def _num_rows(jacobian: Jacobian, z: Array, data: Data, indices: Indices) -> int:
    return int(jax.eval_shape(jacobian, z, data, indices, random.PRNGKey(0)).shape[1])
