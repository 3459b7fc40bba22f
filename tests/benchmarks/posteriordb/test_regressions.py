"""The regressions of posteriordb in both hosts: reference draws, a plain density, and Stan."""

from __future__ import annotations

from collections.abc import Callable
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
from tests.benchmarks.posteriordb.standard import *  # noqa: F403
from tests.benchmarks.posteriordb.standard import Program

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)


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


# -- the check sees wrong priors ------------------------------------------------------------------


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


PROGRAMS = {
    # Rates are exponentials of cubic polynomials, beside which rounding would hide the prior.
    "GLM_Poisson_model": Program(poisson, spread=0.1, batch=7),
    "blr": Program(blr, batch=7),
    # Its 5000 rows take seconds.
    "diamonds": Program(diamonds, draws=2000, draws_if_wrong=1000),
    "kidscore_mom_work": Program(kidscore_mom_work, stan=None),
    "kidscore_momiq": Program(kidscore_momiq),
    "logmesquite": Program(logmesquite, stan=None),
    "mesquite": Program(mesquite),
    "nes": Program(nes),
}
WRONG = [
    ("official", "diamonds-diamonds", halved_prior),
    ("official", "kidiq-kidscore_momiq", flat_scale),
    ("official", "sblrc-blr", without_jacobian),
    ("official", "mesquite-mesquite", without_jacobian),
]


# -- the rest ---------------------------------------------------------------------------------


def test_both_hosts_have_the_same_programs() -> None:
    ours, theirs = programs("numpyro"), programs("pyro")
    assert sorted(ours) == sorted(theirs)
    assert set(PROGRAMS) <= set(ours)


@pytest.mark.parametrize("program_of", [numpyro_program, pyro_program])
def test_an_unknown_model_is_told_in_one_line(program_of: Callable[[str], Any]) -> None:
    with pytest.raises(
        UnknownProgramError, match=r"model 'diamond'; there are .*diamonds"
    ) as error:
        program_of("diamond")
    assert "\n" not in str(error.value)
