"""From the flat unconstrained space to the sites' supports and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_ext.density.bound_model import BoundModel
from pyro_ext.density.handlers import UnconstrainHandler, ValuesHandler
from pyro_ext.density.layout import Layout


def constrain(bound: BoundModel, z: Float[Tensor, " D"], arguments: Any) -> dict[str, Tensor]:
    """Latent sites, and parameter sites, in their supports, at one position."""
    handler = ValuesHandler(bound.layout.split(z), arguments[2])
    bound.run(handler, arguments)
    values = {name: handler.values[name] for name in bound.layout.names}
    others = (name for name in bound.parameter_sites if name not in values)
    return values | {name: handler.recorded[name] for name in others}


def unconstrain(
    bound: BoundModel, flat: Float[Tensor, " n"], arguments: Any
) -> Float[Tensor, " D"]:
    """The flat position of latent sites in their supports, which come as one vector.

    ``arguments`` are the layout of the sites in their supports, and those of a run.
    """
    constrained, run_arguments = arguments
    handler = UnconstrainHandler(constrained.split(flat))
    bound.run(handler, run_arguments)
    return bound.layout.join(handler.positions)


def check_values(bound: BoundModel, values: Mapping[str, Tensor]) -> tuple[Layout, Tensor]:
    """The latent sites among ``values`` as vectors, one for each position, and their layout."""
    bound.check_values(values)
    sites = {
        name: torch.as_tensor(values[name], dtype=bound.dtype, device=bound.device)
        for name in bound.layout.names
    }
    shapes = {name: tuple(value.shape[1:]) for name, value in sites.items()}
    layout = Layout(bound.layout.names, shapes)
    return layout, layout.join(sites)
