"""Curvature of the log prior by JAX; see :mod:`ppl_ext.laplace.prior`."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from numpyro_ext.curvature import Curvature
from numpyro_ext.density import Data
from numpyro_ext.density.layout import Indices
from numpyro_ext.laplace.gaussian import Algebra
from numpyro_ext.programs import Program
from ppl_ext.laplace.prior import PriorShell

without_negative = Algebra.without_negative


class ConditionalPrior(PriorShell):
    def _products(self, positions: np.ndarray, data: Data) -> Callable[[np.ndarray], np.ndarray]:
        given = jax.device_put(positions.astype(self.target.dtype))

        def products(positions: Array, data: Data, vector: Array) -> Array:
            return jax.vmap(lambda z: self._product(z, data)(vector))(positions)

        program = Program(products, rarely=True)
        return lambda vector: np.asarray(program(given, data, vector.astype(given.dtype)))

    def _log_prior(self, position: Array, data: Data) -> Array:
        def part(indices: Indices) -> Array:
            return self.target.evaluate(position, data, indices)[0]

        if self.target.local_sites:
            # The rows' own latents: each row has some.
            return self.target.sum_over_rows(part)
        return part(self.target.first_rows())

    def _product(self, position: Array, data: Data) -> Callable[[Array], Array]:
        """Products of minus the Hessian in the coordinates, with vectors (D',)."""
        data, where = data.on_device(), self.coordinates

        def log_prior(part: Array) -> Array:
            return self._log_prior(where.placed(position, part), data)

        def product(vector: Array) -> Array:
            return -jax.jvp(jax.grad(log_prior), (where.part(position),), (vector,))[1]

        return product

    def at(self, position: Float[Array, " D"], data: Data) -> Curvature:
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
