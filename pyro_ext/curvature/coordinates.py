"""The coordinates of some latent sites on tensors, see :mod:`ppl_ext.curvature.coordinates`."""

from __future__ import annotations

from collections.abc import Collection

import torch

from ppl_ext.curvature import coordinates
from pyro_ext.density import LogDensity


class Coordinates(coordinates.Coordinates):
    """The D' coordinates of some latent sites of a target, on its device."""

    xp = torch

    def __init__(self, target: LogDensity, sites: Collection[str]) -> None:
        super().__init__(target.layout.slices, sites)
        self.numbers = torch.from_numpy(self.numbers).to(target.device)
