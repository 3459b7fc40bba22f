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

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.programs import Program
from ppl_ext.curvature.program_curvature import DENSE_PRIOR_UP_TO, PriorForm, PriorStructure


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
    slices = {n: s for n, s in target.layout.slices.items() if sites is None or n in sites}
    # Of each coordinate, the number of its site; one more stands for all of them.
    site_of = np.full(target.dim, -1)
    for number, where in enumerate(slices.values()):
        site_of[where] = number
    # Not signs: in two dimensions every second pair of these would be a multiple of ones.
    drawn = np.random.default_rng(0).normal(size=target.dim).astype(z.dtype)
    tolerance = 1e3 * float(np.finfo(z.dtype).eps)

    def look(z: Array, data: Data, site_of: Array, drawn: Array) -> tuple[Array, Array]:
        product = _products(target, data)

        def within(number: Array) -> tuple[Array, Array]:
            """Whether H M v = (H M 1) * v on the mask M of a site, for a random v, and H M 1
            is the same at all positions."""
            chosen = jnp.where(number == len(slices), site_of >= 0, site_of == number)
            mask = chosen.astype(z.dtype)
            vectors = jnp.stack([mask, drawn * mask])
            diagonal, crossed = jax.vmap(lambda v: jax.vmap(lambda at: product(at, v))(z))(vectors)
            expected = diagonal * drawn
            size = jnp.maximum(jnp.abs(expected), jnp.abs(crossed))
            # By coordinate: one narrow prior must not hide the couplings of the others.
            near = jnp.abs(crossed - expected) <= tolerance * size
            same = (diagonal == diagonal[0]) | ~chosen
            return (near | ~chosen).all(), same.all()

        return jax.lax.map(within, jnp.arange(len(slices) + 1))

    program = Program(look, rarely=True)
    diagonal, same = map(np.asarray, program(z, data.on_device(), site_of, drawn))
    apart, whole = diagonal[:-1], bool(diagonal.all())
    constant = bool(whole and len(z) > 1 and same[-1])
    if form is None:
        size = int((site_of >= 0).sum())
        form = "hessian" if not whole and size <= DENSE_PRIOR_UP_TO else "diagonal"
    exact = whole or form == "hessian"
    names = tuple(name for name, alone in zip(slices, apart, strict=True) if alone)
    return PriorStructure(tuple(slices), form, exact, names, constant and form == "diagonal")


def _products(target: LogDensity, data: Data) -> Callable[[Array, Array], Array]:
    """Products of minus the Hessian of the log prior at a position (D,) with a vector (D,)."""
    data = data.on_device()
    # The prior does not depend on which rows are seen.
    indices = target.first_rows()

    def log_prior(position: Array) -> Array:
        return target.evaluate(position, data, indices)[0]

    def product(position: Array, vector: Array) -> Array:
        return -jax.jvp(jax.grad(log_prior), (position,), (vector,))[1]

    return product


def prior_curvature(
    target: LogDensity, structure: PriorStructure, z: Float[Array, "P D"], data: Data
) -> Float[Array, " ..."]:
    """Curvature of the log prior at positions z (P, D): its diagonal (P, D'), or (P, D', D').

    A constant one has shape (1, D').
    """
    product = _products(target, data)
    size, dtype = target.dim, z.dtype
    slices = [target.layout.slices[name] for name in structure.sites]

    def inside(vector: Array) -> Array:
        return jnp.concatenate([vector[where] for where in slices])

    def ones_at(where: slice) -> Array:
        return jnp.zeros(size, dtype).at[where].set(1.0)

    def hessian(position: Array) -> Array:
        basis = jnp.concatenate([jnp.eye(size, dtype=dtype)[where] for where in slices])
        matrix = jax.vmap(lambda vector: inside(product(position, vector)))(basis)
        values, vectors = jnp.linalg.eigh(0.5 * (matrix + matrix.T))
        return (vectors * jnp.maximum(values, 0.0)) @ vectors.T

    def diagonal(position: Array) -> Array:
        if structure.exact:
            everything = sum((ones_at(where) for where in slices), jnp.zeros(size, dtype))
            return jnp.maximum(inside(product(position, everything)), 0.0)
        parts = []
        for name, where in zip(structure.sites, slices, strict=True):
            if name in structure.apart:
                parts.append(product(position, ones_at(where))[where])
                continue
            basis = jnp.eye(where.stop - where.start, size, where.start, dtype)
            parts.append(jax.lax.map(lambda vector: product(position, vector) @ vector, basis))
        return jnp.maximum(jnp.concatenate(parts), 0.0)

    if structure.constant:
        z = z[:1]
    return jax.vmap(hessian if structure.form == "hessian" else diagonal)(z)
