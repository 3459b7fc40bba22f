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

from numpyro_ext.curvature.curvature import Curvature
from ppl_ext.curvature.curvature import Sums
from ppl_ext.curvature.outer_products import KroneckerSums, OuterProducts
from ppl_ext.curvature.program_curvature import KRONECKER_STEPS

#: Takes rows (P, r, D'), and arrays that are held, to their sums.
OfRows = Callable[[Array, Sums], Sums]

_ROWS = OuterProducts(
    jnp, lambda direction, like: jnp.asarray(direction, like.dtype), lax.stop_gradient
)
outer_vectors, rank_one_sites = _ROWS.vectors, _ROWS.sites


def kronecker_factors(
    total: Callable[[OfRows, Sums], Sums],
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
        Takes a function of rows (P, r, D') and of held arrays, and these, to its sum over all
        chunks of rows. It is called for every half step, and once for all sites that are not
        matrices. Held are the arrays of the function that may have a derivative.
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
    sites = KroneckerSums(_ROWS, slices, shapes, rank_one)
    factored = sites.factored
    # Found once and before any condition, which would else need the rows in one piece.
    of_all = None if rows is None else sites.matrices(rows)

    def matrices_of(chunk: Array) -> Sums:
        """Rows of a chunk, as matrices by site."""
        return of_all if of_all is not None and chunk is rows else sites.matrices(chunk)

    def half(side: int, other: Sums, quick: Collection[str]) -> Sums:
        def part(rows: Array, held: Sums) -> Sums:
            return sites.half(side, rows, matrices_of(rows), held, quick)

        return sites.scaled(total(part, other), other)

    def found_by(quick: Collection[str], start: tuple[Sums, Sums]) -> tuple[Sums, Sums]:
        found: dict[str, tuple[Array, Array]] = {}
        if rows is not None and quick:
            found = sites.at_once(rows, matrices_of(rows), quick)
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

    sums = total(lambda rows, _: sites.plain(rows), {}) if len(factored) < len(slices) else {}
    left = {name: jnp.zeros((number, rows, rows), dtype) for name, (rows, _) in factored.items()}
    right = {
        name: jnp.broadcast_to(jnp.eye(columns, dtype=dtype), (number, columns, columns))
        for name, (_, columns) in factored.items()
    }
    if rank_one:
        beyond = total(lambda rows, _: sites.beyond(rows, matrices_of(rows)), {})
        left, right = lax.cond(
            sum(beyond.values()) == 0.0,
            partial(found_by, rank_one),
            partial(found_by, ()),
            (left, right),
        )
    elif factored:
        left, right = found_by((), (left, right))
    alone = sites.diagonals()
    size = max(where.stop for where in slices.values())
    diagonal = jnp.zeros((number if alone else 1, size), dtype)
    for name, where in alone.items():
        diagonal = diagonal.at[:, where].set(sums[name])
    pairs = {name: (left[name], right[name]) for name in factored}
    return Curvature(diagonal, blocks=sites.blocks(pairs, sums, jnp.ones((number, 1, 1), dtype)))
