"""The generalised Gauss-Newton matrix of a program's likelihood, from whitened outputs.

The outputs of a program are the parameters of its observed distributions as functions of the flat
position z. Composed with the root of their Fisher information at z they are whitened: the map w
with G = J_w^T J_w / temperature, J_w the Jacobian of w at z, is the Gauss-Newton matrix, scaled
as the log likelihood is (plates, masks, ``poutine.scale``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.curvature.program_curvature import NO_STRUCTURE, RepeatedComponent, RowStructure
from pyro_ext.curvature.fisher import (
    drawn_at_each,
    drawn_values,
    fisher_root,
    needs_draws,
    whitened_parts,
)
from pyro_ext.curvature.row_structure import rows_of, with_row
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.layout import Indices
from pyro_ext.density.outputs import Output

#: A flat vector (D,), or the unconstrained values of the latent sites.
Position: TypeAlias = Tensor | Mapping[str, Tensor]
#: Values drawn from observed sites, by name.
Drawn: TypeAlias = dict[str, Tensor]
#: Parameters of observed sites, by name.
Parameters: TypeAlias = dict[str, dict[str, Tensor]]


def whitened_outputs(
    target: LogDensity,
    z: Float[Tensor, " D"],
    data: Data,
    indices: Indices,
    sites: Collection[str] | None = None,
    repeated: Mapping[str, tuple[RepeatedComponent, ...]] = MappingProxyType({}),
    merge: bool = True,
    drawn: Drawn | None = None,
) -> Callable[[Position], Float[Tensor, " R"]]:
    """The map w of a position (D,) to whitened outputs (R,), whitened at ``z`` (D,).

    The whitening is differentiable in ``z``. With ``sites`` only these observed sites count.
    Components in ``repeated`` are merged, of all sites, or left out. ``drawn`` are values at ``z``
    of sites without a known Fisher information, of :func:`drawn_at`; without them values are drawn
    by torch's global generator, which cannot be done inside ``torch.func.vmap``.
    """
    point = target.outputs(z, data, indices)
    names = [name for name in point if sites is None or name in sites]
    if drawn is None:
        drawn = {n: drawn_values(point[n]) for n in names if needs_draws(point[n])}
    # The roots are those at z, also for outputs elsewhere: so the Jacobian of the whitened outputs
    # has the Fisher information at z as its square.
    roots = {n: partial(fisher_root, each, values=drawn.get(n)) for n, each in point.items()}

    def whitened(position: Position) -> Tensor:
        outputs = target.outputs(position, data, indices)
        temperature = target.likelihood_temperature
        parts = whitened_parts(point, outputs, names, temperature, roots, repeated, merge)
        return torch.cat(parts) if parts else z[:0]

    return whitened


def drawn_at(outputs: Mapping[str, Output], parameters: Parameters) -> Drawn:
    """Values (P, S, ...) of sites without a known Fisher information, drawn at P positions.

    Parameters
    ----------
    outputs : dict of str to Output
        Outputs at any position.
    parameters : dict of str to dict of str to tensor
        What :func:`drawn_from` has found at the positions, with a leading axis of P.
    """
    return {name: drawn_at_each(outputs[name], found) for name, found in parameters.items()}


def drawn_from(outputs: Mapping[str, Output]) -> Parameters:
    """The parameters of the sites without a known Fisher information."""
    return {name: output.parameters for name, output in outputs.items() if needs_draws(output)}


def jacobian_rows(
    target: LogDensity,
    z: Float[Tensor, "P D"],
    data: Data,
    indices: Indices,
    structure: RowStructure = NO_STRUCTURE,
    latents: Collection[str] | None = None,
) -> Float[Tensor, "P R D"]:
    """Jacobians J_w at positions z (P, D), shape (P, R, D): G = J_w^T J_w for each position.

    With ``latents``, names of latent sites, only the columns of these are computed, in the order of
    the layout.

    Observed sites in ``structure.by_row``, by :func:`row_structure`, are differentiated row by
    row, at the cost of one gradient for each whitened output; for others the cheaper of R reverse
    and D forward derivatives of the whole batch is taken. Distributions without a registered
    Fisher information are drawn from by torch's global generator.
    """
    found = target.outputs(z[0].detach(), data, indices)

    def rows(position: Tensor, drawn: Drawn) -> Tensor:
        return rows_of_one(target, position, data, indices, found, structure, latents, drawn)

    return torch.func.vmap(rows)(z, _drawn(target, z, data, indices))


def rows_of_one(
    target: LogDensity,
    position: Float[Tensor, " D"],
    data: Data,
    indices: Indices,
    names: Collection[str],
    structure: RowStructure = NO_STRUCTURE,
    latents: Collection[str] | None = None,
    drawn: Drawn | None = None,
) -> Float[Tensor, "R D"]:
    """Jacobian J_w at one position (D,) of the observed sites ``names``, shape (R, D).

    ``drawn`` are values of :func:`drawn_at`; see :func:`whitened_outputs`.
    """
    structure = structure.for_rows([len(r) for r in rows_of(data, structure.arguments)])
    whole = set(names) - structure.by_row
    part, placed = _part_of(target, position, latents)
    parts = []
    if structure.by_row:
        parts.append(_row_by_row(target, position, part, placed, data, indices, structure))
    if whole or structure.repeated or not names:
        whitened = whitened_outputs(
            target, position, data, indices, whole, structure.repeated, drawn=drawn
        )
        parts.append(_jacobian(lambda values: whitened(placed(values)), part))
    return torch.cat(parts)


def _part_of(
    target: LogDensity, position: Tensor, latents: Collection[str] | None
) -> tuple[Tensor, Callable[[Tensor], Position]]:
    """The coordinates of some latent sites, and the map of their values to a whole position."""
    layout = target.layout
    if latents is None or set(latents) == set(layout.names):
        return position, lambda values: values
    # By site: what depends on the others alone is not differentiated.
    fixed = layout.split(position)
    chosen = [name for name in layout.names if name in latents]
    part = torch.cat([fixed[name].reshape(-1) for name in chosen])
    sizes = [fixed[name].numel() for name in chosen]

    def placed(values: Tensor) -> Position:
        pieces = zip(chosen, values.split(sizes), strict=True)
        return {**fixed, **{name: piece.reshape(layout.shapes[name]) for name, piece in pieces}}

    return part, placed


def _linearised(
    function: Callable[[Tensor], Tensor], position: Tensor
) -> tuple[Tensor, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Value (R,), and the maps v -> J v and u -> J^T u.

    J v is taken as the derivative of J^T u in u, since forward mode fails on some models in
    float32.
    """
    value, backward = torch.func.vjp(function, position)[:2]

    def transposed(u: Tensor) -> Tensor:
        return backward(u)[0]

    # J^T u is linear in u, so that its derivative is the same anywhere.
    forward = torch.func.vjp(transposed, torch.zeros_like(value))[1]
    return value, lambda vector: forward(vector)[0], transposed


