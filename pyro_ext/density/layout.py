"""Shapes and arguments: which entries of the flat unconstrained vector belong to which latent
site, which plates are subsampled, and the model's arguments of one call.

Sites follow the order in which the model draws them (trace order), as in the hosts' own
autoguides, so that a flat vector means the same to an engine and to a guide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Names and unconstrained shapes of the latent sites, in trace order.

    Parameters
    ----------
    names : tuple of str
        Latent sites in the order in which the model draws them.
    shapes : dict of str to tuple of int
        Unconstrained shape of each site; sites inside a subsampled plate have the plate's
        full length.
    """

    names: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Range of the flat vector that each site takes."""
        slices, start = {}, 0
        for name in self.names:
            stop = start + math.prod(self.shapes[name])
            slices[name] = slice(start, stop)
            start = stop
        return slices

    @cached_property
    def dim(self) -> int:
        """Length D of the flat vector."""
        return sum(math.prod(self.shapes[name]) for name in self.names)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Split ``flat`` of shape (..., D) into sites of shape (..., *site shape)."""
        # In one operation, whose gradient joins the sites' once; a slice's gradient is a vector of
        # zeros around it, one of length D for each site.
        pieces = flat.split([math.prod(self.shapes[name]) for name in self.names], dim=-1)
        return {
            name: piece.reshape(flat.shape[:-1] + self.shapes[name])
            for name, piece in zip(self.names, pieces, strict=True)
        }

    def join(self, sites: Mapping[str, Tensor]) -> Tensor:
        """Inverse of :meth:`split`: sites of shape (..., *site shape) to (..., D)."""
        pieces = []
        for name in self.names:
            shape, value = self.shapes[name], sites[name]
            lead = value.shape[: value.dim() - len(shape)]
            pieces.append(value.reshape((*lead, math.prod(shape))))
        return torch.cat(pieces, dim=-1)


@dataclass(frozen=True)
class DataPlate:
    """A plate that the model subsamples.

    Parameters
    ----------
    name : str
    size : int
        Number N of rows of the full data.
    subsample_size : int
        Number of rows of a minibatch.
    dim : int or None
        Batch dimension (negative) of the plate, None when it holds no sites.
    """

    name: str
    size: int
    subsample_size: int
    dim: int | None


@dataclass(frozen=True)
class Data:
    """Arguments of the model, as one call of an engine got them."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
