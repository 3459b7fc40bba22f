"""Mixtures, with the component of each observation summed out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.hosts import Host

Data = Mapping[str, Any]


def low_dim_gauss_mix(h: Host, data: Data, subsample_size: int | None = None) -> None:
    """Two Normal components on the line, told apart by the order of their means.

    Sites: `mu` (2,), increasing, `sigma` (2,), and `theta`, the share of the first component.
    """
    y = h.floats(data["y"])
    mu = h.improper("mu", "ordered_vector", 2)
    h.factor("mu_prior", h.dist.Normal(0.0, 2.0).log_prob(mu).sum())
    sigma = h.sample("sigma", h.dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = h.sample("theta", h.dist.Beta(5.0, 5.0))
    shares = h.dist.Categorical(h.xp.stack([theta, 1.0 - theta]))
    with h.plate("observations", len(y), subsample_size=subsample_size) as rows:
        h.sample("y", h.dist.MixtureSameFamily(shares, h.dist.Normal(mu, sigma)), obs=y[rows])


PROGRAMS: dict[str, Callable[..., None]] = {"low_dim_gauss_mix": low_dim_gauss_mix}