def _jacobian(function: Callable[[Tensor], Tensor], position: Tensor) -> Tensor:
    """Jacobian (R, D), by the cheaper of R reverse and D forward derivatives."""
    value, forward, backward = _linearised(function, position)
    if len(value) == 1:
        return backward(torch.ones_like(value))[None]
    reverse = len(value) <= len(position)
    size = len(value) if reverse else len(position)
    basis = torch.eye(size, dtype=value.dtype, device=value.device)
    return torch.func.vmap(backward)(basis) if reverse else torch.func.vmap(forward)(basis).T


def _reverse_jacobian(function: Callable[[Tensor], Tensor], position: Tensor) -> Tensor:
    """Jacobian (R, D), by R reverse derivatives."""
    value, backward = torch.func.vjp(function, position)[:2]
    # In a traced graph the value itself is then not computed where derivatives do not need it.
    if len(value) == 1:
        one: Tensor = backward(torch.ones_like(value))[0]
        return one[None]
    basis = torch.eye(len(value), dtype=value.dtype, device=value.device)
    return torch.func.vmap(backward)(basis)[0]


def _row_by_row(
    target: LogDensity,
    position: Tensor,
    part: Tensor,
    placed: Callable[[Tensor], Position],
    data: Data,
    indices: Indices,
    structure: RowStructure,
) -> Tensor:
    sites, repeated = structure.by_row, structure.repeated
    if structure.arguments:
        numbers: tuple[Tensor, ...] = rows_of(data, structure.arguments)
    else:
        ((plate, chosen),) = indices.items()
        numbers = (chosen,)
    count = len(numbers[0])
    # A row alone is scaled up as if it were the whole batch: N in place of N / count.
    share = 1.0 / math.sqrt(count) if structure.scaled_up else 1.0

    def row(*values: Tensor) -> Tensor:
        alone: tuple[Data, Indices]
        if structure.arguments:
            alone = with_row(data, structure.arguments, values), {}
        else:
            alone = data, {plate: values[0][None]}
        whitened = whitened_outputs(target, position, *alone, sites, repeated, merge=False)
        return _reverse_jacobian(lambda values: share * whitened(placed(values)), part)

    return torch.func.vmap(row)(*numbers).reshape(-1, part.shape[0])


def gauss_newton_products(
    target: LogDensity, z: Float[Tensor, "P D"], data: Data, indices: Indices
) -> Callable[[Float[Tensor, "P D"]], Float[Tensor, "P D"]]:
    """Products v -> G v at positions z (P, D), for v (P, D); no Jacobian is formed.

    G is one matrix, also where values are drawn, which is done once.
    """
    drawn = _drawn(target, z, data, indices)

    def product(position: Tensor, drawn: Drawn, vector: Tensor) -> Tensor:
        whitened = whitened_outputs(target, position, data, indices, drawn=drawn)
        forward, backward = _linearised(whitened, position)[1:]
        return backward(forward(vector))

    return lambda vectors: torch.func.vmap(product)(z, drawn, vectors)


def _drawn(target: LogDensity, z: Tensor, data: Data, indices: Indices) -> Drawn:
    """The values of :func:`drawn_at` at positions z (P, D)."""
    z = z.detach()
    outputs = target.outputs(z[0], data, indices)
    if not drawn_from(outputs):
        return {}

    def parameters(position: Tensor) -> Parameters:
        return drawn_from(target.outputs(position, data, indices))

    return drawn_at(outputs, torch.func.vmap(parameters)(z))
