"""Some latent sites as coordinates of the flat vector."""

from __future__ import annotations

from collections.abc import Collection

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.curvature.program_curvature import runs
from pyro_ext.density import LogDensity


class Coordinates:
    """The D' coordinates of some latent sites.

    Parameters
    ----------
    target : LogDensity
    sites : collection of str
        Latent sites.

    Attributes
    ----------
    numbers : tensor of int, shape (D',)
        Their numbers in the flat vector, rising.
    slices : dict of str to slice
        Where each of the sites is among the D'.
    """

    def __init__(self, target: LogDensity, sites: Collection[str]) -> None:
        self._all = target.layout.slices
        self.slices: dict[str, slice] = {}
        parts, start = [torch.zeros(0, dtype=torch.int64)], 0
        for name, where in self._all.items():
            if name in sites:
                parts.append(torch.arange(where.start, where.stop))
                self.slices[name] = slice(start, start + len(parts[-1]))
                start = self.slices[name].stop
        self._runs = runs(self._all, self.slices)
        self.numbers = torch.cat(parts).to(target.device)

    def __len__(self) -> int:
        return len(self.numbers)

    def part(self, position: Float[Tensor, "... D"]) -> Float[Tensor, "... d"]:
        """These coordinates (..., D') of positions (..., D)."""
        pieces = [position[..., run.whole] for run in self._runs if run.part is not None]
        return pieces[0] if len(pieces) == 1 else torch.cat([position[..., :0], *pieces], dim=-1)

    def placed(
        self, position: Float[Tensor, "... D"], part: Float[Tensor, "... d"]
    ) -> Float[Tensor, "... D"]:
        """The positions (..., D) with ``part`` (..., D') for these coordinates."""
        if len(self._runs) == 1 and self._runs[0].part is not None:
            return part
        # By slices: what is computed from the other coordinates alone then needs no derivative.
        pieces = [
            position[..., run.whole] if run.part is None else part[..., run.part]
            for run in self._runs
        ]
        return torch.cat(pieces, dim=-1)
