"""Mixtures in NumPyro, with the component of each observation summed out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

Data = Mapping[str, Any]


def low_dim_gauss_mix(data: Data, subsample_size: int | None = None) -> None:
    """Two Normal components on the line, told apart by the order of their means.

    Sites: `mu` (2,), increasing, `sigma` (2,), and `theta`, the share of the first component.
    """
    y = jnp.asarray(data["y"])
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.ordered_vector, (), (2,)))
    numpyro.factor("mu_prior", dist.Normal(0.0, 2.0).log_prob(mu).sum())
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    shares = dist.Categorical(jnp.stack([theta, 1.0 - theta]))
    with numpyro.plate("observations", len(y), subsample_size=subsample_size) as rows:
        numpyro.sample("y", dist.MixtureSameFamily(shares, dist.Normal(mu, sigma)), obs=y[rows])


PROGRAMS: dict[str, Callable[..., None]] = {"low_dim_gauss_mix": low_dim_gauss_mix}
