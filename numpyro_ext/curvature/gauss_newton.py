"""The generalised Gauss-Newton matrix of a program's likelihood, from whitened outputs.

The outputs of a program are the parameters of its observed distributions as functions of the flat
position z. Composed with the root of their Fisher information at z they are whitened: the map w
with G = J_w^T J_w / temperature, J_w the Jacobian of w at z, is the Gauss-Newton matrix, scaled
as the log likelihood is (plates, masks, ``handlers.scale``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jaxtyping import Float

from numpyro_ext.curvature.coordinates import Coordinates
from numpyro_ext.curvature.fisher import fisher_root, whitened_parts
from numpyro_ext.curvature.row_structure import rows_of, with_row
from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.layout import Indices
from ppl_ext.curvature import program_curvature as shared

#: Values of latent sites, or rows of their coordinates, by name.
BySite = dict[str, Array]


def whitened_outputs(
    target: LogDensity,
    z: Float[Array, " D"],
    data: Data,
    indices: Indices,
    rng_key: Array,
    sites: Collection[str] | None = None,
    repeated: Mapping[str, tuple[shared.RepeatedComponent, ...]] = MappingProxyType({}),
    merge: bool = True,
) -> Callable[[Float[Array, " D"]], Float[Array, " R"]]:
    """The map w of a position (D,) to whitened outputs (R,), whitened at ``z`` (D,).

    The whitening is differentiable in ``z``. ``rng_key`` serves distributions without a registered
    Fisher information. With ``sites`` only these observed sites count. Components in ``repeated``
    are merged, of all sites, or left out.
    """
    point = target.outputs(z, data, indices)
    names = [name for name in point if sites is None or name in sites]
    pairs = zip(point.items(), random.split(rng_key, max(1, len(point))), strict=False)
    roots = {name: partial(fisher_root, each, rng_key=key) for (name, each), key in pairs}

    def whitened(position: Array) -> Array:
        outputs = target.outputs(position, data, indices)
        temperature = target.likelihood_temperature
        parts = whitened_parts(point, outputs, names, temperature, roots, repeated, merge)
        return jnp.concatenate(parts) if parts else jnp.zeros(0, target.dtype)

    return whitened


def jacobian_rows(
    target: LogDensity,
    z: Float[Array, "P D"],
    data: Data,
    indices: Indices,
    rng_key: Array,
    structure: shared.RowStructure = shared.NO_STRUCTURE,
    latents: Collection[str] | None = None,
) -> Float[Array, "P R D"]:
    """Jacobians J_w at positions z (P, D), shape (P, R, D): G = J_w^T J_w for each position.

    With ``latents``, names of latent sites, only the columns of these are computed, in the order of
    the layout.

    Observed sites in ``structure.by_row``, by :func:`row_structure`, are differentiated row by
    row, at the cost of one gradient for each whitened output; for others the cheaper of R reverse
    and D forward derivatives of the whole batch is taken.
    """
    data = data.on_device()
    outputs = jax.eval_shape(target.outputs, z[0], data, indices)
    structure = structure.for_rows([len(r) for r in rows_of(data, structure.arguments)])
    whole = set(outputs) - structure.by_row

    where = Coordinates(target, target.layout.names if latents is None else latents)

    def rows(position: Array, key: Array) -> list[BySite]:
        # By site: rows are then written to their places once, and a site's are there without
        # those of the others.
        parts, placed = where.parts(position), partial(where.placed, position)
        found = []
        if structure.by_row:
            found.append(
                _row_by_row(target, position, parts, placed, data, indices, key, structure)
            )
        if whole or structure.repeated or not outputs:
            whitened = whitened_outputs(
                target, position, data, indices, key, whole, structure.repeated
            )
            found.append(_jacobian(lambda values: whitened(placed(values)), parts))
        return found

    def of_all() -> BySite:
        """Rows (P, R, ...) of each site in its shape."""
        pieces = jax.vmap(rows)(z, random.split(rng_key, len(z)))
        # In their own shapes first, which leaves one array to be put together of the sites.
        return {
            name: jnp.concatenate([p[name].reshape(*p[name].shape[:2], *shape) for p in pieces], 1)
            for name, shape in shapes.items()
        }

    shapes = {name: target.layout.shapes[name] for name in where.slices}
    found = _apart(of_all, z) if shared.factored_sides(where.slices, shapes) else of_all()
    flat = [found[name].reshape(*found[name].shape[:2], math.prod(shapes[name])) for name in shapes]
    return jnp.concatenate(flat, axis=-1)


def _apart(rows: Callable[[], BySite], z: Array) -> BySite:
    """Rows by site at positions ``z``, which XLA does not fuse with what is computed from them.

    On processors XLA would compute the outer products of a linear layer entry by entry of the flat
    vector that they are written to, with divisions to find the place of each, which takes four
    times as long. It does not fuse the result of a ``cond`` whose condition is not known when it
    compiles. The condition here is that some entry of ``z`` is finite.
    """
    if jax.default_backend() != "cpu":
        return rows()

    def unknown() -> BySite:
        return {
            name: jnp.full(found.shape, jnp.nan, found.dtype)
            for name, found in jax.eval_shape(rows).items()
        }

    return lax.cond(jnp.isfinite(z).any(), rows, unknown)


def _jacobian(function: Callable[[BySite], Array], parts: BySite) -> BySite:
    """Jacobian (R, D') by site, by the cheaper of R reverse and D' forward derivatives."""
    rows: int = jax.eval_shape(function, parts).shape[0]
    reverse = rows < sum(len(part) for part in parts.values())
    return (jax.jacrev if reverse else jax.jacfwd)(function)(parts)


def _row_by_row(
    target: LogDensity,
    position: Array,
    parts: BySite,
    placed: Callable[[BySite], Array],
    data: Data,
    indices: Indices,
    rng_key: Array,
    structure: shared.RowStructure,
) -> BySite:
    def rows_at(number: Any) -> tuple[Data, Indices]:
        if structure.arguments:
            return with_row(data, structure.arguments, number), {}
        return data, {plate: number[None]}

    if structure.arguments:
        numbers: Any = rows_of(data, structure.arguments)
    else:
        ((plate, numbers),) = indices.items()
    count = len(jax.tree.leaves(numbers)[0])
    # A row alone is scaled up as if it were the whole batch: N in place of N / count.
    share = 1.0 / math.sqrt(count) if structure.scaled_up else 1.0

    def row(number: Any, key: Array) -> BySite:
        whitened = whitened_outputs(
            target,
            position,
            *rows_at(number),
            key,
            structure.by_row,
            structure.repeated,
            merge=False,
        )
        return _jacobian(lambda values: share * whitened(placed(values)), parts)

    jacobians = jax.vmap(row)(numbers, random.split(rng_key, count))
    return {name: found.reshape(-1, found.shape[-1]) for name, found in jacobians.items()}


def gauss_newton_products(
    target: LogDensity, z: Float[Array, "P D"], data: Data, indices: Indices, rng_key: Array
) -> Callable[[Float[Array, "P D"]], Float[Array, "P D"]]:
    """Products v -> G v at positions z (P, D), for v (P, D); no Jacobian is formed."""
    data = data.on_device()
    keys = random.split(rng_key, len(z))

    def product(position: Array, vector: Array, key: Array) -> Array:
        whitened = whitened_outputs(target, position, data, indices, key)
        change = jax.jvp(whitened, (position,), (vector,))[1]
        (result,) = jax.vjp(whitened, position)[1](change)
        return result

    return lambda vectors: jax.vmap(product)(z, vectors, keys)
