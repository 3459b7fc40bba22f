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
from ppl_ext.curvature.outer_products import LastRows, OuterProducts
from ppl_ext.curvature.program_curvature import (
    HALF_STEPS,
    KRONECKER_STEPS,
    factored_sides,
    kronecker_sides,
)

#: Sums over rows, by site.
Sums = dict[str, Array]


_ROWS = OuterProducts(
    jnp, lambda direction, like: jnp.asarray(direction, like.dtype), lax.stop_gradient
)
outer_vectors, rank_one_sites = _ROWS.vectors, _ROWS.sites


def kronecker_factors(
    total: Callable[[Callable[[Array], Sums]], Sums],
    slices: Mapping[str, slice],
    shapes: Mapping[str, Collection[int]],
    like: Array,
    rank_one: Collection[str] = (),
    rows: Array | None = None,
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
    rows : Array, optional
        All rows (P, r, D'), where they are one chunk. Of few such rows all steps are taken at once.
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

    last = LastRows(_ROWS, rank_one)
    # Found once and before any condition, which would else need the rows in one piece.
    of_all = None if rows is None else _ROWS.matrices(rows, slices, shapes)

    def matrices_of(chunk: Array) -> Sums:
        """Rows of a chunk, as matrices by site."""
        if of_all is not None and chunk is rows:
            return of_all
        return _ROWS.matrices(chunk, slices, shapes)

    def half(side: int, other: Sums, quick: Collection[str]) -> Sums:
        def part(rows: Array) -> Sums:
            found = {}
            every = matrices_of(rows)
            vectors = last.vectors(rows, every) if quick else {}
            for name in other:
                matrices = every[name]
                if name in quick:
                    own, across = vectors[name][side], vectors[name][1 - side]
                    weights = ((across @ other[name]) * across).sum(axis=2, keepdims=True)
                    found[name] = (weights * own).mT @ own
                else:
                    found[name] = jnp.einsum(HALF_STEPS[side], matrices, other[name], matrices)
            return found

        sums, tiny = total(part), jnp.finfo(dtype).tiny
        return {
            name: sums[name] / jnp.maximum((other[name] ** 2).sum((1, 2), keepdims=True), tiny)
            for name in other
        }

    def found_by(quick: Collection[str], start: tuple[Sums, Sums]) -> tuple[Sums, Sums]:
        found: dict[str, tuple[Array, Array]] = {}
        if rows is not None and quick:
            vectors = last.vectors(rows, matrices_of(rows))
            few = [name for name in quick if _ROWS.few(vectors[name])]
            found = {name: _ROWS.factors(vectors[name]) for name in few}
        others = [name for name in factored if name not in found]

        def both(_: Any, factors: tuple[Sums, Sums]) -> tuple[Sums, Sums]:
            left = half(0, factors[1], quick)
            return left, half(1, left, quick)

        if others:
            first, second = ({name: side[name] for name in others} for side in start)
            alternated = lax.fori_loop(0, KRONECKER_STEPS, both, (first, second))
            found |= {name: (alternated[0][name], alternated[1][name]) for name in others}
        left, right = ({name: found[name][side] for name in factored} for side in (0, 1))
        return left, right

    sums = total(plain) if len(factored) < len(slices) else {}
    left = {name: jnp.zeros((number, rows, rows), dtype) for name, (rows, _) in factored.items()}
    right = {
        name: jnp.broadcast_to(jnp.eye(columns, dtype=dtype), (number, columns, columns))
        for name, (_, columns) in factored.items()
    }

    def ranks(rows: Array) -> Sums:
        return last.beyond(rows, matrices_of(rows))

    if rank_one:
        beyond = total(ranks)
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
