"""Shapes and arguments: the flat unconstrained vector as sites, and the model's arguments of one
call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils import _pytree as pytree

from ppl_ext.target.layouts import DataPlate, FlatLayout

__all__ = ["Data", "DataPlate", "Indices", "Layout"]

Indices = Mapping[str, Tensor]


class Layout(FlatLayout):
    """The flat layout of latent sites, for tensors."""

    def split(self, flat: Float[Tensor, "*P D"]) -> dict[str, Tensor]:
        """Split ``flat`` of shape (..., D) into sites of shape (..., *site shape)."""
        # In one operation, whose gradient joins the sites' once; a slice's gradient is a vector of
        # zeros around it, one of length D for each site.
        pieces = flat.split(list(self.sizes.values()), dim=-1)
        return {
            name: piece.reshape(flat.shape[:-1] + self.shapes[name])
            for name, piece in zip(self.names, pieces, strict=True)
        }

    def join(self, sites: Mapping[str, Tensor]) -> Float[Tensor, "*P D"]:
        """Inverse of :meth:`split`: sites of shape (..., *site shape) to (..., D)."""
        pieces = []
        for name in self.names:
            value = sites[name]
            lead = value.shape[: value.dim() - len(self.shapes[name])]
            pieces.append(value.reshape((*lead, self.sizes[name])))
        return torch.cat(pieces, dim=-1)


def with_own_containers(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Arguments in dictionaries and lists of their own, for a model that changes those.

    The tensors in them are the same.
    """
    if not any(isinstance(each, dict | list) for each in (*args, *kwargs.values())):
        return args, kwargs
    return pytree.tree_map(lambda leaf: leaf, (args, dict(kwargs)))


@dataclass(frozen=True)
class Data:
    """Arguments of the model, as one call of an engine got them."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
