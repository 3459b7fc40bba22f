"""The nearest Kronecker products to the blocks of a sum R' R whose rows come in chunks.

For each site that is a matrix that is the A (x) B nearest to its block of R' R in the Frobenius
norm (Van Loan and Pitsianis 1993, https://doi.org/10.1007/978-94-015-8196-7_17), the leading
singular pair of the rearranged block. It is found by power iteration from B = identity. Each half
step is a sum over rows, so that nothing but the factors is kept from one chunk of rows to the next,
and every iterate is positive semidefinite.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor

from ppl_ext.curvature.outer_products import LastRows, OuterProducts
from ppl_ext.curvature.program_curvature import (
    HALF_STEPS,
    KRONECKER_STEPS,
    factored_sides,
    kronecker_sides,
)
from pyro_ext.curvature.curvature import Curvature, KroneckerBlock

#: Sums over rows, by site.
Sums = dict[str, Tensor]
#: Takes rows (P, r, D'), and tensors that are held, to their sums.
OfRows = Callable[[Tensor, Sums], Sums]


_ROWS = OuterProducts(
    torch, lambda direction, like: torch.from_numpy(direction).to(like), Tensor.detach
)
outer_vectors, rank_one_sites = _ROWS.vectors, _ROWS.sites


def kronecker_factors(
    total: Callable[[OfRows, Sums], Sums],
    slices: Mapping[str, slice],
    shapes: Mapping[str, Collection[int]],
    like: Tensor,
    rank_one: Collection[str] = (),
    rows: Tensor | None = None,
) -> Curvature:
    """A sum R' R as Kronecker blocks of its sites, differentiable in the rows.

    A site that is no matrix has its whole block, or the diagonal of it where it is long.

    Parameters
    ----------
    total : callable
        Takes a function of rows (P, r, D') and of held tensors, and these, to its sum over all
        chunks of rows. It is called for every half step, and once for all sites that are not
        matrices. Held are the tensors of the function that may have a derivative.
    slices : dict of str to slice
        Where each site is among the D' coordinates.
    shapes : dict of str to tuple of int
        Shapes of the sites.
    like : Tensor
        Any tensor of P entries along its first axis, of the rows' dtype.
    rank_one : collection of str
        Sites whose rows, as matrices, had rank one by :func:`rank_one_sites`. That is seen again
        of these rows, since other arguments may have others.
    rows : Tensor, optional
        All rows (P, r, D'), where they are one chunk. Of few such rows all steps are taken at once.
    """
    number, tiny = len(like), torch.finfo(like.dtype).tiny
    sides = {name: kronecker_sides(shapes[name]) for name in slices}
    factored = factored_sides(slices, shapes)

    def plain(rows: Tensor, _: Sums) -> Sums:
        parts = {name: rows[:, :, slices[name]] for name in slices if name not in factored}
        return {
            name: part.square().sum(dim=1) if sides[name] is None else part.mT @ part
            for name, part in parts.items()
        }

    last = LastRows(_ROWS, rank_one)

    def half(side: int, other: Sums) -> Sums:
        def part(rows: Tensor, held: Sums) -> Sums:
            found = {}
            every = _ROWS.matrices(rows, slices, shapes)
            vectors = last.vectors(rows, every) if rank_one else {}
            for name in held:
                matrices = every[name]
                if name in rank_one:
                    own, across = vectors[name][side], vectors[name][1 - side]
                    weights = ((across @ held[name]) * across).sum(dim=2, keepdim=True)
                    found[name] = (weights * own).mT @ own
                else:
                    found[name] = torch.einsum(HALF_STEPS[side], matrices, held[name], matrices)
            return found

        sums = total(part, other)
        return {
            name: sums[name] / other[name].square().sum((1, 2), keepdim=True).clamp_min(tiny)
            for name in other
        }

    def ranks(rows: Tensor) -> Sums:
        return last.beyond(rows, _ROWS.matrices(rows, slices, shapes))

    if rank_one:
        beyond = total(lambda rows, _: ranks(rows), {})
        rank_one = () if any(map(bool, beyond.values())) else rank_one
    sums = total(plain, {}) if len(factored) < len(slices) else {}
    found: dict[str, tuple[Tensor, Tensor]] = {}
    if rows is not None and rank_one:
        vectors = last.vectors(rows, _ROWS.matrices(rows, slices, shapes))
        few = [name for name in rank_one if _ROWS.few(vectors[name])]
        found = {name: _ROWS.factors(vectors[name]) for name in few}
    left: Sums = {}
    right = {
        name: torch.eye(columns, dtype=like.dtype, device=like.device).repeat(number, 1, 1)
        for name, (_, columns) in factored.items()
        if name not in found
    }
    for _ in range(KRONECKER_STEPS if right else 0):
        left = half(0, right)
        right = half(1, left)
    found |= {name: (left[name], right[name]) for name in right}
    diagonals, blocks = [], []
    for name, where in slices.items():
        inside = sides[name] is not None
        nothing = like.new_zeros(number, where.stop - where.start)
        diagonals.append(nothing if inside else sums[name])
        if name in factored:
            blocks.append(KroneckerBlock(*found[name], where.start))
        elif inside:
            one = like.new_ones(number, 1, 1)
            blocks.append(KroneckerBlock(one, sums[name], where.start))
    diagonal = torch.cat(diagonals, dim=1)
    # The same for all particles, which solvers make use of.
    diagonal = diagonal[:1] if len(blocks) == len(slices) else diagonal
    return Curvature(diagonal, blocks=tuple(blocks))
