"""Curvature of the log prior in unconstrained space, made positive semidefinite.

The curvature is minus the Hessian of the log prior with its Jacobians. Where that is diagonal, as
for independent Normals, it is exact and costs one product, whatever the dimension; where it is
not, it is the whole matrix for small programs, with negative eigenvalues set to 0, and else its
diagonal, with negative entries set to 0. Which of them holds is found once, by products with
random vectors.

Of chosen latent sites it is the curvature given all others: that of a network's last layer is
diagonal where the scale of its weights is a latent site that is not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.curvature.program_curvature import DENSE_PRIOR_UP_TO, PriorForm, PriorStructure
from pyro_ext.curvature.solvers import symmetric_eigen
from pyro_ext.density import Data, LogDensity


def prior_structure(
    target: LogDensity,
    z: Float[Tensor, "P D"],
    data: Data,
    form: PriorForm | None = None,
    sites: Collection[str] | None = None,
) -> PriorStructure:
    """Find the structure of the log prior's curvature at positions z (P, D), once.

    Parameters
    ----------
    form : {"diagonal", "hessian"}, optional
        What to compute; default the diagonal where that is exact, the Hessian up to a dimension of
        ``DENSE_PRIOR_UP_TO``, and the diagonal above.
    sites : collection of str, optional
        Latent sites that have curvature; default all.
    """
    product = torch.func.vmap(_products(target, data), (0, None))
    slices = {n: s for n, s in target.layout.slices.items() if sites is None or n in sites}
    inside = torch.zeros(target.dim, dtype=z.dtype, device=z.device)
    for where in slices.values():
        inside[where] = 1.0
    # Not signs: in two dimensions every second pair of these would be a multiple of ones.
    drawn = torch.from_numpy(np.random.default_rng(0).normal(size=target.dim)).to(z)

    def is_diagonal(mask: Tensor) -> bool:
        """Whether H M v = (H M 1) * v on the mask, for a random v."""
        diagonal, crossed = product(z, mask), product(z, drawn * mask)
        expected = diagonal * drawn
        size = torch.maximum(expected.abs(), crossed.abs())
        # By coordinate: one narrow prior must not hide the couplings of the others.
        near = (crossed - expected).abs() <= 1e3 * torch.finfo(z.dtype).eps * size
        return bool((near | (mask == 0.0)).all())

    apart = []
    for name, where in slices.items():
        mask = torch.zeros_like(inside)
        mask[where] = 1.0
        if is_diagonal(mask):
            apart.append(name)
    whole = len(apart) == len(slices) and is_diagonal(inside)
    found = product(z, inside) * inside
    constant = whole and len(z) > 1 and bool((found == found[0]).all())
    if form is None:
        form = "hessian" if not whole and inside.sum() <= DENSE_PRIOR_UP_TO else "diagonal"
    exact = whole or form == "hessian"
    return PriorStructure(tuple(slices), form, exact, tuple(apart), constant and form == "diagonal")


def _products(target: LogDensity, data: Data) -> Callable[[Tensor, Tensor], Tensor]:
    """Products of minus the Hessian of the log prior at a position (D,) with a vector (D,)."""
    # The prior does not depend on which rows are seen.
    indices = target.first_rows()

    def log_prior(position: Tensor) -> Tensor:
        return target.evaluate(position, data, indices)[0]

    def product(position: Tensor, vector: Tensor) -> Tensor:
        # The Hessian is its own transpose; forward mode fails on some models in float32.
        pull = torch.func.vjp(torch.func.grad(log_prior), position)[1]
        result: Tensor = pull(vector)[0]
        return -result

    return product


def prior_curvature_of_one(
    target: LogDensity, structure: PriorStructure, position: Float[Tensor, " D"], data: Data
) -> Float[Tensor, "d ..."]:
    """Curvature of the log prior at one position (D,): its diagonal (D',), or (D', D'), as it is.

    Negative curvature is still in it.
    """
    product, size = _products(target, data), len(position)
    slices = [target.layout.slices[name] for name in structure.sites]
    numbers = torch.arange(size, device=position.device)

    def inside(vector: Tensor) -> Tensor:
        return torch.cat([vector[where] for where in slices])

    def ones_at(*places: slice) -> Tensor:
        found = torch.zeros_like(numbers, dtype=torch.bool)
        for where in places:
            found = found | ((numbers >= where.start) & (numbers < where.stop))
        return found.to(position.dtype)

    def columns(where: slice) -> Tensor:
        basis = torch.eye(size, dtype=position.dtype, device=position.device)[where]
        return torch.stack([product(position, vector) for vector in basis])

    if structure.form == "hessian":
        return torch.stack([inside(row) for where in slices for row in columns(where)])
    if structure.exact:
        return inside(product(position, ones_at(*slices)))
    parts = []
    for name, where in zip(structure.sites, slices, strict=True):
        if name in structure.apart:
            parts.append(product(position, ones_at(where))[where])
        else:
            parts.append(columns(where)[:, where].diagonal())
    return torch.cat(parts)


def without_negative(found: Float[Tensor, "P d ..."]) -> Float[Tensor, "P d ..."]:
    """Diagonals (P, D') or matrices (P, D', D') with negative curvature set to zero."""
    if found.dim() == 2:
        return found.clamp_min(0.0)
    values, vectors = symmetric_eigen(0.5 * (found + found.mT))
    return (vectors * values.clamp_min(0.0)[:, None]) @ vectors.mT


def prior_curvature(
    target: LogDensity, structure: PriorStructure, z: Float[Tensor, "P D"], data: Data
) -> Float[Tensor, " ..."]:
    """Curvature of the log prior at positions z (P, D): its diagonal (P, D'), or (P, D', D').

    A constant one has shape (1, D').
    """
    if structure.constant:
        z = z[:1]

    def one(position: Tensor) -> Tensor:
        return prior_curvature_of_one(target, structure, position, data)

    return without_negative(torch.func.vmap(one)(z))
