"""The regressions of posteriordb in both hosts: reference draws, a plain density, and Stan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import torch
from scipy import stats

from benchmarks.posteriordb.programs import (
    UnknownProgramError,
    numpyro_program,
    programs,
    pyro_program,
)
from tests.benchmarks.posteriordb import checks

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

MODELS = (
    "GLM_Poisson_model",
    "blr",
    "diamonds",
    "kidscore_mom_work",
    "kidscore_momiq",
    "logmesquite",
    "mesquite",
    "nes",
)
IN_STAN = ("GLM_Poisson_model", "blr", "diamonds", "kidscore_momiq", "mesquite", "nes")
# Rounding of sums of a few thousand terms.
ROUNDING = 1e-11

backends = pytest.mark.parametrize("backend", checks.BACKENDS)

Sites = dict[str, Any]


# -- plain log densities of unconstrained values, up to a constant --------------------------------


def poisson(u: Sites, data: Sites) -> float:
    total = 0.0
    # log of p (1 - p), where p is the share of the interval that lies below the value.
    for name, bound in {"alpha": 20.0, "beta1": 10.0, "beta2": 10.0, "beta3": 10.0}.items():
        share = 1.0 / (1.0 + np.exp(-u[name]))
        total += np.log(share) + np.log(1.0 - share)
        u = {**u, name: bound * (2.0 * share - 1.0)}
    for x, count in zip(data["year"], data["C"], strict=True):
        rate = np.exp(u["alpha"] + u["beta1"] * x + u["beta2"] * x**2 + u["beta3"] * x**3)
        total += stats.poisson.logpmf(count, rate)
    return total


def normal_rows(mean: Any, u: Sites, y: Any) -> float:
    """Observations around the mean, and log of d sigma / d log sigma."""
    return stats.norm.logpdf(y, mean, np.exp(u["sigma"])).sum() + u["sigma"]


def blr(u: Sites, data: Sites) -> float:
    prior = stats.norm.logpdf(u["beta"], 0.0, 10.0).sum()
    prior += stats.norm.logpdf(np.exp(u["sigma"]), 0.0, 10.0)
    return prior + normal_rows(data["X"] @ u["beta"], u, data["y"])


def diamonds(u: Sites, data: Sites) -> float:
    prior = stats.norm.logpdf(u["b"], 0.0, 1.0).sum()
    prior += stats.t.logpdf((u["Intercept"] - 8.0) / 10.0, 3)
    prior += stats.t.logpdf(np.exp(u["sigma"]) / 10.0, 3)
    columns = [column - column.mean() for column in data["X"].T[1:]]
    mean = u["Intercept"] + sum(b * column for b, column in zip(u["b"], columns, strict=True))
    return prior + normal_rows(mean, u, data["Y"])


def kidscore_mom_work(u: Sites, data: Sites) -> float:
    effect = [0.0, *u["beta"][1:]]
    mean = [u["beta"][0] + effect[kind - 1] for kind in data["mom_work"]]
    return normal_rows(mean, u, data["kid_score"])


def kidscore_momiq(u: Sites, data: Sites) -> float:
    prior = stats.cauchy.logpdf(np.exp(u["sigma"]), 0.0, 2.5)
    return prior + normal_rows(u["beta"][0] + u["beta"][1] * data["mom_iq"], u, data["kid_score"])


def mesquite(u: Sites, data: Sites) -> float:
    names = ("diam1", "diam2", "canopy_height", "total_height", "density", "group")
    mean = u["beta"][0] + sum(b * data[name] for b, name in zip(u["beta"][1:], names, strict=True))
    return normal_rows(mean, u, data["weight"])


def logmesquite(u: Sites, data: Sites) -> float:
    logs = {name: np.log(value) for name, value in data.items() if name not in ("N", "group")}
    return mesquite(u, {**data, **logs})


def nes(u: Sites, data: Sites) -> float:
    b = u["beta"]
    age = np.array([0.0, b[3], b[4], b[5]])[data["age_discrete"] - 1]
    mean = b[0] + b[1] * data["real_ideo"] + b[2] * data["race_adj"] + age
    mean = mean + b[6] * data["educ1"] + b[7] * data["gender"] + b[8] * data["income"]
    return normal_rows(mean, u, data["partyid7"])


PLAIN: dict[str, Callable[[Sites, Sites], float]] = {
    "GLM_Poisson_model": poisson,
    "blr": blr,
    "diamonds": diamonds,
    "kidscore_mom_work": kidscore_mom_work,
    "kidscore_momiq": kidscore_momiq,
    "logmesquite": logmesquite,
    "mesquite": mesquite,
    "nes": nes,
}


@pytest.mark.parametrize(("where", "name"), checks.cases(MODELS))
def test_the_density_is_the_plain_one_in_both_hosts(where: str, name: str) -> None:
    posterior = checks.open_database(where)[name]
    data = posterior.data()
    numpyro_native = checks.native_of("numpyro", where, name)
    pyro_native = checks.native_of("pyro", where, name)
    # Rates are exponentials of cubic polynomials, beside which rounding would hide the prior.
    spread = 0.1 if posterior.model_name == "GLM_Poisson_model" else 0.5
    z = checks.random_positions(numpyro_native, 4, spread=spread)
    sites = checks.by_site(numpyro_native, z)
    points = [{key: value[i] for key, value in sites.items()} for i in range(len(z))]
    plain = np.array([PLAIN[posterior.model_name](point, data) for point in points])
    found = numpyro_native.log_density(z)
    assert checks.relative_spread(found - plain, plain) < ROUNDING
    checks.hosts_agree(numpyro_native, pyro_native, z, ROUNDING)


@backends
@pytest.mark.parametrize(("where", "name"), checks.cases(MODELS, with_draws=True))
def test_the_mean_score_over_reference_draws_is_zero(backend: str, where: str, name: str) -> None:
    posterior = checks.open_database(where)[name]
    native = checks.native_of(backend, where, name)
    # The 5000 rows of the diamonds take seconds.
    draws = 2000 if posterior.model_name == "diamonds" else 10_000
    found = checks.mean_score_is_zero(backend, posterior, draws=draws, native=native)
    print(f"{where} {name} {backend}: {found.worst:.2f} standard errors at most")


# -- the check sees wrong priors ------------------------------------------------------------------


Change = Callable[[Any, Callable[[Any], Any], Sites], Any]


def halved_prior(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when the prior of the diamonds' coefficients has half its scale."""
    b = sites["b"]
    return (dist.Normal(0.0, 0.5).log_prob(b) - dist.Normal(0.0, 1.0).log_prob(b)).sum()


