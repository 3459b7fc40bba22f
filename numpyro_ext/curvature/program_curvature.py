"""A program's curvature.

Its structures are described in :mod:`ppl_ext.curvature.program_curvature`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Float

from numpyro_ext.curvature.coordinates import Coordinates
from numpyro_ext.curvature.curvature import Curvature
from numpyro_ext.curvature.fisher import needs_draws
from numpyro_ext.curvature.gauss_newton import jacobian_rows
from numpyro_ext.curvature.kronecker import Sums, kronecker_factors, rank_one_sites
from numpyro_ext.curvature.prior import prior_curvature, prior_structure
from numpyro_ext.curvature.row_structure import row_structure
from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.layout import Indices
from numpyro_ext.programs import Program
from numpyro_ext.sharding import is_tracing
from ppl_ext.curvature.program_curvature import (
    LARGEST_JACOBIANS,
    GaussNewton,
    check_no_factors,
    sites_with_curvature,
)

#: Jacobians (P, R, D') at positions (P, D) of a batch of rows, with a key for what is drawn.
Jacobian = Callable[[Array, Data, Indices, Array], Array]


class ProgramCurvature:
    """The curvature of a program, with all that is found once: what is diagonal, what is apart.

    Parameters
    ----------
    target : LogDensity
    data : Data
        Concrete arguments of the model.
    options : GaussNewton

    Attributes
    ----------
    where : Coordinates
        The D' coordinates of the flat vector that have curvature.
    coordinates : array of int
        Their numbers.
    slices : dict of str to slice
        Where each of their latent sites is among them.
    sites : tuple of str
        These sites, in the order of the layout.
    drawing : bool
        Whether the Fisher information of an observed site is made of draws.

    Raises
    ------
    ArgumentError
        A site is not latent, or the model's likelihood has factors, which have no outputs.
    """

    def __init__(self, target: LogDensity, data: Data, options: GaussNewton) -> None:
        self.options = options
        self.where = Coordinates(target, sites_with_curvature(options, target.layout.names))
        self.coordinates, self.slices = self.where.numbers, self.where.slices
        self.sites = tuple(self.slices)
        # Anywhere will do: these positions show the structure, and are not started from.
        drawn = np.random.default_rng(0).uniform(-1.0, 1.0, (2, target.dim)).astype(target.dtype)
        positions, first = jax.device_put((drawn, drawn[0]))
        self.drawing = self._look_at_likelihood(target, first, data)
        self.prior = prior_structure(target, positions, data, options.prior_form, self.sites)
        self.rows = row_structure(target, first, data, target.first_rows())
        self.rank_one = self._rank_one(target, positions, data)

    def _look_at_likelihood(self, target: LogDensity, position: Array, data: Data) -> bool:
        """Refuse a likelihood with factors; say whether a Fisher information is made of draws."""
        factors: tuple[str, ...] = ()
        drawing = False

        def look(position: Array, data: Data, indices: Indices) -> None:
            nonlocal factors, drawing
            factors = target.likelihood_factors(position, data, indices)
            drawing = any(map(needs_draws, target.outputs(position, data, indices).values()))

        jax.eval_shape(look, position, data.on_device(), target.first_rows())
        check_no_factors(factors, "numpyro")
        return drawing

    def _rank_one(self, target: LogDensity, positions: Array, data: Data) -> frozenset[str]:
        """Sites whose rows have rank one as matrices, where Kronecker factors are wanted."""
        data, indices = data.on_device(), target.first_rows()
        if self.options.structure != "kfac":
            return frozenset()
        count = _num_rows(self._jacobian(target), positions, data, indices)
        if len(positions) * count * len(self.coordinates) > LARGEST_JACOBIANS:
            return frozenset()

        def look(positions: Array, data: Data, indices: Indices, key: Array) -> Sums:
            rows = self._jacobian(target)(positions, data, indices, key)
            return rank_one_sites(rows, self.slices, target.layout.shapes)

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
        jacobian = self._jacobian(target)
        if indices is None:
            likelihood = self._sweep(target, jacobian, z, data, rng_key)
        else:
            likelihood = self._likelihood(target, jacobian, z, data, indices, rng_key)
        prior = prior_curvature(target, self.prior, z, data)
        return Curvature.of_prior(prior).plus(likelihood)

    def _sweep(
        self, target: LogDensity, jacobian: Jacobian, z: Array, data: Data, rng_key: Array
    ) -> Curvature:
        """The Gauss-Newton part of all rows, chunk by chunk."""
        chunks = target.sweep()
        if len(chunks) == 1:
            return self._likelihood(target, jacobian, z, data, chunks[0][1], rng_key)
        count = sum(_num_rows(jacobian, z, data, indices) for _, indices in chunks)
        as_matrix = self.options.structure == "full" and count > len(self.coordinates)
        if as_matrix or self.options.structure == "diag":

            def part(indices: Indices) -> Curvature:
                key = _key_of_chunk(rng_key, indices)
                return self._likelihood(target, jacobian, z, data, indices, key, as_matrix)

            return target.sum_over_rows(part)
        if self.options.structure == "kfac":

            def factors(positions: Array, key: Array) -> Curvature:
                def total(function: Callable[[Array], Sums]) -> Sums:
                    def part(indices: Indices) -> Sums:
                        # The same draws at every call.
                        own = _key_of_chunk(key, indices)
                        return function(jacobian(positions, data, indices, own))

                    return target.sum_over_rows(part)

                return self._factored(total, target, positions)

            return self._in_turns(factors, jacobian, z, data, chunks[0][1], rng_key)
        return self._rows_of_all(target, jacobian, z, data, rng_key, chunks)

    def _rows_of_all(
        self,
        target: LogDensity,
        jacobian: Jacobian,
        z: Array,
        data: Data,
        rng_key: Array,
        chunks: list[tuple[float, Indices]],
    ) -> Curvature:
        """The Gauss-Newton part of all rows where the rows of the chunks are kept side by side."""
        groups: dict[tuple[int, ...], list[tuple[float, Indices]]] = {}
        for weight, indices in chunks:
            groups.setdefault(tuple(len(rows) for rows in indices.values()), []).append(
                (weight, indices)
            )
        total: Curvature | None = None
        for number, group in enumerate(groups.values()):
            weight = group[0][0]
            stacked = jax.tree.map(lambda *rows: jnp.stack(rows), *(rows for _, rows in group))
            keys = random.split(random.fold_in(rng_key, number), len(group))

            def chunk(pair: tuple[Indices, Array]) -> Curvature:
                return self._likelihood(target, jacobian, z, data, *pair)

            parts = jax.lax.map(chunk, (stacked, keys))
            assert parts.rows is not None
            rows = jnp.moveaxis(parts.rows, 0, 1).reshape(len(z), -1, parts.rows.shape[-1])
            found = Curvature(weight * parts.diagonal.sum(axis=0), rows=math.sqrt(weight) * rows)
            total = found if total is None else total.plus(found)
        assert total is not None
        return total

    def _jacobian(self, target: LogDensity) -> Jacobian:
        """Jacobians of batches, traced once for all batches of a size and all turns over them."""

        def rows(z: Array, data: Data, indices: Indices, rng_key: Array) -> Array:
            return jacobian_rows(target, z, data, indices, rng_key, self.rows, self.sites)

        # Outside of a trace it would be compiled anew at every call.
        return jax.jit(rows) if is_tracing() else rows

    def _likelihood(
        self,
        target: LogDensity,
        jacobian: Jacobian,
        z: Array,
        data: Data,
        indices: Indices,
        rng_key: Array,
        as_matrix: bool = False,
    ) -> Curvature:
        """The Gauss-Newton part of one batch, in its structure."""

        def found(positions: Array, key: Array) -> Curvature:
            rows = jacobian(positions, data, indices, key)
            if self.options.structure != "kfac":
                options = self.options.structure, self.options.rank
                return Curvature.of_rows(rows, *options, as_matrix)
            return self._factored(lambda function: function(rows), target, rows, rows)

        if self.options.structure == "full":
            return found(z, rng_key)
        return self._in_turns(found, jacobian, z, data, indices, rng_key)

    def _in_turns(
        self,
        function: Callable[[Array, Array], Curvature],
        jacobian: Jacobian,
        z: Array,
        data: Data,
        indices: Indices,
        rng_key: Array,
    ) -> Curvature:
        """A function of positions and a key at z; where batches are large, one by one."""
        numbers = len(z) * _num_rows(jacobian, z, data, indices) * len(self.coordinates)
        if numbers <= LARGEST_JACOBIANS:
            return function(z, rng_key)
        one_by_one = jax.lax.map(
            lambda pair: function(pair[0][None], pair[1]), (z, random.split(rng_key, len(z)))
        )
        return jax.tree.map(lambda leaf: leaf[:, 0], one_by_one)

    def _factored(
        self,
        total: Callable[[Callable[[Array], Sums]], Sums],
        target: LogDensity,
        like: Array,
        rows: Array | None = None,
    ) -> Curvature:
        shapes = target.layout.shapes
        return kronecker_factors(total, self.slices, shapes, like, self.rank_one, rows)


def _num_rows(jacobian: Jacobian, z: Array, data: Data, indices: Indices) -> int:
    return int(jax.eval_shape(jacobian, z, data, indices, random.PRNGKey(0)).shape[1])


def _key_of_chunk(rng_key: Array, indices: Indices) -> Array:
    return random.fold_in(rng_key, next(iter(indices.values()))[0])
