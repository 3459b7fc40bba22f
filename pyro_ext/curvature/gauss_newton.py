"""The generalised Gauss-Newton matrix of a program's likelihood, from whitened outputs.

The outputs of a program are the parameters of its observed distributions as functions of the flat
position z. Composed with the root of their Fisher information at z they are whitened: the map w
with G = J_w^T J_w / temperature, J_w the Jacobian of w at z, is the Gauss-Newton matrix, scaled
as the log likelihood is (plates, masks, ``poutine.scale``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from pyro_ext.curvature.fisher import drawn_values, fisher_root, needs_draws
from pyro_ext.target import Data, LogDensity
from pyro_ext.target.log_density import Indices
from pyro_ext.target.outputs import Output


def whitened_outputs(
    target: LogDensity,
    z: Tensor,
    data: Data,
    indices: Indices,
    sites: Collection[str] | None = None,
) -> Callable[[Tensor], Tensor]:
    """The map w of a position (D,) to whitened outputs (R,), whitened at ``z`` (D,).

    With ``sites`` only these observed sites count.
    """
    point = {
        name: output
        for name, output in target.outputs(z.detach(), data, indices).items()
        if sites is None or name in sites
    }

    drawn = {name: drawn_values(each) for name, each in point.items() if needs_draws(each)}

    def whitened(position: Tensor) -> Tensor:
        outputs = target.outputs(position, data, indices)
        parts = []
        for name, output in point.items():
            values = drawn.get(name, ())
            parts.append(_whitened(output, outputs[name], target.likelihood_temperature, values))
        return torch.cat(parts) if parts else position[:0]

    return whitened


def _whitened(
    point: Output, output: Output, temperature: float, values: Sequence[Tensor]
) -> Tensor:
    # The root is linear in the changes, so that of the parameters themselves has the Jacobian
    # that is wanted; parameters that are whole numbers do not change.
    changes = {
        name: value if value.is_floating_point() else torch.zeros(value.shape, device=value.device)
        for name, value in output.parameters.items()
    }
    root = fisher_root(point, changes, values)
    factor = torch.sqrt(point.weight / temperature)
    return (root * factor.reshape(factor.shape + (1,) * (root.dim() - factor.dim()))).reshape(-1)


def row_sites(target: LogDensity, z: Tensor, data: Data, indices: Indices) -> frozenset[str]:
    """Observed sites whose rows can be differentiated one by one.

    These are the sites for which the parameters of a batch, at a position ``z`` (D,), are those of
    its rows alone, side by side. Sites outside the plate are none, nor those whose rows depend on
    each other, as through a mean over the batch, nor those with drawn values. Look once.
    """
    if len(indices) != 1:
        return frozenset()
    ((plate, numbers),) = indices.items()
    with torch.no_grad():
        together = target.outputs(z, data, indices)
        alone = [target.outputs(z, data, {plate: number[None]}) for number in numbers]
        return frozenset(
            name
            for name, output in together.items()
            if plate in output.plates
            and not needs_draws(output)
            and _is_side_by_side(output, [single[name] for single in alone])
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
        name: torch.cat([single.parameters[name] for single in alone], axes[0])
        for name in together.parameters
    }
    tolerance = 1e3 * torch.finfo(torch.get_default_dtype()).eps
    return all(
        joined[name].shape == value.shape
        and torch.allclose(joined[name], value, rtol=tolerance, atol=tolerance)
        for name, value in together.parameters.items()
    )


def jacobian_rows(
    target: LogDensity,
    z: Tensor,
    data: Data,
    indices: Indices,
    by_row: Collection[str] = frozenset(),
    coordinates: Tensor | None = None,
) -> Tensor:
    """Jacobians J_w at positions z (P, D), shape (P, R, D): G = J_w^T J_w for each position.

    With ``coordinates``, D' numbers of columns, only these are computed, shape (P, R, D').

    Observed sites in ``by_row``, by :func:`row_sites`, are differentiated row by row, at the cost
    of one gradient for each whitened output; for others the cheaper of R reverse and D forward
    derivatives of the whole batch is taken. Distributions without a registered Fisher information
    are drawn from by torch's global generator.
    """
    found = target.outputs(z[0].detach(), data, indices)

    def rows(position: Tensor) -> Tensor:
        return rows_of_one(target, position, data, indices, found, by_row, coordinates)

    return _over_positions(rows, found, z)


def rows_of_one(
    target: LogDensity,
    position: Tensor,
    data: Data,
    indices: Indices,
    names: Collection[str],
    by_row: Collection[str] = frozenset(),
    coordinates: Tensor | None = None,
) -> Tensor:
    """Jacobian J_w at one position (D,) of the observed sites ``names``, shape (R, D)."""
    whole = set(names) - set(by_row)
    # Derivatives by a part of the position alone: what does not depend on it costs nothing.
    part = position if coordinates is None else position[coordinates]

    def placed(values: Tensor) -> Tensor:
        return values if coordinates is None else position.index_copy(0, coordinates, values)

    parts = []
    if by_row:
        parts.append(_row_by_row(target, position, part, placed, data, indices, by_row))
    if whole or not names:
        whitened = whitened_outputs(target, position, data, indices, whole)
        parts.append(_jacobian(lambda values: whitened(placed(values)), part))
    return torch.cat(parts)


def _linearised(
    function: Callable[[Tensor], Tensor], position: Tensor
) -> tuple[Tensor, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Value (R,), and the maps v -> J v and u -> J^T u.

    J v is taken as the derivative of J^T u in u, since forward mode fails on some models in
    float32.
    """
    value, backward = torch.func.vjp(function, position)[:2]

    def transposed(u: Tensor) -> Tensor:
        result: Tensor = backward(u)[0]
        return result

    forward = torch.func.vjp(transposed, torch.zeros_like(value))[1]
    return value, lambda vector: forward(vector)[0], transposed


