"""Hierarchical programs in NumPyro: eight schools, and radon in houses of counties.

Each program takes the data of its posterior as a dict. Non-centred programs sample standardised
vectors `*_raw`; `hierarchical_sites` has the maps to the reference's parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

Data = Mapping[str, Any]


def eight_schools_centered(data: Data) -> None:
    """Effects of coaching in eight schools. Sites: `mu`, `tau`, `theta` (J,)."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", data["J"]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        known = dist.Normal(theta, jnp.asarray(data["sigma"], float))
        numpyro.sample("y", known, obs=jnp.asarray(data["y"], float))


def eight_schools_noncentered(data: Data) -> None:
    """The same with standardised effects. Sites: `mu`, `tau`, `theta_raw` (J,)."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", data["J"]):
        raw = numpyro.sample("theta_raw", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * raw)
        known = dist.Normal(theta, jnp.asarray(data["sigma"], float))
        numpyro.sample("y", known, obs=jnp.asarray(data["y"], float))


def radon_hierarchical_intercept_noncentered(data: Data, subsample_size: int | None = None) -> None:
    """Log radon with an intercept for each county, the county's uranium, and the floor.

    Sites: `mu_alpha`, `sigma_alpha`, `alpha_raw` (J,), `beta` (2,) of uranium and floor,
    `sigma_y`.
    """
    uranium, floor = jnp.asarray(data["log_uppm"], float), jnp.asarray(data["floor_measure"], float)
    county, radon = jnp.asarray(data["county_idx"]) - 1, jnp.asarray(data["log_radon"], float)
    mu_alpha = numpyro.sample("mu_alpha", dist.Normal(0.0, 10.0))
    sigma_alpha = numpyro.sample("sigma_alpha", dist.HalfNormal(1.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1.0))
    with numpyro.plate("counties", data["J"]):
        raw = numpyro.sample("alpha_raw", dist.Normal(0.0, 1.0))
        alpha = numpyro.deterministic("alpha", mu_alpha + sigma_alpha * raw)
    with numpyro.plate("houses", data["N"], subsample_size=subsample_size) as houses:
        mean = alpha[county[houses]] + beta[0] * uranium[houses] + beta[1] * floor[houses]
        numpyro.sample("log_radon", dist.Normal(mean, sigma_y), obs=radon[houses])


def radon_variable_intercept_slope_noncentered(
    data: Data, subsample_size: int | None = None
) -> None:
    """Log radon with an intercept and a slope of the floor for each county.

    Sites: `mu_alpha`, `sigma_alpha`, `alpha_raw` (J,), `mu_beta`, `sigma_beta`, `beta_raw` (J,),
    `sigma_y`.
    """
    floor, radon = jnp.asarray(data["floor_measure"], float), jnp.asarray(data["log_radon"], float)
    county = jnp.asarray(data["county_idx"]) - 1
    mu_alpha = numpyro.sample("mu_alpha", dist.Normal(0.0, 10.0))
    sigma_alpha = numpyro.sample("sigma_alpha", dist.HalfNormal(1.0))
    mu_beta = numpyro.sample("mu_beta", dist.Normal(0.0, 10.0))
    sigma_beta = numpyro.sample("sigma_beta", dist.HalfNormal(1.0))
    sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1.0))
    with numpyro.plate("counties", data["J"]):
        alpha_raw = numpyro.sample("alpha_raw", dist.Normal(0.0, 1.0))
        beta_raw = numpyro.sample("beta_raw", dist.Normal(0.0, 1.0))
        alpha = numpyro.deterministic("alpha", mu_alpha + sigma_alpha * alpha_raw)
        beta = numpyro.deterministic("beta", mu_beta + sigma_beta * beta_raw)
    with numpyro.plate("houses", data["N"], subsample_size=subsample_size) as houses:
        here = county[houses]
        mean = alpha[here] + beta[here] * floor[houses]
        numpyro.sample("log_radon", dist.Normal(mean, sigma_y), obs=radon[houses])


PROGRAMS: dict[str, Callable[..., None]] = {
    "eight_schools_centered": eight_schools_centered,
    "eight_schools_noncentered": eight_schools_noncentered,
    "radon_hierarchical_intercept_noncentered": radon_hierarchical_intercept_noncentered,
    "radon_variable_intercept_slope_noncentered": radon_variable_intercept_slope_noncentered,
}
