"""Hierarchical programs: eight schools, and radon in houses of counties.

Each program takes the host, and the data of its posterior as a dict. Non-centred programs sample
standardised vectors `*_raw`; `hierarchical_sites` has the maps to the reference's parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.hosts import Host

Data = Mapping[str, Any]


def eight_schools_centered(h: Host, data: Data) -> None:
    """Effects of coaching in eight schools. Sites: `mu`, `tau`, `theta` (J,)."""
    mu = h.sample("mu", h.dist.Normal(0.0, 5.0))
    tau = h.sample("tau", h.dist.HalfCauchy(5.0))
    with h.plate("schools", data["J"]):
        theta = h.sample("theta", h.dist.Normal(mu, tau))
        known = h.dist.Normal(theta, h.floats(data["sigma"]))
        h.sample("y", known, obs=h.floats(data["y"]))


def eight_schools_noncentered(h: Host, data: Data) -> None:
    """The same with standardised effects. Sites: `mu`, `tau`, `theta_raw` (J,)."""
    mu = h.sample("mu", h.dist.Normal(0.0, 5.0))
    tau = h.sample("tau", h.dist.HalfCauchy(5.0))
    with h.plate("schools", data["J"]):
        raw = h.sample("theta_raw", h.dist.Normal(0.0, 1.0))
        theta = h.deterministic("theta", mu + tau * raw)
        known = h.dist.Normal(theta, h.floats(data["sigma"]))
        h.sample("y", known, obs=h.floats(data["y"]))


def radon_hierarchical_intercept_noncentered(
    h: Host, data: Data, subsample_size: int | None = None
) -> None:
    """Log radon with an intercept for each county, the county's uranium, and the floor.

    Sites: `mu_alpha`, `sigma_alpha`, `alpha_raw` (J,), `beta` (2,) of uranium and floor,
    `sigma_y`.
    """
    uranium, floor = h.floats(data["log_uppm"]), h.floats(data["floor_measure"])
    county, radon = h.array(data["county_idx"]) - 1, h.floats(data["log_radon"])
    mu_alpha = h.sample("mu_alpha", h.dist.Normal(0.0, 10.0))
    sigma_alpha = h.sample("sigma_alpha", h.dist.HalfNormal(1.0))
    beta = h.sample("beta", h.dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    sigma_y = h.sample("sigma_y", h.dist.HalfNormal(1.0))
    with h.plate("counties", data["J"]):
        raw = h.sample("alpha_raw", h.dist.Normal(0.0, 1.0))
        alpha = h.deterministic("alpha", mu_alpha + sigma_alpha * raw)
    with h.plate("houses", data["N"], subsample_size=subsample_size) as houses:
        mean = alpha[county[houses]] + beta[0] * uranium[houses] + beta[1] * floor[houses]
        h.sample("log_radon", h.dist.Normal(mean, sigma_y), obs=radon[houses])


def radon_variable_intercept_slope_noncentered(
    h: Host, data: Data, subsample_size: int | None = None
) -> None:
    """Log radon with an intercept and a slope of the floor for each county.

    Sites: `mu_alpha`, `sigma_alpha`, `alpha_raw` (J,), `mu_beta`, `sigma_beta`, `beta_raw` (J,),
    `sigma_y`.
    """
    floor, radon = h.floats(data["floor_measure"]), h.floats(data["log_radon"])
    county = h.array(data["county_idx"]) - 1
    mu_alpha = h.sample("mu_alpha", h.dist.Normal(0.0, 10.0))
    sigma_alpha = h.sample("sigma_alpha", h.dist.HalfNormal(1.0))
    mu_beta = h.sample("mu_beta", h.dist.Normal(0.0, 10.0))
    sigma_beta = h.sample("sigma_beta", h.dist.HalfNormal(1.0))
    sigma_y = h.sample("sigma_y", h.dist.HalfNormal(1.0))
    with h.plate("counties", data["J"]):
        alpha_raw = h.sample("alpha_raw", h.dist.Normal(0.0, 1.0))
        beta_raw = h.sample("beta_raw", h.dist.Normal(0.0, 1.0))
        alpha = h.deterministic("alpha", mu_alpha + sigma_alpha * alpha_raw)
        beta = h.deterministic("beta", mu_beta + sigma_beta * beta_raw)
    with h.plate("houses", data["N"], subsample_size=subsample_size) as houses:
        here = county[houses]
        mean = alpha[here] + beta[here] * floor[houses]
        h.sample("log_radon", h.dist.Normal(mean, sigma_y), obs=radon[houses])


PROGRAMS: dict[str, Callable[..., None]] = {
    "eight_schools_centered": eight_schools_centered,
    "eight_schools_noncentered": eight_schools_noncentered,
    "radon_hierarchical_intercept_noncentered": radon_hierarchical_intercept_noncentered,
    "radon_variable_intercept_slope_noncentered": radon_variable_intercept_slope_noncentered,
}
