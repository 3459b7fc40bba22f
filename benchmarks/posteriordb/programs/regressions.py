"""Regressions: linear ones of four textbooks' data sets and a Poisson one.

Each program takes the host, and the data of its posterior as a dict. The rows of the data are a
plate, of which `subsample_size` rows are evaluated at once when it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.hosts import Host

Data = Mapping[str, Any]


def linear(
    h: Host,
    design: np.ndarray,
    response: Any,
    beta: Any,
    sigma: Any,
    subsample_size: int | None,
    intercept: Any = 0.0,
) -> None:
    """Normal observations `y` around a linear predictor.

    Parameters
    ----------
    design : array (N, K)
    response : array (N,)
    beta : array (K,)
    sigma : array ()
        Standard deviation of the observations.
    subsample_size : int, optional
    intercept : array (), optional
        For designs that have no column of ones.
    """
    columns, y = h.floats(design), h.floats(response)
    with h.plate("rows", len(response), subsample_size=subsample_size) as rows:
        mean = intercept + columns[rows] @ beta
        h.sample("y", h.dist.Normal(mean, sigma), obs=y[rows])


def with_flat_priors(
    h: Host, design: np.ndarray, response: Any, subsample_size: int | None
) -> None:
    """Linear regression whose coefficients `beta` and scale `sigma` have no stated prior."""
    beta = h.improper("beta", "real_vector", design.shape[1])
    sigma = h.improper("sigma", "positive")
    linear(h, design, response, beta, sigma, subsample_size)


def with_intercept(*columns: Any) -> np.ndarray:
    """Design matrix (N, 1 + K) of a column of ones and K columns."""
    return np.column_stack([np.ones(len(columns[0])), *columns])


def diamonds(h: Host, data: Data, subsample_size: int | None = None) -> None:
    """Log price of diamonds on 24 highly correlated predictors, as brms parametrises it.

    The first column of `X` is of ones and is left out; the others are centred, so that
    `Intercept` is the mean of the response. Sites: `b` (K - 1,), `Intercept`, `sigma`.
    """
    design = np.asarray(data["X"], float)[:, 1:]
    b = h.sample("b", h.dist.Normal(0.0, 1.0).expand([data["K"] - 1]).to_event(1))
    intercept = h.sample("Intercept", h.dist.StudentT(3.0, 8.0, 10.0))
    sigma = h.sample("sigma", h.dist.FoldedDistribution(h.dist.StudentT(3.0, 0.0, 10.0)))
    linear(h, design - design.mean(axis=0), data["Y"], b, sigma, subsample_size, intercept)


def blr(h: Host, data: Data, subsample_size: int | None = None) -> None:
    """Linear regression with wide Normal priors. Sites: `beta` (D,), `sigma`."""
    beta = h.sample("beta", h.dist.Normal(0.0, 10.0).expand([data["D"]]).to_event(1))
    sigma = h.sample("sigma", h.dist.HalfNormal(10.0))
    linear(h, np.asarray(data["X"], float), data["y"], beta, sigma, subsample_size)


def kidscore_momiq(h: Host, data: Data, subsample_size: int | None = None) -> None:
    """Test scores of children on their mothers' IQ. Sites: `beta` (2,), `sigma`."""
    beta = h.improper("beta", "real_vector", 2)
    sigma = h.sample("sigma", h.dist.HalfCauchy(2.5))
    linear(h, with_intercept(data["mom_iq"]), data["kid_score"], beta, sigma, subsample_size)


def kidscore_mom_work(h: Host, data: Data, subsample_size: int | None = None) -> None:
    """Test scores of children on four kinds of their mothers' work, the first of which is the
    baseline. Sites: `beta` (4,), `sigma`.
    """
    work = np.asarray(data["mom_work"])
    design = with_intercept(*(work == kind for kind in (2, 3, 4)))
    with_flat_priors(h, design, data["kid_score"], subsample_size)


def nes(h: Host, data: Data, subsample_size: int | None = None) -> None:
    """Party identification of voters on ideology, race, age group, education, sex and income.

    The youngest of four age groups is the baseline. Sites: `beta` (9,), `sigma`.
    """
    age = np.asarray(data["age_discrete"])
    design = with_intercept(
        data["real_ideo"],
        data["race_adj"],
        *(age == group for group in (2, 3, 4)),
        data["educ1"],
        data["gender"],
        data["income"],
    )
    with_flat_priors(h, design, data["partyid7"], subsample_size)


MESQUITE_SIZES = ("diam1", "diam2", "canopy_height", "total_height", "density")


def mesquite(h: Host, data: Data, subsample_size: int | None = None) -> None:
    """Yield of mesquite bushes on their sizes and group. Sites: `beta` (7,), `sigma`."""
    sizes = [data[name] for name in MESQUITE_SIZES]
    with_flat_priors(h, with_intercept(*sizes, data["group"]), data["weight"], subsample_size)


def logmesquite(h: Host, data: Data, subsample_size: int | None = None) -> None:
    """Log yield of mesquite bushes on their log sizes and group. Sites: `beta` (7,), `sigma`."""
    sizes = [np.log(data[name]) for name in MESQUITE_SIZES]
    design = with_intercept(*sizes, data["group"])
    with_flat_priors(h, design, np.log(data["weight"]), subsample_size)


def GLM_Poisson_model(h: Host, data: Data, subsample_size: int | None = None) -> None:
    """Counts of pairs of peregrines, whose log rate is a cubic polynomial of the scaled year.

    Sites: `alpha` uniform on (-20, 20), `beta1`, `beta2`, `beta3` uniform on (-10, 10).
    """
    year, counts = h.floats(data["year"]), h.array(data["C"])
    alpha = h.sample("alpha", h.dist.Uniform(-20.0, 20.0))
    betas = [h.sample(f"beta{power}", h.dist.Uniform(-10.0, 10.0)) for power in (1, 2, 3)]
    with h.plate("years", len(data["C"]), subsample_size=subsample_size) as years:
        x = year[years]
        log_rate = alpha + x * (betas[0] + x * (betas[1] + x * betas[2]))
        h.sample("C", h.dist.Poisson(h.xp.exp(log_rate)), obs=counts[years])


PROGRAMS: dict[str, Callable[..., None]] = {
    "GLM_Poisson_model": GLM_Poisson_model,
    "blr": blr,
    "diamonds": diamonds,
    "kidscore_mom_work": kidscore_mom_work,
    "kidscore_momiq": kidscore_momiq,
    "logmesquite": logmesquite,
    "mesquite": mesquite,
    "nes": nes,
}