def _jacobian(function: Callable[[Tensor], Tensor], position: Tensor) -> Tensor:
    """Jacobian (R, D), by the cheaper of R reverse and D forward derivatives."""
    value, forward, backward = _linearised(function, position)
    reverse = len(value) <= len(position)
    size = len(value) if reverse else len(position)
    basis = torch.eye(size, dtype=value.dtype, device=value.device)
    return torch.func.vmap(backward)(basis) if reverse else torch.func.vmap(forward)(basis).T


def _row_by_row(
    target: LogDensity,
    position: Tensor,
    part: Tensor,
    placed: Callable[[Tensor], Tensor],
    data: Data,
    indices: Indices,
    sites: Collection[str],
) -> Tensor:
    ((plate, numbers),) = indices.items()

    def row(number: Tensor) -> Tensor:
        whitened = whitened_outputs(target, position, data, {plate: number[None]}, sites)
        # A row alone is scaled up as if it stood for all, and here it is one of several.
        derivative = torch.func.jacrev(lambda values: whitened(placed(values)))(part)
        return derivative / math.sqrt(len(numbers))

    jacobians = torch.func.vmap(row)(numbers)
    return jacobians.reshape(-1, part.shape[0])


def gauss_newton_products(
    target: LogDensity, z: Tensor, data: Data, indices: Indices
) -> Callable[[Tensor], Tensor]:
    """Products v -> G v at positions z (P, D), for v (P, D); no Jacobian is formed."""

    def product(position: Tensor, vector: Tensor) -> Tensor:
        whitened = whitened_outputs(target, position, data, indices)
        forward, backward = _linearised(whitened, position)[1:]
        return backward(forward(vector))

    found = target.outputs(z[0].detach(), data, indices)
    return lambda vectors: _over_positions(product, found, z, vectors)


def _over_positions(
    function: Callable[..., Tensor], outputs: Mapping[str, Output], *arguments: Tensor
) -> Tensor:
    """A function of one position at all of them, together where nothing is drawn."""
    if any(needs_draws(output) for output in outputs.values()):
        return torch.stack([function(*each) for each in zip(*arguments, strict=True)])
    result: Tensor = torch.func.vmap(function)(*arguments)
    return result
