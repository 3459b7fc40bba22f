"""The Gaussian processes of posteriordb in both hosts: plain densities, reference draws, Stan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from scipy import stats

from benchmarks.posteriordb.programs import site_map
from benchmarks.posteriordb.programs.gaussian_processes_sites import PLACES
from tests.benchmarks.posteriordb import checks, plain
from tests.benchmarks.posteriordb.standard import *  # noqa: F403
from tests.benchmarks.posteriordb.standard import Program, backends

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

# Points where the covariances are not those of white noise or of a constant.
CENTRES: dict[str, dict[str, Any]] = {
    "accel_gp": {"sdgp_1": 3.5, "lscale_1": -2.5, "Intercept_sigma": 2.0, "lscale_sigma_1": -3.0},
    "gp_pois_regr": {"rho": 1.6},
}


Sites = dict[str, Any]


# -- plain log densities ----------------------------------------------------------------------


def poisson_counts(u: Sites, data: Sites) -> float:
    rho, total = plain.positive(u["rho"])
    alpha, stretch = plain.positive(u["alpha"])
    total += stretch + stats.gamma.logpdf(rho, 25.0, scale=0.25)
    total += stats.norm.logpdf(alpha, 0.0, 2.0) + stats.norm.logpdf(u["f_tilde"]).sum()
    covariance = np.empty((data["N"], data["N"]))
    for i, one in enumerate(data["x"]):
        for j, other in enumerate(data["x"]):
            covariance[i, j] = alpha**2 * np.exp(-0.5 * ((one - other) / rho) ** 2)
            covariance[i, j] += 1e-10 if i == j else 0.0
    rates = np.exp(np.linalg.cholesky(covariance) @ u["f_tilde"])
    return total + stats.poisson.logpmf(data["k"], rates).sum()


def accelerations(u: Sites, data: Sites) -> float:
    total, parts = 0.0, []
    for name, loc, scale in (("", -13.0, 36.0), ("sigma_", 0.0, 10.0)):
        intercept = u["Intercept_sigma" if name else "Intercept"]
        sd, sd_stretch = plain.positive(u[f"sdgp_{name}1"])
        length, length_stretch = plain.positive(u[f"lscale_{name}1"])
        weights = u[f"zgp_{name}1"]
        total += stats.t.logpdf(intercept, 3, loc, scale) + sd_stretch + length_stretch
        total += stats.t.logpdf(sd, 3, 0.0, 36.0)
        total += stats.invgamma.logpdf(length, 1.124909, scale=0.0177)
        total += stats.norm.logpdf(weights).sum()
        values = np.full(data["N"], float(intercept))
        frequencies = data[f"slambda_{name}1"][:, 0]
        for basis, frequency, weight in zip(
            data[f"Xgp_{name}1"].T, frequencies, weights, strict=True
        ):
            # The spectral density of the squared exponential covariance in one dimension.
            density = (
                sd**2 * np.sqrt(2.0 * np.pi) * length * np.exp(-((length * frequency) ** 2) / 2)
            )
            values += np.sqrt(density) * weight * basis
        parts.append(values)
    mean, log_scale = parts
    return total + stats.norm.logpdf(data["Y"], mean, np.exp(log_scale)).sum()


# -- the check sees errors ---------------------------------------------------------------------


def without_jacobian(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when the Jacobian of log alpha is forgotten."""
    return -log(sites["alpha"])


def halved_scale(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when the prior of alpha has half its scale."""
    alpha = sites["alpha"]
    return dist.HalfNormal(1.0).log_prob(alpha) - dist.HalfNormal(2.0).log_prob(alpha)


def rate_for_scale(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when rho's Gamma has a smaller rate: 3 for 4."""
    rho = sites["rho"]
    return dist.Gamma(25.0, 3.0).log_prob(rho) - dist.Gamma(25.0, 4.0).log_prob(rho)


PROGRAMS = {
    "accel_gp": Program(accelerations, centre=CENTRES["accel_gp"], spread=0.3, batch=7),
    # A covariance matrix amplifies rounding by its condition.
    "gp_pois_regr": Program(
        poisson_counts,
        error=1e-8,
        rounding=1e-8,
        centre=CENTRES["gp_pois_regr"],
        spread=0.3,
        stan=1e-8,
    ),
}
WRONG = [
    ("official", "gp_pois_regr-gp_pois_regr", change)
    for change in (without_jacobian, halved_scale, rate_for_scale)
]


# -- the rest ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("where", "name"), checks.cases(["gp_pois_regr"]))
def test_the_site_map_is_that_of_the_program(where: str, name: str) -> None:
    posterior = checks.open_database(where)[name]
    np.testing.assert_array_equal(posterior.data()["x"], PLACES)
    native = checks.native_of("numpyro", where, name)
    sites = native.constrain(plain.positions(native, 5, CENTRES["gp_pois_regr"], 0.3))
    parameters = site_map("gp_pois_regr").parameters(sites)
    assert set(parameters) == {"rho", "alpha", "f"}
    rows = [{key: value[i] for key, value in sites.items()} for i in range(5)]
    for row, process in zip(rows, parameters["f"], strict=True):
        trace = jax.tree.map(np.asarray, deterministic(native, row))
        np.testing.assert_allclose(process, trace, rtol=1e-7, atol=1e-9)
    back = site_map("gp_pois_regr").sites(parameters)
    for key, value in sites.items():
        np.testing.assert_allclose(back[key], value, rtol=1e-5, atol=1e-5)


@backends
def test_a_covariance_that_cannot_be_factored_gives_no_density(backend: str) -> None:
    (case, *_) = checks.cases(["gp_pois_regr"])
    native = checks.native_of(backend, *case.values)
    right = checks.by_site(native, np.zeros((2, native.dim)))
    # A long length scale and a large variance, beside which the jitter is lost.
    right["rho"][0], right["alpha"][0] = 10.0, 15.0
    found = native.score(checks.joined(native, right))
    assert np.isnan(found[0]).any()
    assert np.isfinite(found[1]).all()


def deterministic(native: checks.Native, sites: Sites) -> Any:
    """Log rates `f` of the NumPyro program at values of its sites."""
    from numpyro import handlers

    return handlers.trace(handlers.substitute(native.model, sites)).get_trace()["f"]["value"]
