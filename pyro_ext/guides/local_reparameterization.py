"""The local reparameterisation for Pyro; see :mod:`ppl_ext.guides.local_reparameterization`."""

from __future__ import annotations

import torch
from torch import Tensor

from ppl_ext.guides.local_reparameterization import NormalOutputs, local_reparameterization_of
from pyro_ext.guides.linear_sites import RowNoiseELBO


class OutputNoise(NormalOutputs):
    def _normal(self, mean: Tensor, variance: Tensor) -> Tensor:
        return mean + _sqrt(variance) * torch.randn_like(mean)


def _sqrt(variance: Tensor) -> Tensor:
    """Square root with derivative 0 at 0, where a row of zeros has no noise."""
    positive = variance > 0
    return torch.where(positive, torch.where(positive, variance, 1.0).sqrt(), 0.0)


local_reparameterization = local_reparameterization_of(RowNoiseELBO, OutputNoise)
