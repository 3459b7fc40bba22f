"""What is found once about the rows of a program's whitened Jacobian, before anything is traced.

Two things make them cheap. Rows of a minibatch that do not depend on each other are differentiated
one by one. And where a parameter of an observed distribution is the same for all of a batch, as a
noise scale is, the rows that belong to it are multiples of one: they are merged into one row r with
the same r' r.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.curvature import RepeatedComponent, RowStructure
from pyro_ext.curvature.fisher import fisher_root, needs_draws, root_for
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.layout import Indices
from pyro_ext.density.outputs import Output


def row_structure(
    target: LogDensity, z: Float[Tensor, " D"], data: Data, indices: Indices
) -> RowStructure:
    """The structure of a batch's rows. Look once, before tracing: values are compared.

    A site's rows can be differentiated one by one if the parameters of the batch, at a position
    ``z`` (D,), are those of its rows alone, side by side. Sites outside the plate are none, nor
    those whose rows depend on each other, as through a mean over the batch, nor those with drawn
    values.
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
        repeated = {name: _repeated(output) for name, output in together.items()}
        found = {name: components for name, components in repeated.items() if components}
        if len(indices) != 1:
            return RowStructure(repeated=found)
        ((plate, numbers),) = indices.items()
        alone = [target.outputs(z, data, {plate: number[None]}) for number in numbers]
        by_row = frozenset(
            name
            for name, output in together.items()
            if plate in output.plates
            and not needs_draws(output)
            and _is_side_by_side(output, [single[name] for single in alone])
        )
    return RowStructure(by_row, found)


def _repeated(output: Output) -> tuple[RepeatedComponent, ...]:
    if root_for(output.distribution) is None:
        return ()
    values = {name: value for name, value in output.parameters.items() if value.is_floating_point()}
    axes = {name: output.repeated_along(name) for name in values}
    if not any(axes.values()):
        return ()
    nothing = _no_changes(output)
    generator = torch.Generator().manual_seed(0)
    depends = {}
    for name, value in values.items():
        change = torch.randn(value.shape, generator=generator, dtype=value.dtype)
        root = fisher_root(output, {**nothing, name: change.to(value.device)})
        depends[name] = (root != 0.0).reshape(-1, root.shape[-1]).any(dim=0).tolist()
    found = []
    for component in range(root.shape[-1]):
        names = [name for name in values if depends[name][component]]
        # Parameters that are vectors or matrices mix their own elements.
        if len(names) == 1 and values[names[0]].shape == output.batch and axes[names[0]]:
            found.append(RepeatedComponent(component, names[0], axes[names[0]]))
    return tuple(found)


def _no_changes(output: Output) -> dict[str, Tensor]:
    dtype = next(value.dtype for value in output.parameters.values() if value.is_floating_point())
    return {
        name: torch.zeros(value.shape, dtype=dtype, device=value.device)
        for name, value in output.parameters.items()
    }


def merged(
    point: Output,
    output: Output,
    weight: Tensor,
    repeated: tuple[RepeatedComponent, ...],
) -> list[Float[Tensor, " n"]]:
    """The merged whitened outputs of a site, one vector for each repeated component.

    Parameters
    ----------
    point : Output
        The site where it is whitened.
    output : Output
        The site at the position.
    weight : Tensor
        Factor on each element, in the shape of the batch.
    repeated : tuple of RepeatedComponent
    """
    found = []
    nothing = _no_changes(point)
    for component, name, axes in repeated:
        value = output.parameters[name]
        change = {**nothing, name: torch.ones_like(nothing[name])}
        root = fisher_root(point, change)[..., component]
        squares = (weight * root**2).sum(dim=axes, keepdim=True)
        for axis in axes:
            value = value.narrow(axis, 0, 1)
        # Where nothing counts the root has no derivative.
        counts = squares > 0.0
        factor = torch.where(counts, torch.where(counts, squares, 1.0).sqrt(), 0.0)
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
        name: torch.cat([single.parameters[name] for single in alone], axes[0])
        for name in together.parameters
    }
    tolerance = 1e3 * torch.finfo(torch.get_default_dtype()).eps

    def agree(one: Tensor, other: Tensor) -> bool:
        # Relative to the largest: sums that nearly cancel are known no better than their terms.
        size = 1.0 + other.abs().max()
        return one.shape == other.shape and bool((one - other).abs().max() <= tolerance * size)

    return all(agree(joined[name], value) for name, value in together.parameters.items())
