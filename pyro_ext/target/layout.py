"""The flat unconstrained vector: which entries belong to which latent site.

Sites follow the order in which the model draws them (trace order), as in the hosts' own
autoguides, so that a flat vector means the same to an engine and to a guide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Names and unconstrained shapes of the latent sites, in trace order.

    Parameters
    ----------
    names : tuple of str
        Latent sites in the order in which the model draws them.
    shapes : tuple of tuple of int
        Unconstrained shape of each site; sites inside a subsampled plate have the plate's
        full length.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Range of the flat vector that each site takes."""
        slices, start = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            stop = start + math.prod(shape)
            slices[name] = slice(start, stop)
            start = stop
        return slices

    @cached_property
    def dim(self) -> int:
        """Length D of the flat vector."""
        return sum(math.prod(shape) for shape in self.shapes)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Split ``flat`` of shape (..., D) into sites of shape (..., *site shape)."""
        return {
            name: flat[..., self.slices[name]].reshape(flat.shape[:-1] + shape)
            for name, shape in zip(self.names, self.shapes, strict=True)
        }

    def join(self, sites: Mapping[str, Tensor]) -> Tensor:
        """Inverse of :meth:`split`: sites of shape (..., *site shape) to (..., D)."""
        pieces = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            value = sites[name]
            lead = value.shape[: value.dim() - len(shape)]
            pieces.append(value.reshape((*lead, math.prod(shape))))
        return torch.cat(pieces, dim=-1)
