"""The nearest Kronecker products to the blocks of a sum R' R whose rows come in chunks.

For each site that is a matrix that is the A (x) B nearest to its block of R' R in the Frobenius
norm (Van Loan and Pitsianis 1993, https://doi.org/10.1007/978-94-015-8196-7_17), the leading
singular pair of the rearranged block. It is found by power iteration from B = identity. Each half
step is a sum over rows, so that nothing but the factors is kept from one chunk of rows to the next,
and every iterate is positive semidefinite. Where all rows are outer products of two vectors, as
those of a linear layer are, a half step takes products with the vectors alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from numpyro_ext.curvature.curvature import Curvature, KroneckerBlock
from ppl_ext.curvature import (
    HALF_STEPS,
    KRONECKER_STEPS,
    RANK_ONE_UP_TO,
    factored_sides,
    generic_direction,
    kronecker_sides,
)

#: Sums over rows, by site.
Sums = dict[str, Array]


def outer_vectors(matrices: Array) -> tuple[Array, Array]:
    """u (P, r, a) and v (P, r, b) with u v' = M for matrices M (P, r, a, b) of rank one."""
    direction = jnp.asarray(generic_direction(matrices.shape[-1]), matrices.dtype)
    left = matrices @ direction
    # Relative to the largest entry, since squares of small ones have no reciprocals.
    size = lax.stop_gradient(jnp.abs(left).max(axis=-1, keepdims=True))
    left = left / jnp.where(size > 0.0, size, 1.0)
    squares = jnp.where(size > 0.0, (left**2).sum(axis=-1, keepdims=True), 1.0)
    return left, jnp.einsum("prab,pra->prb", matrices, left) / squares


def rank_one_sites(
    rows: Array, slices: Mapping[str, slice], shapes: Mapping[str, Collection[int]]
) -> dict[str, Array]:
    """By site that is a matrix, whether its rows (P, r, D') all have rank one as matrices.

    Those of a linear layer have: the outer product of what goes in and of what comes back.
    """
    found = {}
    for name in factored_sides(slices, shapes):
        some = jnp.abs(rows[:, :, slices[name]]).max() > 0.0
        found[name] = some & (beyond_rank_one(rows, slices, shapes, (name,))[name] == 0.0)
    return found


def beyond_rank_one(
    rows: Array,
    slices: Mapping[str, slice],
    shapes: Mapping[str, Collection[int]],
    names: Collection[str],
) -> Sums:
    """By site, 1 where a row (P, r, D') is a matrix of a rank above one, and else 0."""
    found, sides = {}, factored_sides(slices, shapes)
    for name in names:
        matrices = rows[:, :, slices[name]].reshape(*rows.shape[:2], *sides[name])
        left, right = outer_vectors(matrices)
        rest = jnp.abs(matrices - left[..., None] * right[..., None, :]).max()
        size = jnp.abs(matrices).max()
        found[name] = (rest > RANK_ONE_UP_TO * size).astype(rows.dtype)
    return found


def kronecker_factors(
    total: Callable[[Callable[[Array], Sums]], Sums],
    slices: Mapping[str, slice],
    shapes: Mapping[str, Collection[int]],
    like: Array,
    rank_one: Collection[str] = (),
) -> Curvature:
    """A sum R' R as Kronecker blocks of its sites, differentiable in the rows.

    A site that is no matrix has its whole block, or the diagonal of it where it is long.

    Parameters
    ----------
    total : callable
        Takes a function of rows (P, r, D') to its sum over all chunks of rows. It is called for
        every half step, and once for all sites that are not matrices.
    slices : dict of str to slice
        Where each site is among the D' coordinates.
    shapes : dict of str to tuple of int
        Shapes of the sites.
    like : Array
        Any array of P entries along its first axis, of the rows' dtype.
    rank_one : collection of str
        Sites whose rows, as matrices, had rank one by :func:`rank_one_sites`. That is seen again
        of these rows, since other arguments may have others.
    """
    number, dtype = len(like), like.dtype
    sides = {name: kronecker_sides(shapes[name]) for name in slices}
    factored = factored_sides(slices, shapes)

    def plain(rows: Array) -> Sums:
        parts = {name: rows[:, :, slices[name]] for name in slices if name not in factored}
        return {
            name: (part**2).sum(axis=1) if sides[name] is None else part.mT @ part
            for name, part in parts.items()
        }

    def half(side: int, other: Sums, quick: Collection[str]) -> Sums:
        def part(rows: Array) -> Sums:
            found = {}
            for name, pair in factored.items():
                matrices = rows[:, :, slices[name]].reshape(*rows.shape[:2], *pair)
                if name in quick:
                    vectors = outer_vectors(matrices)
                    own, across = vectors[side], vectors[1 - side]
                    weights = ((across @ other[name]) * across).sum(axis=2, keepdims=True)
                    found[name] = (weights * own).mT @ own
                else:
                    found[name] = jnp.einsum(HALF_STEPS[side], matrices, other[name], matrices)
            return found

        sums, tiny = total(part), jnp.finfo(dtype).tiny
        return {
            name: sums[name] / jnp.maximum((other[name] ** 2).sum((1, 2), keepdims=True), tiny)
            for name in factored
        }

    def found_by(quick: Collection[str], start: tuple[Sums, Sums]) -> tuple[Sums, Sums]:
        def both(_: Any, factors: tuple[Sums, Sums]) -> tuple[Sums, Sums]:
            left = half(0, factors[1], quick)
            return left, half(1, left, quick)

        factors: tuple[Sums, Sums] = lax.fori_loop(0, KRONECKER_STEPS, both, start)
        return factors

    sums = total(plain) if len(factored) < len(slices) else {}
    left = {name: jnp.zeros((number, rows, rows), dtype) for name, (rows, _) in factored.items()}
    right = {
        name: jnp.broadcast_to(jnp.eye(columns, dtype=dtype), (number, columns, columns))
        for name, (_, columns) in factored.items()
    }
    if rank_one:
        beyond = total(lambda rows: beyond_rank_one(rows, slices, shapes, rank_one))
        left, right = lax.cond(
            sum(beyond.values()) == 0.0,
            partial(found_by, rank_one),
            partial(found_by, ()),
            (left, right),
        )
    elif factored:
        left, right = found_by((), (left, right))
    diagonal = jnp.zeros((1, max(where.stop for where in slices.values())), dtype)
    blocks = []
    for name, where in slices.items():
        if name in factored:
            blocks.append(KroneckerBlock(left[name], right[name], where.start))
        elif sides[name] is not None:
            one = jnp.ones((number, 1, 1), dtype)
            blocks.append(KroneckerBlock(one, sums[name], where.start))
        else:
            diagonal = jnp.broadcast_to(diagonal, (number, diagonal.shape[1]))
            diagonal = diagonal.at[:, where].set(sums[name])
    return Curvature(diagonal, blocks=tuple(blocks))
