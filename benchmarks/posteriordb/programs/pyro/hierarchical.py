"""Hierarchical programs in Pyro: eight schools, and radon in houses of counties.

Each program takes the data of its posterior as a dict. Non-centred programs sample standardised
vectors `*_raw`; `hierarchical_sites` has the maps to the reference's parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyro
import pyro.distributions as dist
import torch

from benchmarks.posteriordb.programs.pyro.flat import as_tensor

Data = Mapping[str, Any]


def eight_schools_centered(data: Data) -> None:
    """Effects of coaching in eight schools. Sites: `mu`, `tau`, `theta` (J,)."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", data["J"]):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        known = dist.Normal(theta, as_tensor(data["sigma"]))
        pyro.sample("y", known, obs=as_tensor(data["y"]))


def eight_schools_noncentered(data: Data) -> None:
    """The same with standardised effects. Sites: `mu`, `tau`, `theta_raw` (J,)."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", data["J"]):
        raw = pyro.sample("theta_raw", dist.Normal(0.0, 1.0))
        theta = pyro.deterministic("theta", mu + tau * raw)
        known = dist.Normal(theta, as_tensor(data["sigma"]))
        pyro.sample("y", known, obs=as_tensor(data["y"]))


def radon_hierarchical_intercept_noncentered(data: Data, subsample_size: int | None = None) -> None:
    """Log radon with an intercept for each county, the county's uranium, and the floor.

    Sites: `mu_alpha`, `sigma_alpha`, `alpha_raw` (J,), `beta` (2,) of uranium and floor,
    `sigma_y`.
    """
    uranium, floor = as_tensor(data["log_uppm"]), as_tensor(data["floor_measure"])
    county, radon = torch.as_tensor(data["county_idx"]) - 1, as_tensor(data["log_radon"])
    mu_alpha = pyro.sample("mu_alpha", dist.Normal(0.0, 10.0))
    sigma_alpha = pyro.sample("sigma_alpha", dist.HalfNormal(1.0))
    beta = pyro.sample("beta", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    sigma_y = pyro.sample("sigma_y", dist.HalfNormal(1.0))
    with pyro.plate("counties", data["J"]):
        raw = pyro.sample("alpha_raw", dist.Normal(0.0, 1.0))
        alpha = pyro.deterministic("alpha", mu_alpha + sigma_alpha * raw)
    with pyro.plate("houses", data["N"], subsample_size=subsample_size) as houses:
        mean = alpha[county[houses]] + beta[0] * uranium[houses] + beta[1] * floor[houses]
        pyro.sample("log_radon", dist.Normal(mean, sigma_y), obs=radon[houses])


def radon_variable_intercept_slope_noncentered(
    data: Data, subsample_size: int | None = None
) -> None:
    """Log radon with an intercept and a slope of the floor for each county.

    Sites: `mu_alpha`, `sigma_alpha`, `alpha_raw` (J,), `mu_beta`, `sigma_beta`, `beta_raw` (J,),
    `sigma_y`.
    """
    floor, radon = as_tensor(data["floor_measure"]), as_tensor(data["log_radon"])
    county = torch.as_tensor(data["county_idx"]) - 1
    mu_alpha = pyro.sample("mu_alpha", dist.Normal(0.0, 10.0))
    sigma_alpha = pyro.sample("sigma_alpha", dist.HalfNormal(1.0))
    mu_beta = pyro.sample("mu_beta", dist.Normal(0.0, 10.0))
    sigma_beta = pyro.sample("sigma_beta", dist.HalfNormal(1.0))
    sigma_y = pyro.sample("sigma_y", dist.HalfNormal(1.0))
    with pyro.plate("counties", data["J"]):
        alpha_raw = pyro.sample("alpha_raw", dist.Normal(0.0, 1.0))
        beta_raw = pyro.sample("beta_raw", dist.Normal(0.0, 1.0))
        alpha = pyro.deterministic("alpha", mu_alpha + sigma_alpha * alpha_raw)
        beta = pyro.deterministic("beta", mu_beta + sigma_beta * beta_raw)
    with pyro.plate("houses", data["N"], subsample_size=subsample_size) as houses:
        here = county[houses]
        mean = alpha[here] + beta[here] * floor[houses]
        pyro.sample("log_radon", dist.Normal(mean, sigma_y), obs=radon[houses])


PROGRAMS: dict[str, Callable[..., None]] = {
    "eight_schools_centered": eight_schools_centered,
    "eight_schools_noncentered": eight_schools_noncentered,
    "radon_hierarchical_intercept_noncentered": radon_hierarchical_intercept_noncentered,
    "radon_variable_intercept_slope_noncentered": radon_variable_intercept_slope_noncentered,
}
