"""Flipout for Pyro; see :mod:`ppl_ext.guides.flipout`."""

from __future__ import annotations

import torch
from torch import Tensor

from ppl_ext.guides.flipout import FlipoutSigns, flipout_of
from pyro_ext.guides.linear_sites import RowNoiseELBO


class FlipoutNoise(FlipoutSigns):
    def _random_signs(self, rows: int, length: int, like: Tensor) -> Tensor:
        bits = torch.randint(2, (rows, length), device=like.device)
        return (2 * bits - 1).to(like.dtype)


flipout = flipout_of(RowNoiseELBO, FlipoutNoise)
