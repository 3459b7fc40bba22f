"""The hierarchical programs of posteriordb in both hosts: reference draws, plain density, Stan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import torch
from numpyro import handlers
from pyro import poutine
from scipy import stats

from benchmarks.posteriordb.programs import numpyro_program, pyro_program, site_map
from tests.benchmarks.posteriordb import checks
from tests.benchmarks.posteriordb.standard import *  # noqa: F403
from tests.benchmarks.posteriordb.standard import Program, backends

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

RADON = (
    "radon_hierarchical_intercept_noncentered",
    "radon_variable_intercept_slope_noncentered",
)


Sites = dict[str, Any]


# -- plain log densities of unconstrained values, up to a constant --------------------------------


def schools(u: Sites, data: Sites, *, centred: bool) -> float:
    mu, tau = u["mu"], np.exp(u["tau"])
    prior = stats.norm.logpdf(mu, 0.0, 5.0) + stats.cauchy.logpdf(tau, 0.0, 5.0) + u["tau"]
    total = prior
    for school in range(data["J"]):
        if centred:
            effect = u["theta"][school]
            total += stats.norm.logpdf(effect, mu, tau)
        else:
            effect = mu + tau * u["theta_raw"][school]
            total += stats.norm.logpdf(u["theta_raw"][school])
        total += stats.norm.logpdf(data["y"][school], effect, data["sigma"][school])
    return total


def half_normal(u: Sites, name: str) -> tuple[Any, Any]:
    """A positive value, and the log density of its logarithm."""
    value = np.exp(u[name])
    return value, stats.norm.logpdf(value) + u[name]


def radon_intercept(u: Sites, data: Sites) -> float:
    spread, spread_prior = half_normal(u, "sigma_alpha")
    sigma, sigma_prior = half_normal(u, "sigma_y")
    prior = spread_prior + sigma_prior + stats.norm.logpdf(u["mu_alpha"], 0.0, 10.0)
    prior += stats.norm.logpdf(u["beta"], 0.0, 10.0).sum() + stats.norm.logpdf(u["alpha_raw"]).sum()
    mean = np.empty(data["N"])
    for house, county in enumerate(data["county_idx"]):
        mean[house] = (
            u["mu_alpha"]
            + spread * u["alpha_raw"][county - 1]
            + u["beta"][0] * data["log_uppm"][house]
            + u["beta"][1] * data["floor_measure"][house]
        )
    return prior + stats.norm.logpdf(data["log_radon"], mean, sigma).sum()


def radon_slope(u: Sites, data: Sites) -> float:
    prior, scale = 0.0, {}
    for name in ("sigma_alpha", "sigma_beta", "sigma_y"):
        scale[name], term = half_normal(u, name)
        prior += term
    for name in ("mu_alpha", "mu_beta"):
        prior += stats.norm.logpdf(u[name], 0.0, 10.0)
    for name in ("alpha_raw", "beta_raw"):
        prior += stats.norm.logpdf(u[name]).sum()
    mean = np.empty(data["N"])
    for house, county in enumerate(data["county_idx"]):
        intercept = u["mu_alpha"] + scale["sigma_alpha"] * u["alpha_raw"][county - 1]
        slope = u["mu_beta"] + scale["sigma_beta"] * u["beta_raw"][county - 1]
        mean[house] = intercept + slope * data["floor_measure"][house]
    return prior + stats.norm.logpdf(data["log_radon"], mean, scale["sigma_y"]).sum()


# -- the check sees wrong densities ---------------------------------------------------------------


def without_jacobian(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when the Jacobian of log tau is forgotten."""
    return -log(sites["tau"])


def halved_scale(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when the prior of mu has half its scale."""
    mu = sites["mu"]
    return dist.Normal(0.0, 2.5).log_prob(mu) - dist.Normal(0.0, 5.0).log_prob(mu)


def halved_half_cauchy(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when the prior of tau has half its scale."""
    tau = sites["tau"]
    return dist.HalfCauchy(2.5).log_prob(tau) - dist.HalfCauchy(5.0).log_prob(tau)


PROGRAMS = {
    "eight_schools_centered": Program(partial(schools, centred=True)),
    "eight_schools_noncentered": Program(partial(schools, centred=False)),
    RADON[0]: Program(radon_intercept, batch=70),
    RADON[1]: Program(radon_slope, stan=None),
}
# Over draws of the centred program the score of tau has so wide a spread that a prior of half the
# scale lies within it.
WRONG = [
    ("embedded", f"eight_schools-eight_schools_{name}", change)
    for name, changes in {
        "centered": (without_jacobian, halved_scale),
        "noncentered": (without_jacobian, halved_scale, halved_half_cauchy),
    }.items()
    for change in changes
]


# -- the rest ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["eight_schools_noncentered", *RADON])
def test_the_maps_of_sites_are_inverse_to_each_other(model: str) -> None:
    rng = np.random.default_rng(0)
    scalars = ("mu", "mu_alpha", "mu_beta", "tau", "sigma_alpha", "sigma_beta")
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(scalars, (6,))
    shapes |= dict.fromkeys(("theta_raw", "alpha_raw", "beta_raw"), (6, 4))
    sites = {name: np.exp(rng.standard_normal(shape)) for name, shape in shapes.items()}
    parameters = site_map(model).parameters(sites)
    assert set(parameters) != set(sites)
    back = site_map(model).sites(parameters)
    assert set(back) == set(sites)
    for name in sites:
        np.testing.assert_allclose(back[name], sites[name], rtol=1e-12)


@backends
def test_the_map_gives_what_the_program_computes(backend: str) -> None:
    """The value `theta` that the program records is the parameter that the map gives."""
    model = "eight_schools_noncentered"
    data = checks.open_database("embedded")[f"eight_schools-{model}"].data()
    if backend == "numpyro":
        program = handlers.seed(numpyro_program(model), jax.random.key(0))
        sites = handlers.trace(program).get_trace(data)
    else:
        torch.manual_seed(0)
        sites = poutine.trace(pyro_program(model)).get_trace(data).nodes
    names = ("mu", "tau", "theta_raw", "theta")
    values = {name: np.asarray(sites[name]["value"])[None] for name in names}
    theta = values.pop("theta")
    np.testing.assert_allclose(site_map(model).parameters(values)["theta"], theta, rtol=1e-12)
