"""What is found once about the rows of a program's whitened Jacobian, before anything is traced.

Two things make them cheap. Rows of a minibatch that do not depend on each other are differentiated
one by one. And where a parameter of an observed distribution is the same for all of a batch, as a
noise scale is, the rows that belong to it are multiples of one: they are merged into one row r with
the same r' r.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils import _pytree as pytree

from ppl_ext.curvature import program_curvature as shared
from ppl_ext.curvature import rows_alone
from ppl_ext.curvature.rows_alone import Alone
from pyro_ext.curvature.fisher import fisher_root, moving, needs_draws, no_changes, root_for
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.layout import Indices
from pyro_ext.density.outputs import Output

Outputs: TypeAlias = Mapping[str, Output]


def row_structure(
    target: LogDensity, z: Float[Tensor, " D"], data: Data, indices: Indices
) -> shared.RowStructure:
    """The structure of a batch's rows. Look once, before tracing: values are compared.

    A site's rows can be differentiated one by one if the parameters of the batch, at a position
    ``z`` (D,), are those of its rows alone, side by side. Sites outside the plate are none, nor
    those whose rows depend on each other, as through a mean over the batch, nor those with drawn
    values. Where no plate is subsampled, a row alone is the model of one row of the arguments.
    Values are compared at the arguments and at slightly changed ones: what couples rows beyond a
    threshold alone is not seen.
    """
    # One row shows nothing of others, which a sweep over all rows has beside it.
    indices = {
        plate: torch.arange(2, device=z.device)
        if len(rows) == 1 < target.plates[plate].size
        else rows
        for plate, rows in indices.items()
    }
    with torch.no_grad():
        together = target.outputs(z, data, indices)
        apart = {name: output for name, output in together.items() if not needs_draws(output)}
        same = partial(rows_alone.apart, epsilon=torch.finfo(z.dtype).eps)

        def alone() -> dict[str, Alone]:
            ((plate, rows),) = indices.items()
            return _each(lambda row: target.outputs(z, data, {plate: row[None]}), (rows,))

        return shared.structure_of_rows(
            indices,
            apart,
            {name: _repeated(output) for name, output in together.items()},
            lambda *given, **options: same(*given, **options).intersection(apart),
            alone,
            lambda: [array.shape for array in _arrays(data)],
            partial(_looks, target, z, data),
        )


def rows_of(data: Data, arguments: tuple[int, ...]) -> tuple[Tensor, ...]:
    """The tensors among the arguments whose first axis is the rows."""
    arrays = _arrays(data)
    return tuple(arrays[number] for number in arguments)


def with_row(data: Data, arguments: tuple[int, ...], row: tuple[Tensor, ...]) -> Data:
    """The arguments with one row in place of all."""
    return with_arrays(data, arguments, [value[None] for value in row])


def with_arrays(data: Data, arguments: tuple[int, ...], values: Sequence[Tensor]) -> Data:
    """The arguments with other tensors in some places."""
    leaves, tree = pytree.tree_flatten((data.args, data.kwargs))
    places = _places(data)
    for number, value in zip(arguments, values, strict=True):
        leaves[places[number]] = value
    return Data(*pytree.tree_unflatten(leaves, tree))


def _places(data: Data) -> list[int]:
    """Where tensors are among the leaves, in an order that names decide."""
    # Later calls may give the same names in another order.
    leaves, _ = pytree.tree_flatten_with_path((data.args, data.kwargs))
    found = [
        (pytree.keystr(path), place)
        for place, (path, leaf) in enumerate(leaves)
        if isinstance(leaf, Tensor)
    ]
    return [place for _, place in sorted(found)]


def _arrays(data: Data) -> list[Tensor]:
    leaves = pytree.tree_leaves((data.args, data.kwargs))
    return [leaves[place] for place in _places(data)]


def _each(function: Callable[..., Outputs], rows: tuple[Tensor, ...]) -> dict[str, Alone]:
    """What a function of one row has at each of them, nothing where it cannot be taken so."""
    batches: dict[str, tuple[int, ...]] = {}

    def tensors(*row: Tensor) -> dict[str, tuple[dict[str, Tensor], Tensor]]:
        outputs = function(*row)
        batches.update((name, output.batch) for name, output in outputs.items())
        return {name: (output.parameters, output.weight) for name, output in outputs.items()}

    # A model may do anything with one row that was written for all of them.
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")
        stacked = torch.func.vmap(tensors)(*rows)
        return {name: Alone(batches[name], *found) for name, found in stacked.items()}
    return {}


def _looks(
    target: LogDensity, z: Tensor, data: Data, arguments: tuple[int, ...]
) -> list[tuple[Outputs, dict[str, Alone]]]:
    """Outputs of all rows together and of each alone, at the arguments and at changed ones.

    None where there is no such model.
    """
    looks: list[tuple[Outputs, dict[str, Alone]]] = []
    # A model may do anything with values that were not given to it.
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")
        for each in (data, _changed(data, arguments)):

            def of_row(*row: Tensor, each: Data = each) -> Outputs:
                return target.outputs(z, with_row(each, arguments, row), {})

            together = target.outputs(z, each, {})
            looks.append((together, _each(of_row, rows_of(each, arguments))))
        return looks
    return []


def _changed(data: Data, arguments: tuple[int, ...]) -> Data:
    """The arguments with other values of the rows."""
    rows = rows_of(data, arguments)
    changed = [
        torch.from_numpy(shared.change_of_rows(each.detach().cpu().numpy(), number)).to(each.device)
        for number, each in zip(arguments, rows, strict=True)
    ]
    return with_arrays(data, arguments, changed)


def _repeated(output: Output) -> tuple[shared.RepeatedComponent, ...]:
    if root_for(output.distribution) is None:
        return ()
    values = moving(output)
    axes = {name: output.repeated_along(name) for name in values}
    if not any(axes.values()):
        return ()
    nothing = no_changes(output)
    generator = torch.Generator().manual_seed(0)
    depends = {}
    for name, value in values.items():
        # A change of one parameter alone shows which components of the root depend on it.
        change = torch.randn(value.shape, generator=generator, dtype=value.dtype)
        root = fisher_root(output, {**nothing, name: change.to(value.device)})
        depends[name] = (root != 0.0).reshape(-1, root.shape[-1]).any(dim=0).tolist()
    shapes = {name: value.shape for name, value in values.items()}
    return shared.repeated_components(depends, shapes, output.batch, axes)
