"""What is found once about the rows of a program's whitened Jacobian, before compiling.

Two things make them cheap. Rows of a minibatch that do not depend on each other are differentiated
one by one. And where a parameter of an observed distribution is the same for all of a batch, as a
noise scale is, the rows that belong to it are multiples of one: they are merged into one row r with
the same r' r.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Float

from numpyro_ext.curvature.fisher import fisher_root, root_for
from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.layout import Indices
from numpyro_ext.density.outputs import Output
from numpyro_ext.programs import Program
from ppl_ext.curvature import RepeatedComponent, RowStructure


def row_structure(
    target: LogDensity, z: Float[Array, " D"], data: Data, indices: Indices
) -> RowStructure:
    """The structure of a batch's rows. Look once, before compiling: values are compared.

    A site's rows can be differentiated one by one if the parameters of the batch, at a position
    ``z`` (D,), are those of its rows alone, side by side. Sites outside the plate are none, nor
    those whose rows depend on each other, as through a mean over the batch.
    """
    # One row shows nothing of others, which a sweep over all rows has beside it.
    indices = {
        plate: jax.device_put(np.arange(2)) if len(rows) == 1 < target.plates[plate].size else rows
        for plate, rows in indices.items()
    }

    def look(z: Array, data: Data, indices: Indices) -> tuple[Any, Any, Any]:
        together = target.outputs(z, data, indices)
        depends = {name: _dependences(output) for name, output in together.items()}
        alone = None
        if len(indices) == 1:
            ((plate, numbers),) = indices.items()
            alone = jax.vmap(lambda number: target.outputs(z, data, {plate: number[None]}))(numbers)
        return together, alone, depends

    program = Program(look, rarely=True)
    together, alone, depends = program(z, data.on_device(), indices)
    repeated = {name: _repeated(output, depends[name]) for name, output in together.items()}
    found = {name: components for name, components in repeated.items() if components}
    if alone is None:
        return RowStructure(repeated=found)
    (plate,) = indices
    by_row = frozenset(
        name
        for name, output in together.items()
        if plate in output.plates and _is_side_by_side(output, alone[name])
    )
    return RowStructure(by_row, found)


def _dependences(output: Output) -> dict[str, Array]:
    """For each parameter, the components of the Fisher root that depend on it.

    None where no parameter is the same along an axis, or where the root is made of draws.
    """
    floating = _floating(output)
    if root_for(output.distribution) is None or not any(
        name in floating for name, _ in output.repeated
    ):
        return {}
    generator = np.random.default_rng(0)
    nothing = {name: jnp.zeros(value.shape) for name, value in output.parameters.items()}
    found = {}
    for name in floating:
        change = jnp.asarray(generator.normal(size=nothing[name].shape), nothing[name].dtype)
        root = fisher_root(output, {**nothing, name: change}, random.PRNGKey(0))
        found[name] = (root != 0.0).reshape(-1, root.shape[-1]).any(axis=0)
    return found


def _floating(output: Output) -> list[str]:
    """Names of the parameters that are not whole numbers."""
    return [
        name
        for name, value in output.parameters.items()
        if jnp.issubdtype(value.dtype, jnp.floating)
    ]


def _repeated(output: Output, depends: Mapping[str, Array]) -> tuple[RepeatedComponent, ...]:
    axes = dict(output.repeated)
    seen = {name: np.asarray(components) for name, components in depends.items()}
    found = []
    for component in range(max(map(len, seen.values()), default=0)):
        names = [name for name in seen if seen[name][component]]
        # Parameters that are vectors or matrices mix their own elements.
        if len(names) == 1 and names[0] in axes:
            if output.parameters[names[0]].shape == output.batch:
                found.append(RepeatedComponent(component, names[0], axes[names[0]]))
    return tuple(found)


def merged(
    point: Output,
    output: Output,
    weight: Array,
    repeated: tuple[RepeatedComponent, ...],
    rng_key: Array,
) -> list[Float[Array, " n"]]:
    """The merged whitened outputs of a site, one vector for each repeated component.

    Parameters
    ----------
    point : Output
        The site where it is whitened.
    output : Output
        The site at the position.
    weight : Array
        Factor on each element, in the shape of the batch.
    repeated : tuple of RepeatedComponent
    rng_key : Array
        As :func:`~numpyro_ext.curvature.fisher.fisher_root` takes it.
    """
    found = []
    nothing = {name: jnp.zeros(value.shape) for name, value in point.parameters.items()}
    for component, name, axes in repeated:
        value = output.parameters[name]
        root = fisher_root(point, {**nothing, name: jnp.ones_like(value)}, rng_key)[..., component]
        squares = (weight * root**2).sum(axis=axes, keepdims=True)
        for axis in axes:
            value = jax.lax.slice_in_dim(value, 0, 1, axis=axis)
        # Where nothing counts the root has no derivative.
        counts = squares > 0.0
        factor = jnp.where(counts, jnp.sqrt(jnp.where(counts, squares, 1.0)), 0.0)
        found.append((factor * value).reshape(-1))
    return found


def _is_side_by_side(together: Output, alone: Output) -> bool:
    """Whether the parameters of single rows, along one axis, are those of the batch.

    Those of the single rows have one more axis, the first.
    """
    wanted, shape = together.batch, alone.batch
    if len(shape) != len(wanted):
        return False
    count = len(alone.scale)
    axes = [axis for axis, (one, all_) in enumerate(zip(shape, wanted, strict=True)) if one != all_]
    if count == 1:
        return not axes
    if len(axes) != 1 or shape[axes[0]] != 1 or wanted[axes[0]] != count:
        return False
    tolerance = 1e3 * float(np.finfo(jnp.result_type(float)).eps)

    def agree(rows: np.ndarray, other: np.ndarray) -> bool:
        one = np.concatenate(list(rows), axes[0])
        # Relative to the largest: sums that nearly cancel are known no better than their terms.
        size = 1.0 + np.abs(other).max(initial=0.0)
        return one.shape == other.shape and bool(np.abs(one - other).max() <= tolerance * size)

    return all(
        agree(np.asarray(alone.parameters[name]), np.asarray(value))
        for name, value in together.parameters.items()
    )
