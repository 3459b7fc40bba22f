"""What the formulas of :mod:`ppl_ext.kernels` need of JAX beyond what all arrays share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float, Int

from ppl_ext.kernels.arrays import KernelArrays


class KernelJaxArrays(KernelArrays):
    package, functions = "numpyro_ext", jnp

    def as_array(self, value: Any, like: Array) -> Float[Array, " ..."]:
        return jnp.asarray(value, like.dtype)

    def identity(self, size: int, like: Array) -> Float[Array, "size size"]:
        return jnp.eye(size, dtype=like.dtype)

    def inverse_root(self, values: Float[Array, " ..."]) -> Float[Array, " ..."]:
        return lax.rsqrt(values)

    def product(self, left: Float[Array, "m k"], right: Float[Array, "k n"]) -> Float[Array, "m n"]:
        # Accelerators multiply in reduced precision unless told otherwise, which the
        # cancellation in squared distances does not forgive.
        return jnp.matmul(left, right, precision="highest")

    def cholesky(self, matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
        return jnp.linalg.cholesky(matrix)

    def solve_lower(
        self, factor: Float[Array, "n n"], right: Float[Array, "n m"]
    ) -> Float[Array, "n m"]:
        return solve_triangular(factor, right, lower=True)

    def value_of(
        self, metric: Callable[[Array], Array], particles: Float[Array, "P D"]
    ) -> Float[Array, " ..."]:
        return metric(particles)

    def squared_distances(
        self, centred: Float[Array, "P D"], products: Float[Array, "P P"] | None = None
    ) -> Float[Array, "P P"]:
        if products is None:
            products = self.product(centred, centred.T)
        norms = jnp.diagonal(products)
        totals = norms[:, None] + norms
        squared = totals - 2.0 * products
        # What is left of equal particles after the cancellation is rounding, no distance.
        rounding = 8.0 * jnp.finfo(centred.dtype).eps
        return jnp.where(squared <= rounding * totals, 0.0, squared)

    def of_pairs(self, matrix: Float[Array, "P P"]) -> Float[Array, " pairs"]:
        rows, columns = np.triu_indices(len(matrix), k=1)
        return matrix.reshape(-1)[rows * len(matrix) + columns]

    def order_statistics(
        self, values: Float[Array, " n"], ranks: tuple[int | None, int | None]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        lower_rank, upper_rank = ranks
        if lower_rank is None:
            lower = jnp.zeros((), values.dtype)
        else:
            lower = order_statistic(values, lower_rank)
        if upper_rank == lower_rank:
            return lower, lower
        if lower_rank is None or upper_rank is None:
            return lower, values.min()
        # The next value in order is the same number where that occurs more than once.
        ties = jnp.sum(values <= lower) > upper_rank
        return lower, jnp.where(ties, lower, jnp.min(jnp.where(values > lower, values, jnp.inf)))

    def by_coordinate(
        self, function: Callable[[Array], Array], points: Float[Array, "P D"]
    ) -> Float[Array, " D"]:
        return lax.map(function, points.T)


def order_statistic(values: Float[Array, " n"], rank: int | Int[Array, ""]) -> Float[Array, ""]:
    """Value of the given rank (from 0, ascending) among non-negative floats, exactly.

    Bisection on the values' bit patterns, which are ordered as the floats themselves are: one
    counting pass for each bit. XLA's sort is more than ten times as slow on a CPU.
    """
    integer = _INTEGERS[values.dtype.itemsize]
    # Adding zero turns -0.0, whose bit pattern is the smallest of all, into 0.0.
    bits = lax.bitcast_convert_type(values + 0.0, integer)

    def narrower(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        enough = jnp.sum(bits <= middle) > rank
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    # From all patterns without a sign; bounds taken from the values would save a few passes but
    # nearly double the time to compile.
    bounds = jnp.asarray(0, integer), jnp.asarray(jnp.iinfo(integer).max, integer)
    low, _ = lax.fori_loop(0, jnp.iinfo(integer).bits - 1, narrower, bounds)
    return lax.bitcast_convert_type(low, values.dtype)


_INTEGERS = {2: jnp.int16, 4: jnp.int32, 8: jnp.int64}

ARRAYS = KernelJaxArrays()
