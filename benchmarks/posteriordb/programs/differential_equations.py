"""Programs whose means solve differential equations: populations, and a drug in blood.

The equations are solved with fixed steps. That has the same cost everywhere, and derivatives that
are those of the computed solution. The errors stated beside the programs are those of the logarithm
of a mean, against a solution of relative accuracy 1e-10, at draws of posteriordb's
`hudson_lynx_hare-lotka_volterra` and `one_comp_mm_elim_abs-one_comp_mm_elim_abs`. Far from those,
where solutions are less smooth, errors are larger, and a density may not be finite.

Each program takes the host, and the data of its posterior as a dict. The steps over time are the
hosts' own (`numpyro/differential_equations`, `pyro/differential_equations`).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.hosts import Host
from benchmarks.posteriordb.programs.steps import DRUG_FIRST_STEPS, DRUG_STEPS, drug_times

Data = Mapping[str, Any]


def _steps(h: Host) -> Any:
    module = f"benchmarks.posteriordb.programs.{h.name}.differential_equations"
    return importlib.import_module(module)


def lotka_volterra(h: Host, data: Data) -> None:
    """Pelts of prey and predator, a lognormal sample of their numbers.

    Sites: `theta` (4,): growth of prey and its loss per predator, loss of predators and their
    growth per prey; `z_init` (2,), the numbers at time zero; and `sigma` (2,), the errors' standard
    deviations on the logarithmic scale. With three steps a year the error is at most 9e-6, in the
    median 1e-6.
    """
    dist = h.dist
    loc, scale = h.floats([1.0, 0.05, 1.0, 0.05]), h.floats([0.5, 0.05, 0.5, 0.05])
    theta = _steps(h).positive_normal("theta", loc, scale)
    sigma = h.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))
    z_init = h.sample("z_init", dist.LogNormal(math.log(10.0), 1.0).expand([2]).to_event(1))
    log_start = h.xp.log(z_init)
    log_z = _steps(h).populations(theta, log_start, np.array([0.0, *data["ts"]]))
    first, y = h.floats(data["y_init"]), h.floats(data["y"])
    h.sample("y_init", dist.LogNormal(log_start, sigma).to_event(1), obs=first)
    with h.plate("years", len(y)):
        h.sample("y", dist.LogNormal(log_z, sigma).to_event(1), obs=y)


def one_comp_mm_elim_abs(h: Host, data: Data) -> None:
    """Concentration of a drug in one compartment, with Michaelis-Menten elimination.

    The dose is absorbed at the rate `k_a`; elimination saturates, with the constant `K_m` and the
    largest rate `V_m`; observations are log-normal with scale `sigma`. What has been absorbed is
    known in closed form, so that only what has been eliminated is integrated. With 48 steps the
    error is at most 4e-6, in the median 4e-7.
    """
    names = ("k_a", "K_m", "V_m", "sigma")
    k_a, k_m, v_m, sigma = (h.sample(name, h.dist.HalfCauchy(1.0)) for name in names)
    times = drug_times(data["t0"], data["times"])
    absorbed = data["D"] / data["V"] * -h.xp.expm1(-k_a * h.floats(times - data["t0"]))
    rate = v_m / data["V"]
    decrease = -rate * k_m

    def slope(above: Any, eliminated: Any) -> Any:
        # rate * c / (k_m + c) at the concentration c, with k_m + c = above - eliminated.
        return rate + _steps(h).quotient(decrease, above - eliminated)

    eliminated = _steps(h).runge_kutta(slope, h.xp.zeros(()), times, k_m + absorbed)
    concentration = (absorbed[2::2] - eliminated)[DRUG_FIRST_STEPS - 1 :: DRUG_STEPS]
    observed = h.floats(data["C_hat"])
    with h.plate("times", len(observed)):
        h.sample("C_hat", h.dist.LogNormal(h.xp.log(concentration), sigma), obs=observed)


PROGRAMS: dict[str, Callable[..., None]] = {
    "lotka_volterra": lotka_volterra,
    "one_comp_mm_elim_abs": one_comp_mm_elim_abs,
}
