"""Mixtures in Pyro, with the component of each observation summed out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints

from benchmarks.posteriordb.programs.pyro.flat import Flat, as_tensor

Data = Mapping[str, Any]


def low_dim_gauss_mix(data: Data, subsample_size: int | None = None) -> None:
    """Two Normal components on the line, told apart by the order of their means.

    Sites: `mu` (2,), increasing, `sigma` (2,), and `theta`, the share of the first component.
    """
    y = as_tensor(data["y"])
    mu = pyro.sample("mu", Flat(constraints.ordered_vector, 2))
    pyro.factor("mu_prior", dist.Normal(0.0, 2.0).log_prob(mu).sum())
    sigma = pyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = pyro.sample("theta", dist.Beta(5.0, 5.0))
    shares = dist.Categorical(torch.stack([theta, 1.0 - theta]))
    with pyro.plate("observations", len(y), subsample_size=subsample_size) as rows:
        pyro.sample("y", dist.MixtureSameFamily(shares, dist.Normal(mu, sigma)), obs=y[rows])


PROGRAMS: dict[str, Callable[..., None]] = {"low_dim_gauss_mix": low_dim_gauss_mix}
