"""What is found once about the rows of a program's whitened Jacobian, before compiling.

Two things make them cheap. Rows of a minibatch that do not depend on each other are differentiated
one by one. And where a parameter of an observed distribution is the same for all of a batch, as a
noise scale is, the rows that belong to it are multiples of one: they are merged into one row r with
the same r' r.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Float

from numpyro_ext.curvature.fisher import fisher_root, moving, root_for
from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.layout import Indices
from numpyro_ext.density.outputs import Output
from numpyro_ext.programs import Program
from ppl_ext.curvature import program_curvature as shared
from ppl_ext.curvature.rows_alone import Alone, apart


def row_structure(
    target: LogDensity, z: Float[Array, " D"], data: Data, indices: Indices
) -> shared.RowStructure:
    """The structure of a batch's rows. Look once, before compiling: values are compared.

    A site's rows can be differentiated one by one if the parameters of the batch, at a position
    ``z`` (D,), are those of its rows alone, side by side. Sites outside the plate are none, nor
    those whose rows depend on each other, as through a mean over the batch. Where no plate is
    subsampled, a row alone is the model of one row of the arguments. Values are compared at the
    arguments and at slightly changed ones: what couples rows beyond a threshold alone is not seen.
    """
    # One row shows nothing of others, which a sweep over all rows has beside it.
    indices = {
        plate: jax.device_put(np.arange(2)) if len(rows) == 1 < target.plates[plate].size else rows
        for plate, rows in indices.items()
    }
    data = data.on_device()

    def look(z: Array, data: Data, indices: Indices) -> tuple[Any, Any, Any]:
        together = target.outputs(z, data, indices)
        depends = {name: _dependences(output) for name, output in together.items()}
        alone = None
        if len(indices) == 1:
            ((plate, numbers),) = indices.items()
            alone = jax.vmap(lambda number: target.outputs(z, data, {plate: number[None]}))(numbers)
        return together, alone, depends

    together, alone, depends = Program(look, rarely=True)(z, data, indices)
    repeated = {name: _repeated(output, depends[name]) for name, output in together.items()}
    return shared.structure_of_rows(
        indices,
        together,
        repeated,
        partial(apart, epsilon=float(np.finfo(jnp.result_type(float)).eps)),
        lambda: _of_rows(alone),
        lambda: [np.shape(array) for array in data.arrays],
        partial(_looks, target, z, data),
    )


def _of_rows(alone: Mapping[str, Output]) -> dict[str, Alone]:
    weight = jax.vmap(lambda output: output.weight)
    return {name: Alone(each.batch, each.parameters, weight(each)) for name, each in alone.items()}


def rows_of(data: Data, arguments: tuple[int, ...]) -> tuple[Array, ...]:
    """The arrays among the arguments whose first axis is the rows."""
    return tuple(data.arrays[number] for number in arguments)


def with_row(data: Data, arguments: tuple[int, ...], row: tuple[Array, ...]) -> Data:
    """The arguments with one row in place of all."""
    arrays = list(data.arrays)
    for number, value in zip(arguments, row, strict=True):
        arrays[number] = value[None]
    return data.with_arrays(tuple(arrays))


def _looks(
    target: LogDensity, z: Array, data: Data, arguments: tuple[int, ...]
) -> list[tuple[dict[str, Output], dict[str, Alone]]]:
    """Outputs of all rows together and of each alone, at the arguments and at changed ones.

    None where there is no such model.
    """

    def look(z: Array, data: Data) -> tuple[dict[str, Output], dict[str, Output]]:
        def row(values: tuple[Array, ...]) -> dict[str, Output]:
            return target.outputs(z, with_row(data, arguments, values), {})

        return target.outputs(z, data, {}), jax.vmap(row)(rows_of(data, arguments))

    program = Program(look, rarely=True)
    # A model may do anything with one row that was written for all of them.
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")
        looks = [program(z, each) for each in (data, _changed(data, arguments))]
        return [(together, _of_rows(alone)) for together, alone in looks]
    return []


def _changed(data: Data, arguments: tuple[int, ...]) -> Data:
    """The arguments with other values of the rows."""
    arrays = list(data.arrays)
    for number in arguments:
        if not jnp.issubdtype(arrays[number].dtype, jax.dtypes.prng_key):
            arrays[number] = shared.change_of_rows(np.asarray(arrays[number]), number)
    return data.with_arrays(tuple(arrays)).on_device()


def _dependences(output: Output) -> dict[str, Array]:
    """For each parameter, the components of the Fisher root that depend on it.

    None where no parameter is the same along an axis, or where the root is made of draws.
    """
    floating = moving(output)
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


def _repeated(output: Output, depends: Mapping[str, Array]) -> tuple[shared.RepeatedComponent, ...]:
    seen = {name: np.asarray(components).tolist() for name, components in depends.items()}
    shapes = {name: value.shape for name, value in output.parameters.items()}
    return shared.repeated_components(seen, shapes, output.batch, dict(output.repeated))
