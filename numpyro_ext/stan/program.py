"""A Stan program as a NumPyro program.

The program has one latent site, Stan's unconstrained vector, with a flat prior, and one factor,
Stan's log density, whose gradient is Stan's own. The density and the parameters are callbacks
of JAX, which can be jitted, vectorized and differentiated as any other function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Float
from numpy.typing import ArrayLike

from ppl_ext.stan.density import StanDensity
from ppl_ext.stan.program import NO_THIRD, StanProgramShell


class StanProgram(StanProgramShell[Array]):
    host, arrays = numpyro, jnp

    def __init__(self, density: StanDensity) -> None:
        super().__init__(density)
        self._log_density = _differentiable(density)

    def log_density(self, z: ArrayLike) -> Float[Array, "*P"]:
        return self._log_density(jnp.asarray(z))

    def constrain(self, z: ArrayLike) -> dict[str, Array]:
        # A callback has no derivative, and what is recorded of a run needs none.
        return super().constrain(jax.lax.stop_gradient(jnp.asarray(z)))

    def _constrained(self, z: Array) -> Any:
        shape = (*jnp.shape(z)[:-1], self.density.num_constrained)
        return _callback(self.density.constrain, (z,), shape)

    def unconstrain(self, values: Mapping[str, ArrayLike]) -> Float[Array, " D"]:
        """Position (D,) of values of the program's parameters."""
        return jnp.asarray(self.density.unconstrain(values))


model = StanProgram.model


def _callback(
    function: Callable[..., Any], arrays: tuple[Array, ...], *shapes: tuple[int, ...]
) -> Any:
    """Call a function of NumPy arrays, for all rows at once where it is vectorized."""
    dtype = arrays[0].dtype

    def call(*arrays: Any) -> Any:
        # Stan computes in double precision. A callback has to return the type that was announced.
        found = function(*(np.asarray(array) for array in arrays))
        if isinstance(found, tuple):
            return tuple(part.astype(dtype) for part in found)
        return found.astype(dtype)

    described = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)
    result = described if len(described) > 1 else described[0]
    return jax.pure_callback(call, result, *arrays, vmap_method="broadcast_all")


def _differentiable(density: StanDensity) -> Callable[[Array], Array]:
    """The log density (...) of positions (..., D), differentiable twice."""

    @jax.custom_jvp
    def both(z: Array) -> tuple[Array, Array]:
        value, gradient = _callback(density.value_and_gradient, (z,), z.shape[:-1], z.shape)
        return value, gradient

    @both.defjvp
    def both_jvp(primals: Any, tangents: Any) -> Any:
        (z,), (tangent,) = primals, tangents
        value, gradient = both(z)
        product = _product.bind(z, tangent, density=density)
        return (value, gradient), ((gradient * tangent).sum(-1), product)

    @jax.custom_jvp
    def log_density(z: Array) -> Array:
        return _callback(density.value, (z,), z.shape[:-1])

    # Value and gradient come from one call, and second derivatives are looked for only where the
    # gradient itself is differentiated.
    @log_density.defjvp
    def log_density_jvp(primals: Any, tangents: Any) -> Any:
        (z,), (tangent,) = primals, tangents
        value, gradient = both(z)
        return value, (gradient * tangent).sum(-1)

    return log_density


# -- second derivatives times a vector ---------------------------------------------------------
#
# A callback is not known to be linear in the vector, and so cannot be differentiated in reverse.
# As a primitive it says that it is, and that the matrix is symmetric.

_product = Primitive("stan_hessian_product")


@_product.def_impl
def _evaluated(z: Array, vector: Array, *, density: StanDensity) -> Array:
    return _callback(density.hessian_product, (z, vector), z.shape)


@_product.def_abstract_eval
def _described(z: Any, vector: Any, *, density: StanDensity) -> Any:
    return jax.core.ShapedArray(vector.shape, vector.dtype)


def _batched(
    arrays: tuple[Array, Array], axes: tuple[int | None, int | None], *, density: StanDensity
) -> tuple[Array, int]:
    (size,) = {
        array.shape[axis] for array, axis in zip(arrays, axes, strict=True) if axis is not None
    }
    lead = (
        jnp.broadcast_to(array, (size, *array.shape))
        if axis is None
        else jnp.moveaxis(array, axis, 0)
        for array, axis in zip(arrays, axes, strict=True)
    )
    return _product.bind(*lead, density=density), 0


def _product_along(tangent: Array, z: Array, vector: Array, *, density: StanDensity) -> Any:
    return _product.bind(z, tangent, density=density)


def _transposed(cotangent: Array, z: Array, vector: Any, *, density: StanDensity) -> Any:
    return None, _product.bind(z, cotangent, density=density)


def _no_third_derivative(tangent: Array, z: Array, vector: Array, *, density: StanDensity) -> Any:
    raise NotImplementedError(NO_THIRD)


mlir.register_lowering(_product, mlir.lower_fun(_evaluated, multiple_results=False))
batching.primitive_batchers[_product] = _batched
ad.defjvp(_product, _no_third_derivative, _product_along)
ad.primitive_transposes[_product] = _transposed
