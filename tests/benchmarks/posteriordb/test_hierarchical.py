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

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

SCHOOLS = ("eight_schools_centered", "eight_schools_noncentered")
RADON = (
    "radon_hierarchical_intercept_noncentered",
    "radon_variable_intercept_slope_noncentered",
)
IN_STAN = (*SCHOOLS, RADON[0])
# Rounding of sums of ten thousand terms.
ROUNDING = 1e-11

backends = pytest.mark.parametrize("backend", checks.BACKENDS)

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


PLAIN: dict[str, Callable[[Sites, Sites], float]] = {
    "eight_schools_centered": partial(schools, centred=True),
    "eight_schools_noncentered": partial(schools, centred=False),
    "radon_hierarchical_intercept_noncentered": radon_intercept,
    "radon_variable_intercept_slope_noncentered": radon_slope,
}


@pytest.mark.parametrize(("where", "name"), checks.cases((*SCHOOLS, *RADON)))
def test_the_density_is_the_plain_one_in_both_hosts(where: str, name: str) -> None:
    posterior = checks.open_database(where)[name]
    data = posterior.data()
    numpyro_native = checks.native_of("numpyro", where, name)
    pyro_native = checks.native_of("pyro", where, name)
    z = checks.random_positions(numpyro_native, 4)
    sites = checks.by_site(numpyro_native, z)
    points = [{key: value[i] for key, value in sites.items()} for i in range(len(z))]
    plain = np.array([PLAIN[posterior.model_name](point, data) for point in points])
    found = numpyro_native.log_density(z)
    assert checks.relative_spread(found - plain, plain) < ROUNDING
    checks.hosts_agree(numpyro_native, pyro_native, z, ROUNDING)


@backends
@pytest.mark.parametrize(("where", "name"), checks.cases((*SCHOOLS, *RADON), with_draws=True))
def test_the_mean_score_over_reference_draws_is_zero(backend: str, where: str, name: str) -> None:
    posterior = checks.open_database(where)[name]
    native = checks.native_of(backend, where, name)
    found = checks.mean_score_is_zero(backend, posterior, draws=10_000, native=native)
    print(f"{where} {name} {backend}: {found.worst:.2f} standard errors at most")


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


# Over draws of the centred program the score of tau has so wide a spread that a prior of half the
# scale lies within it.
VISIBLE = [
    (without_jacobian, "eight_schools_centered"),
    (without_jacobian, "eight_schools_noncentered"),
    (halved_scale, "eight_schools_centered"),
    (halved_scale, "eight_schools_noncentered"),
    (halved_half_cauchy, "eight_schools_noncentered"),
]


@backends
@pytest.mark.parametrize(("change", "model"), VISIBLE)
def test_the_check_sees_a_wrong_density(
    backend: str, change: Callable[..., Any], model: str
) -> None:
    posterior = checks.open_database("embedded")[f"eight_schools-{model}"]
    program = checks.planted(backend, model, change)
    wrong = checks.Native(backend, program, posterior.data())
    with pytest.raises(AssertionError, match="standard error"):
        checks.mean_score_is_zero(backend, posterior, draws=10_000, native=wrong)


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


@backends
def test_minibatches_cover_the_data_once(backend: str) -> None:
    model = RADON[0]
    (case, *_) = checks.cases([model])
    where, name = case.values
    native = checks.native_of(backend, where, name)
    program = partial(checks.program_of(backend, model), subsample_size=70)
    batched = checks.Native(backend, program, checks.open_database(where)[name].data())
    z = checks.random_positions(native, 3)
    np.testing.assert_allclose(batched.full_score(z), native.score(z), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@backends
@pytest.mark.parametrize(("where", "name"), checks.cases(IN_STAN))
def test_the_difference_to_stan_is_constant(backend: str, where: str, name: str) -> None:
    if reason := checks.why_no_stan():
        pytest.skip(reason)
    posterior = checks.open_database(where)[name]
    native = checks.native_of(backend, where, name)
    found = checks.stan_difference_is_constant(
        backend, posterior, ROUNDING, wide=True, native=native
    )
    print(f"{where} {name} {backend}: {found:.1e}")
