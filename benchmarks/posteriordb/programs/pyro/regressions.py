"""Regressions in Pyro: linear ones of four textbooks' data sets and a Poisson one.

Each program takes the data of its posterior as a dict. The rows of the data are a plate, of which
`subsample_size` rows are evaluated at once when it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
from pyro.distributions import constraints
from torch import Tensor

from benchmarks.posteriordb.programs.pyro.flat import Flat, as_tensor

Data = Mapping[str, Any]


def linear(
    design: np.ndarray,
    response: Any,
    beta: Tensor,
    sigma: Tensor,
    subsample_size: int | None,
    intercept: Tensor | float = 0.0,
) -> None:
    """Normal observations `y` around a linear predictor.

    Parameters
    ----------
    design : array (N, K)
    response : array (N,)
    beta : tensor (K,)
    sigma : tensor ()
        Standard deviation of the observations.
    subsample_size : int, optional
    intercept : tensor (), optional
        For designs that have no column of ones.
    """
    columns, y = as_tensor(design), as_tensor(response)
    with pyro.plate("rows", len(response), subsample_size=subsample_size) as rows:
        mean = intercept + columns[rows] @ beta
        pyro.sample("y", dist.Normal(mean, sigma), obs=y[rows])


def with_flat_priors(design: np.ndarray, response: Any, subsample_size: int | None) -> None:
    """Linear regression whose coefficients `beta` and scale `sigma` have no stated prior."""
    beta = pyro.sample("beta", Flat(constraints.real_vector, design.shape[1]))
    sigma = pyro.sample("sigma", Flat(constraints.positive))
    linear(design, response, beta, sigma, subsample_size)


def with_intercept(*columns: Any) -> np.ndarray:
    """Design matrix (N, 1 + K) of a column of ones and K columns."""
    return np.column_stack([np.ones(len(columns[0])), *columns])


def diamonds(data: Data, subsample_size: int | None = None) -> None:
    """Log price of diamonds on 24 highly correlated predictors, as brms parametrises it.

    The first column of `X` is of ones and is left out; the others are centred, so that
    `Intercept` is the mean of the response. Sites: `b` (K - 1,), `Intercept`, `sigma`.
    """
    design = np.asarray(data["X"], float)[:, 1:]
    b = pyro.sample("b", dist.Normal(0.0, 1.0).expand([data["K"] - 1]).to_event(1))
    intercept = pyro.sample("Intercept", dist.StudentT(3.0, 8.0, 10.0))
    sigma = pyro.sample("sigma", dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 10.0)))
    linear(design - design.mean(axis=0), data["Y"], b, sigma, subsample_size, intercept)


def blr(data: Data, subsample_size: int | None = None) -> None:
    """Linear regression with wide Normal priors. Sites: `beta` (D,), `sigma`."""
    beta = pyro.sample("beta", dist.Normal(0.0, 10.0).expand([data["D"]]).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(10.0))
    linear(np.asarray(data["X"], float), data["y"], beta, sigma, subsample_size)


def kidscore_momiq(data: Data, subsample_size: int | None = None) -> None:
    """Test scores of children on their mothers' IQ. Sites: `beta` (2,), `sigma`."""
    beta = pyro.sample("beta", Flat(constraints.real_vector, 2))
    sigma = pyro.sample("sigma", dist.HalfCauchy(2.5))
    linear(with_intercept(data["mom_iq"]), data["kid_score"], beta, sigma, subsample_size)


def kidscore_mom_work(data: Data, subsample_size: int | None = None) -> None:
    """Test scores of children on four kinds of their mothers' work, the first of which is the
    baseline. Sites: `beta` (4,), `sigma`.
    """
    work = np.asarray(data["mom_work"])
    design = with_intercept(*(work == kind for kind in (2, 3, 4)))
    with_flat_priors(design, data["kid_score"], subsample_size)


def nes(data: Data, subsample_size: int | None = None) -> None:
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
    with_flat_priors(design, data["partyid7"], subsample_size)


MESQUITE_SIZES = ("diam1", "diam2", "canopy_height", "total_height", "density")


def mesquite(data: Data, subsample_size: int | None = None) -> None:
    """Yield of mesquite bushes on their sizes and group. Sites: `beta` (7,), `sigma`."""
    sizes = [data[name] for name in MESQUITE_SIZES]
    with_flat_priors(with_intercept(*sizes, data["group"]), data["weight"], subsample_size)


def logmesquite(data: Data, subsample_size: int | None = None) -> None:
    """Log yield of mesquite bushes on their log sizes and group. Sites: `beta` (7,), `sigma`."""
    sizes = [np.log(data[name]) for name in MESQUITE_SIZES]
    design = with_intercept(*sizes, data["group"])
    with_flat_priors(design, np.log(data["weight"]), subsample_size)


def GLM_Poisson_model(data: Data, subsample_size: int | None = None) -> None:
    """Counts of pairs of peregrines, whose log rate is a cubic polynomial of the scaled year.

    Sites: `alpha` uniform on (-20, 20), `beta1`, `beta2`, `beta3` uniform on (-10, 10).
    """
    year, counts = as_tensor(data["year"]), as_tensor(data["C"])
    alpha = pyro.sample("alpha", dist.Uniform(-20.0, 20.0))
    betas = [pyro.sample(f"beta{power}", dist.Uniform(-10.0, 10.0)) for power in (1, 2, 3)]
    with pyro.plate("years", len(data["C"]), subsample_size=subsample_size) as years:
        x = year[years]
        log_rate = alpha + x * (betas[0] + x * (betas[1] + x * betas[2]))
        pyro.sample("C", dist.Poisson(log_rate.exp()), obs=counts[years])


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
