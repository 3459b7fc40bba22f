"""Flat priors and data of Pyro programs."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.constraints import Constraint


def as_tensor(values: Any) -> Tensor:
    """Data as a tensor of torch's default floating-point type."""
    return torch.as_tensor(values, dtype=torch.get_default_dtype())


class Flat(dist.ImproperUniform):
    """Density one on a support, that of a parameter without a stated prior in Stan.

    Pyro's own improper distribution cannot be drawn from, which the set-up of its guides needs.
    This one can: draws are uniform on (-2, 2) in unconstrained space, where samplers start.

    Parameters
    ----------
    support : constraint
    length : int, optional
        Length of a vector; a scalar where it is left out.
    """

    def __init__(self, support: Constraint, length: int | None = None) -> None:
        super().__init__(support, torch.Size(), torch.Size([] if length is None else [length]))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw uniformly on (-2, 2) in unconstrained space."""
        transform = biject_to(self.support)
        shape = transform.inverse_shape(self.event_shape)
        free = torch.empty(torch.Size(sample_shape) + self.batch_shape + shape)
        return transform(free.uniform_(-2.0, 2.0))

    rsample = sample