def flat_scale(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when the prior of sigma is left out."""
    return -dist.HalfCauchy(2.5).log_prob(sites["sigma"])


def without_jacobian(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when the Jacobian of log sigma is forgotten."""
    return -log(sites["sigma"])


@backends
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("diamonds-diamonds", halved_prior),
        ("kidiq-kidscore_momiq", flat_scale),
        ("sblrc-blr", without_jacobian),
        ("mesquite-mesquite", without_jacobian),
    ],
)
def test_the_check_sees_a_wrong_density(backend: str, name: str, change: Change) -> None:
    if reason := checks.why_not_official():
        pytest.skip(reason)
    model = name.partition("-")[2]
    posterior = checks.open_database("official")[name]
    program = checks.planted(backend, model, change)
    wrong = checks.Native(backend, program, posterior.data())
    draws = 1000 if model == "diamonds" else 10_000
    with pytest.raises(AssertionError, match="standard error"):
        checks.mean_score_is_zero(backend, posterior, draws=draws, native=wrong)


# -- the rest ---------------------------------------------------------------------------------


@backends
@pytest.mark.parametrize("model", ["GLM_Poisson_model", "blr"])
def test_minibatches_cover_the_data_once(backend: str, model: str) -> None:
    (case, *_) = checks.cases([model])
    where, name = case.values
    native = checks.native_of(backend, where, name)
    program = partial(checks.program_of(backend, model), subsample_size=7)
    batched = checks.Native(backend, program, checks.open_database(where)[name].data())
    z = checks.random_positions(native, 3)
    np.testing.assert_allclose(batched.full_score(z), native.score(z), rtol=1e-9, atol=1e-9)


def test_both_hosts_have_the_same_programs() -> None:
    ours, theirs = programs("numpyro"), programs("pyro")
    assert sorted(ours) == sorted(theirs)
    assert set(MODELS) <= set(ours)


@pytest.mark.parametrize("program_of", [numpyro_program, pyro_program])
def test_an_unknown_model_is_told_in_one_line(program_of: Callable[[str], Any]) -> None:
    with pytest.raises(
        UnknownProgramError, match=r"model 'diamond'; there are .*diamonds"
    ) as error:
        program_of("diamond")
    assert "\n" not in str(error.value)


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
