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

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from numpyro_ext.curvature.coordinates import Coordinates
from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.layout import Indices
from numpyro_ext.programs import Program
from ppl_ext.curvature.prior import structure_of_prior
from ppl_ext.curvature.program_curvature import PriorForm, PriorStructure


def prior_structure(
    target: LogDensity,
    z: Float[Array, "P D"],
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

    def products(z: Array, data: Data, vector: Array) -> Array:
        return jax.vmap(lambda position: _product(target, where, position, data)(vector))(z)

    program = Program(products, rarely=True)

    def product(vector: np.ndarray) -> np.ndarray:
        return np.asarray(program(z, data, vector.astype(z.dtype)))

    return structure_of_prior(product, where.slices, form)


def _product(
    target: LogDensity, where: Coordinates, position: Array, data: Data
) -> Callable[[Array], Array]:
    """Products of minus the Hessian of the log prior at a position (D,) with vectors (D',)."""
    data = data.on_device()

    def log_prior(part: Array) -> Array:
        def at_rows(rows: Indices) -> Array:
            return target.evaluate(where.placed(position, part), data, rows)[0]

        # The rows' own latents: each row has some.
        return target.sum_over_rows(at_rows) if target.local_sites else at_rows(target.first_rows())

    def product(vector: Array) -> Array:
        return -jax.jvp(jax.grad(log_prior), (where.part(position),), (vector,))[1]

    return product


def prior_curvature_of_one(
    target: LogDensity, structure: PriorStructure, position: Float[Array, " D"], data: Data
) -> Float[Array, "d ..."]:
    """Curvature of the log prior at one position (D,): its diagonal (D',), or (D', D'), as it is.

    Negative curvature is still in it. It is differentiable in all coordinates.
    """
    where = Coordinates(target, structure.sites)
    product, dim, dtype = _product(target, where, position, data), len(where), position.dtype
    if structure.form == "hessian":
        return jax.vmap(product)(jnp.eye(dim, dtype=dtype))
    # A diagonal matrix times ones is its diagonal.
    if structure.exact:
        return product(jnp.ones(dim, dtype))
    parts = []
    for name, place in where.slices.items():
        # Entries of such a site do not depend on each other, so that one product with its ones has
        # its diagonal.
        if name in structure.apart:
            parts.append(product(jnp.zeros(dim, dtype).at[place].set(1.0))[place])
        else:
            basis = jnp.eye(place.stop - place.start, dim, place.start, dtype)
            parts.append(jax.lax.map(lambda vector: product(vector) @ vector, basis))
    return jnp.concatenate(parts)


def prior_curvature(
    target: LogDensity, structure: PriorStructure, z: Float[Array, "P D"], data: Data
) -> Float[Array, " ..."]:
    """Curvature of the log prior at positions z (P, D): its diagonal (P, D'), or (P, D', D').

    A constant one has shape (1, D').
    """
    if structure.constant:
        z = z[:1]
    found = jax.vmap(lambda position: prior_curvature_of_one(target, structure, position, data))(z)
    if structure.form == "diagonal":
        return jnp.maximum(found, 0.0)
    # The nearest positive semidefinite matrix; symmetric up to rounding before.
    values, vectors = jnp.linalg.eigh(0.5 * (found + found.mT))
    return (vectors * jnp.maximum(values, 0.0)[:, None]) @ vectors.mT
