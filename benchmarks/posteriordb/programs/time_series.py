"""Time series: autoregression, GARCH(1, 1), and two hidden Markov models.

Each program takes the host, the data of its posterior as a dict, and where its observations are
independent given what came before, `subsample_size`, the number of them that are evaluated at once.
The recursions over time are the hosts' own (`numpyro/time_series`, `pyro/time_series`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.hosts import Host

Data = Mapping[str, Any]


def _recursions(h: Host) -> Any:
    return importlib.import_module(f"benchmarks.posteriordb.programs.{h.name}.time_series")


def arK(h: Host, data: Data, subsample_size: int | None = None) -> None:
    """Autoregression of order K; the first K values are given.

    Sites: `alpha`, `beta` (K,), whose first entry belongs to the value just before, and `sigma`.
    """
    order, y = data["K"], np.asarray(data["y"])
    count = len(y) - order
    before = h.floats(np.stack([y[order - lag :][:count] for lag in range(1, order + 1)], -1))
    alpha = h.sample("alpha", h.dist.Normal(0.0, 10.0))
    beta = h.sample("beta", h.dist.Normal(0.0, 10.0).expand([order]).to_event(1))
    sigma = h.sample("sigma", h.dist.HalfCauchy(2.5))
    after = h.floats(y[order:])
    with h.plate("time", count, subsample_size=subsample_size) as rows:
        h.sample("y", h.dist.Normal(alpha + before[rows] @ beta, sigma), obs=after[rows])


def garch11(h: Host, data: Data) -> None:
    """GARCH(1, 1): the variance follows the last squared deviation and the last variance.

    Sites: `mu`, `alpha0` > 0, and `alpha1`, `beta1` uniform on the triangle where both are
    positive and their sum is below one: the first margin of that is Beta(1, 2).
    """
    y = h.floats(data["y"])
    mu = h.improper("mu", "real")
    alpha0 = h.improper("alpha0", "positive")
    alpha1 = h.sample("alpha1", h.dist.Beta(1.0, 2.0))
    beta1 = h.sample("beta1", h.dist.Uniform(0.0, 1.0 - alpha1))
    first = h.floats(data["sigma1"]) ** 2
    variance = _recursions(h).variances(first, alpha0, alpha1, beta1, y - mu)
    with h.plate("time", len(y)):
        h.sample("y", h.dist.Normal(mu, h.xp.sqrt(variance)), obs=y)


def hmm_example(h: Host, data: Data) -> None:
    """Two hidden states with Normal observations of unit variance.

    Sites: `theta1`, `theta2`, the rows of the transition matrix, and `mu` (K,), positive and
    increasing.
    """
    states, y = data["K"], h.floats(data["y"])
    equal = h.dist.Dirichlet(h.xp.ones(states))
    rows = [h.sample(f"theta{j + 1}", equal) for j in range(states)]
    mu = h.improper("mu", "positive_ordered_vector", states)
    prior = h.dist.Normal(h.floats([3.0, 10.0]), 1.0)
    h.factor("mu_prior", prior.log_prob(mu).sum())
    chain = _recursions(h).HiddenMarkov(h.xp.stack(rows), h.dist.Normal(mu, 1.0), len(y))
    h.sample("y", chain, obs=y)


def hmm_drive_0(h: Host, data: Data) -> None:
    """Two hidden states of a basketball player, with two Exponential observations at each time.

    Sites: `theta1`, `theta2`, the rows of the transition matrix, and the rates `phi` (K,) of `u`
    and `lambda` (K,) of `v`, both positive and increasing.
    """
    states, observed = data["K"], h.floats(np.stack([data["u"], data["v"]], -1))
    of_rows = [h.dist.Dirichlet(row) for row in h.floats(data["alpha"])]
    rows = [h.sample(f"theta{j + 1}", of_rows[j]) for j in range(states)]
    prior = h.dist.Normal(h.floats([0.0, 3.0]), 1.0)
    rates = []
    for name in ("phi", "lambda"):
        rates.append(h.improper(name, "positive_ordered_vector", states))
        h.factor(f"{name}_prior", prior.log_prob(rates[-1]).sum())
    emission = h.dist.Exponential(h.xp.stack(rates, -1)).to_event(1)
    chain = _recursions(h).HiddenMarkov(h.xp.stack(rows), emission, len(observed))
    h.sample("uv", chain, obs=observed)


PROGRAMS: dict[str, Callable[..., None]] = {
    "arK": arK,
    "garch11": garch11,
    "hmm_drive_0": hmm_drive_0,
    "hmm_example": hmm_example,
}
