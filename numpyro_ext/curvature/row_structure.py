"""What is found once about the rows of a program's whitened Jacobian, before compiling.

Two things make them cheap. Rows of a minibatch that do not depend on each other are differentiated
one by one. And where a parameter of an observed distribution is the same for all of a batch, as a
noise scale is, the rows that belong to it are multiples of one: they are merged into one row r with
the same r' r.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from numpyro_ext.curvature.fisher import fisher_root, root_for
from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.layout import Indices
from numpyro_ext.density.outputs import Output
from ppl_ext.curvature import RepeatedComponent, RowStructure


def row_structure(target: LogDensity, z: Array, data: Data, indices: Indices) -> RowStructure:
    """The structure of a batch's rows. Look once, before compiling: values are compared.

    A site's rows can be differentiated one by one if the parameters of the batch, at a position
    ``z`` (D,), are those of its rows alone, side by side. Sites outside the plate are none, nor
    those whose rows depend on each other, as through a mean over the batch.
    """
    data = data.on_device()
    # One row shows nothing of others, which a sweep over all rows has beside it.
    indices = {
        plate: jnp.arange(2) if len(rows) == 1 < target.plates[plate].size else rows
        for plate, rows in indices.items()
    }
    outputs = jax.jit(target.outputs)
    together = outputs(z, data, indices)
    repeated = {name: _repeated(output) for name, output in together.items()}
    found = {name: components for name, components in repeated.items() if components}
    if len(indices) != 1:
        return RowStructure(repeated=found)
    ((plate, numbers),) = indices.items()
    alone = [outputs(z, data, {plate: number[None]}) for number in numbers]
    by_row = frozenset(
        name
        for name, output in together.items()
        if plate in output.plates and _is_side_by_side(output, [single[name] for single in alone])
    )
    return RowStructure(by_row, found)


def _repeated(output: Output) -> tuple[RepeatedComponent, ...]:
    if root_for(output.distribution) is None:
        return ()
    axes = dict(output.repeated)
    floating = [
        name
        for name, value in output.parameters.items()
        if jnp.issubdtype(value.dtype, jnp.floating)
    ]
    if not any(name in axes for name in floating):
        return ()
    key = random.PRNGKey(0)
    nothing = {name: jnp.zeros(value.shape) for name, value in output.parameters.items()}
    depends = {}
    for number, name in enumerate(floating):
        change = random.normal(random.fold_in(key, number), nothing[name].shape)
        root = np.asarray(fisher_root(output, {**nothing, name: change}, key))
        depends[name] = (root != 0.0).reshape(-1, root.shape[-1]).any(axis=0)
    found = []
    for component in range(root.shape[-1]):
        names = [name for name in floating if depends[name][component]]
        # Parameters that are vectors or matrices mix their own elements.
        if len(names) == 1 and nothing[names[0]].shape == output.batch and names[0] in axes:
            found.append(RepeatedComponent(component, names[0], axes[names[0]]))
    return tuple(found)


def merged(
    point: Output,
    output: Output,
    weight: Array,
    repeated: tuple[RepeatedComponent, ...],
    rng_key: Array,
) -> list[Array]:
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

    def agree(one: Array, other: Array) -> bool:
        # Relative to the largest: sums that nearly cancel are known no better than their terms.
        size = 1.0 + jnp.abs(other).max(initial=0.0)
        return one.shape == other.shape and bool(jnp.abs(one - other).max() <= tolerance * size)

    return all(agree(joined[name], value) for name, value in together.parameters.items())
