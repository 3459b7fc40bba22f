"""The generalised Gauss-Newton matrix of a program's likelihood, from whitened outputs.

The outputs of a program are the parameters of its observed distributions as functions of the flat
position z. Composed with the root of their Fisher information at z they are whitened: the map w
with G = J_w^T J_w / temperature, J_w the Jacobian of w at z, is the Gauss-Newton matrix, scaled
as the log likelihood is (plates, masks, ``handlers.scale``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from numpyro_ext.curvature.fisher import fisher_root
from numpyro_ext.target import Data, LogDensity
from numpyro_ext.target.layout import Indices
from numpyro_ext.target.outputs import Output


def whitened_outputs(
    target: LogDensity,
    z: Array,
    data: Data,
    indices: Indices,
    rng_key: Array,
    sites: Collection[str] | None = None,
) -> Callable[[Array], Array]:
    """The map w of a position (D,) to whitened outputs (R,), whitened at ``z`` (D,).

    ``rng_key`` serves distributions without a registered Fisher information. With ``sites`` only
    these observed sites count.
    """
    point = lax.stop_gradient(target.outputs(z, data, indices))
    names = [name for name in point if sites is None or name in sites]
    keys = random.split(rng_key, max(1, len(names)))

    def whitened(position: Array) -> Array:
        outputs = target.outputs(position, data, indices)
        parts = [
            _whitened(point[name], outputs[name], target.likelihood_temperature, key)
            for name, key in zip(names, keys, strict=False)
        ]
        return jnp.concatenate(parts) if parts else jnp.zeros(0, target.dtype)

    return whitened


def _whitened(point: Output, output: Output, temperature: float, rng_key: Array) -> Array:
    # The root is linear in the changes, so that of the parameters themselves has the Jacobian
    # that is wanted; parameters that are whole numbers do not change.
    changes = {
        name: value if jnp.issubdtype(value.dtype, jnp.floating) else jnp.zeros(value.shape)
        for name, value in output.parameters.items()
    }
    root = fisher_root(point, changes, rng_key)
    factor = jnp.sqrt(point.weight / temperature)
    return (root * factor.reshape(factor.shape + (1,) * (root.ndim - factor.ndim))).reshape(-1)


def row_sites(target: LogDensity, z: Array, data: Data, indices: Indices) -> frozenset[str]:
    """Observed sites whose rows can be differentiated one by one.

    These are the sites for which the parameters of a batch, at a position ``z`` (D,), are those of
    its rows alone, side by side. Sites outside the plate are none, nor those whose rows depend on
    each other, as through a mean over the batch. Look once, before compiling: values are compared.
    """
    if len(indices) != 1:
        return frozenset()
    data = data.on_device()
    ((plate, numbers),) = indices.items()
    outputs = jax.jit(target.outputs)
    together = outputs(z, data, indices)
    alone = [outputs(z, data, {plate: number[None]}) for number in numbers]
    return frozenset(
        name
        for name, output in together.items()
        if plate in output.plates and _is_side_by_side(output, [single[name] for single in alone])
    )


def _is_side_by_side(together: Output, alone: list[Output]) -> bool:
    """Whether the parameters of single rows, along one axis, are those of the batch."""
    wanted, shape = together.batch, alone[0].batch
    if len(shape) != len(wanted):
        return False
    axes = [axis for axis, (one, all_) in enumerate(zip(shape, wanted, strict=True)) if one != all_]
    if len(alone) == 1:
        return not axes
    if len(axes) != 1 or shape[axes[0]] != 1 or wanted[axes[0]] != len(alone):
        return False
    joined = {
        name: jnp.concatenate([single.parameters[name] for single in alone], axes[0])
        for name in together.parameters
    }
    tolerance = 1e3 * float(jnp.finfo(jnp.result_type(float)).eps)
    return all(
        joined[name].shape == value.shape
        and bool(jnp.allclose(joined[name], value, rtol=tolerance, atol=tolerance))
        for name, value in together.parameters.items()
    )


def jacobian_rows(
    target: LogDensity,
    z: Array,
    data: Data,
    indices: Indices,
    rng_key: Array,
    by_row: Collection[str] = frozenset(),
    coordinates: np.ndarray | None = None,
) -> Array:
    """Jacobians J_w at positions z (P, D), shape (P, R, D): G = J_w^T J_w for each position.

    With ``coordinates``, D' numbers of columns, only these are computed, shape (P, R, D').

    Observed sites in ``by_row``, by :func:`row_sites`, are differentiated row by row, at the cost
    of one gradient for each whitened output; for others the cheaper of R reverse and D forward
    derivatives of the whole batch is taken.
    """
    data = data.on_device()
    found = jax.eval_shape(target.outputs, z[0], data, indices)
    whole = set(found) - set(by_row)

    def rows(position: Array, key: Array) -> Array:
        # Derivatives by a part of the position alone: what does not depend on it costs nothing.
        part = position if coordinates is None else position[coordinates]

        def placed(values: Array) -> Array:
            return values if coordinates is None else position.at[coordinates].set(values)

        parts = []
        if by_row:
            parts.append(_row_by_row(target, position, part, placed, data, indices, key, by_row))
        if whole or not found:
            whitened = whitened_outputs(target, position, data, indices, key, whole)
            size = jax.eval_shape(whitened, position).shape[0]
            derivative = jax.jacrev if size < part.shape[0] else jax.jacfwd
            parts.append(derivative(lambda values: whitened(placed(values)))(part))
        return jnp.concatenate(parts)

    return jax.vmap(rows)(z, random.split(rng_key, len(z)))


def _row_by_row(
    target: LogDensity,
    position: Array,
    part: Array,
    placed: Callable[[Array], Array],
    data: Data,
    indices: Indices,
    rng_key: Array,
    sites: Collection[str],
) -> Array:
    ((plate, numbers),) = indices.items()

    def row(number: Array, key: Array) -> Array:
        whitened = whitened_outputs(target, position, data, {plate: number[None]}, key, sites)
        # A row alone is scaled up as if it stood for all, and here it is one of several.
        derivative = jax.jacrev(lambda values: whitened(placed(values)))(part)
        return derivative / math.sqrt(len(numbers))

    jacobians = jax.vmap(row)(numbers, random.split(rng_key, len(numbers)))
    return jacobians.reshape(-1, part.shape[0])


def gauss_newton_products(
    target: LogDensity, z: Array, data: Data, indices: Indices, rng_key: Array
) -> Callable[[Array], Array]:
    """Products v -> G v at positions z (P, D), for v (P, D); no Jacobian is formed."""
    data = data.on_device()
    keys = random.split(rng_key, len(z))

    def product(position: Array, vector: Array, key: Array) -> Array:
        whitened = whitened_outputs(target, position, data, indices, key)
        change = jax.jvp(whitened, (position,), (vector,))[1]
        (result,) = jax.vjp(whitened, position)[1](change)
        return result

    return lambda vectors: jax.vmap(product)(z, vectors, keys)
