"""Curvature of the log prior in some coordinates, given the others.

As :mod:`numpyro_ext.curvature.prior`, but of the coordinates that have a Gaussian alone: with the
scale of the weights' prior held, the prior of the weights may be diagonal where that of weights and
scale together is not. It is differentiable in all coordinates.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from numpyro_ext.curvature import Curvature, GaussNewton
from numpyro_ext.curvature.coordinates import Coordinates
from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.layout import Indices
from ppl_ext.curvature import DENSE_PRIOR_UP_TO
from ppl_ext.errors import ArgumentError


class ConditionalPrior:
    """What is found once about the log prior: where its curvature is diagonal.

    Parameters
    ----------
    target : LogDensity
    data : Data
        Concrete arguments of the model.
    coordinates : Coordinates
        D' in number.
    options : GaussNewton

    Attributes
    ----------
    form : {"diagonal", "hessian"}
        The curvature is the diagonal, or the matrix with negative eigenvalues set to 0.
    exact : bool
        Whether nothing but negative curvature is left out.

    Raises
    ------
    ArgumentError
        A matrix is asked for with a structure that is to do without matrices.
    """

    def __init__(
        self, target: LogDensity, data: Data, coordinates: Coordinates, options: GaussNewton
    ) -> None:
        if options.prior == "hessian" and options.structure != "full":
            raise ArgumentError(
                f'Expected prior="hessian" with curvature="full" alone, found curvature='
                f"{options.structure!r}: a matrix of all coordinates would undo the structure. Use "
                'prior="diagonal".'
            )
        self.target = target
        self.coordinates = coordinates
        dim = len(coordinates)
        # Anywhere will do: these positions show the structure, and are not started from.
        generator = np.random.default_rng(1)
        positions = jnp.asarray(generator.uniform(-1.0, 1.0, (2, target.dim)), target.dtype)
        drawn = generator.normal(size=dim).astype(positions.dtype)
        product = jax.jit(
            jax.vmap(lambda z, vector: self._product(z, data)(vector), (0, None)),
        )

        def is_diagonal(mask: np.ndarray) -> bool:
            """Whether H M v = (H M 1) * v on the mask, for a random v."""
            expected = np.asarray(product(positions, mask)) * drawn
            crossed = np.asarray(product(positions, drawn * mask))
            size = np.maximum(np.abs(expected), np.abs(crossed))
            near = np.abs(crossed - expected) <= 1e3 * np.finfo(drawn.dtype).eps * size
            return bool((near | (mask == 0.0)).all())

        def only(where: slice) -> np.ndarray:
            mask = np.zeros_like(drawn)
            mask[where] = 1.0
            return mask

        self.whole = is_diagonal(np.ones_like(drawn))
        self.apart = tuple(
            name
            for name, where in coordinates.slices.items()
            if self.whole or is_diagonal(only(where))
        )
        wants_matrix = not self.whole and options.structure == "full" and dim <= DENSE_PRIOR_UP_TO
        self.form = options.prior or ("hessian" if wants_matrix else "diagonal")
        self.exact = self.whole or self.form == "hessian"

    def _log_prior(self, position: Array, data: Data) -> Array:
        def part(indices: Indices) -> Array:
            return self.target.evaluate(position, data, indices)[0]

        if self.target.local_sites:
            # The rows' own latents: each row has some.
            total: Array = self.target.sum_over_rows(part)
            return total
        return part(self.target.first_rows())

    def _product(self, position: Array, data: Data) -> Callable[[Array], Array]:
        """Products of minus the Hessian in the coordinates, with vectors (D',)."""
        data, where = data.on_device(), self.coordinates

        def log_prior(part: Array) -> Array:
            return self._log_prior(where.placed(position, part), data)

        def product(vector: Array) -> Array:
            return -jax.jvp(jax.grad(log_prior), (where.part(position),), (vector,))[1]

        return product

    def at(self, position: Array, data: Data) -> Curvature:
        """The curvature at a position (D,), of one position."""
        product = self._product(position, data)
        dim, dtype = len(self.coordinates), position.dtype
        if self.form == "hessian":
            matrix = without_negative(jax.vmap(product)(jnp.eye(dim, dtype=dtype)))
            return Curvature(jnp.zeros((1, dim), dtype), matrix[None])
        if self.whole:
            return Curvature(jnp.maximum(product(jnp.ones(dim, dtype)), 0.0)[None])
        diagonal = jnp.zeros(dim, dtype)
        for name, where in self.coordinates.slices.items():
            if name in self.apart:
                found = product(jnp.zeros(dim, dtype).at[where].set(1.0))[where]
            else:
                basis = jnp.eye(where.stop - where.start, dim, where.start, dtype)
                found = lax.map(lambda vector: product(vector) @ vector, basis)
            diagonal = diagonal.at[where].set(found)
        return Curvature(jnp.maximum(diagonal, 0.0)[None])


def without_negative(matrix: Array) -> Array:
    """A symmetric matrix (D, D) with negative eigenvalues set to 0, and its derivative."""
    matrix = 0.5 * (matrix + matrix.T)
    held = lax.stop_gradient(matrix)
    values, vectors = jnp.linalg.eigh(held)
    kept = jnp.maximum(values, 0.0)
    # Divided differences of max(x, 0): the derivative of a function of a matrix, which has no
    # difference of eigenvalues in a denominator unless one of them is cut.
    gaps = values[:, None] - values
    rise = (values > 0.0).astype(matrix.dtype)
    crossing = rise[:, None] != rise
    slopes = jnp.where(
        crossing, (kept[:, None] - kept) / jnp.where(crossing, gaps, 1.0), rise[:, None]
    )
    change = vectors.T @ (matrix - held) @ vectors
    return vectors @ (jnp.diag(kept) + slopes * change) @ vectors.T
