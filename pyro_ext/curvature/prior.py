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

from ppl_ext.curvature.prior import structure_of_prior
from ppl_ext.curvature.program_curvature import PriorForm, PriorStructure
from pyro_ext.curvature.coordinates import Coordinates
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
    where = Coordinates(target, target.layout.names if sites is None else sites)
    products = [_product(target, where, position, data) for position in z]

    def product(vector: np.ndarray) -> np.ndarray:
        given = torch.as_tensor(vector).to(z)
        return torch.stack([each(given) for each in products]).detach().cpu().numpy()

    return structure_of_prior(product, where.slices, form)


def _product(
    target: LogDensity, where: Coordinates, position: Tensor, data: Data
) -> Callable[[Tensor], Tensor]:
    """Products of minus the Hessian of the log prior at a position (D,) with vectors (D',)."""

    def log_prior(part: Tensor) -> Tensor:
        z = where.placed(position, part)
        if not target.local_sites:
            return target.evaluate(z, data, target.first_rows())[0]
        # The rows' own latents: each row has some.
        terms = [weight * target.evaluate(z, data, rows)[0] for weight, rows in target.sweep()]
        return torch.stack(terms).sum()

    # The Hessian is its own transpose; forward mode fails on some models in float32.
    pull = torch.func.vjp(torch.func.grad(log_prior), where.part(position))[1]

    def product(vector: Tensor) -> Tensor:
        result: Tensor = pull(vector)[0]
        return -result

    return product


def prior_curvature_of_one(
    target: LogDensity, structure: PriorStructure, position: Float[Tensor, " D"], data: Data
) -> Float[Tensor, "d ..."]:
    """Curvature of the log prior at one position (D,): its diagonal (D',), or (D', D'), as it is.

    Negative curvature is still in it. It is differentiable in all coordinates.
    """
    where = Coordinates(target, structure.sites)
    product = _product(target, where, position, data)
    ones = torch.ones(len(where), dtype=position.dtype, device=position.device)
    if structure.form == "hessian":
        return torch.func.vmap(product)(ones.diag())
    # A diagonal matrix times ones is its diagonal.
    if structure.exact:
        return product(ones)
    numbers = torch.arange(len(where), device=position.device)

    def ones_at(first: int, last: int) -> Tensor:
        return ((numbers >= first) & (numbers < last)).to(position.dtype)

    parts = []
    for name, place in where.slices.items():
        # Entries of such a site do not depend on each other, so that one product with its ones has
        # its diagonal.
        if name in structure.apart:
            parts.append(product(ones_at(place.start, place.stop))[place])
        else:
            each = range(place.start, place.stop)
            parts.append(torch.stack([product(ones_at(i, i + 1))[i] for i in each]))
    return torch.cat(parts)


def without_negative(found: Float[Tensor, "P d ..."]) -> Float[Tensor, "P d ..."]:
    """Diagonals (P, D') or matrices (P, D', D') with negative curvature set to zero."""
    if found.dim() == 2:
        return found.clamp_min(0.0)
    # The nearest positive semidefinite matrix; symmetric up to rounding before.
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
