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

from ppl_ext.curvature.curvature import Sums
from ppl_ext.curvature.outer_products import KroneckerSums, OuterProducts
from ppl_ext.curvature.program_curvature import KRONECKER_STEPS
from pyro_ext.curvature.curvature import Curvature

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
    number, sites = len(like), KroneckerSums(_ROWS, slices, shapes, rank_one)

    def half(side: int, other: Sums) -> Sums:
        def part(rows: Tensor, held: Sums) -> Sums:
            return sites.half(side, rows, sites.matrices(rows), held, rank_one)

        return sites.scaled(total(part, other), other)

    if rank_one:
        beyond = total(lambda rows, _: sites.beyond(rows, sites.matrices(rows)), {})
        rank_one = () if any(map(bool, beyond.values())) else rank_one
    sums = total(lambda rows, _: sites.plain(rows), {}) if len(sites.factored) < len(slices) else {}
    found: dict[str, tuple[Tensor, Tensor]] = {}
    if rows is not None and rank_one:
        found = sites.at_once(rows, sites.matrices(rows), rank_one)
    left: Sums = {}
    right = {
        name: torch.eye(columns, dtype=like.dtype, device=like.device).repeat(number, 1, 1)
        for name, (_, columns) in sites.factored.items()
        if name not in found
    }
    for _ in range(KRONECKER_STEPS if right else 0):
        left = half(0, right)
        right = half(1, left)
    found |= {name: (left[name], right[name]) for name in right}
    blocks, alone = sites.blocks(found, sums, like.new_ones(number, 1, 1)), sites.diagonals()
    # The same for all particles where there are blocks alone, which solvers make use of.
    nothing = like.new_zeros(number if alone else 1, max(where.stop for where in slices.values()))
    parts = [sums[n] if n in alone else nothing[:, where] for n, where in slices.items()]
    return Curvature(torch.cat(parts, dim=1), blocks=blocks)
