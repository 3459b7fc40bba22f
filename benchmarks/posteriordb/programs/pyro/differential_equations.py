"""Programs in Pyro whose means solve differential equations: populations, and a drug in blood.

The equations are solved with fixed steps. That has the same cost everywhere, and derivatives that
are those of the computed solution. The errors stated beside the programs are those of the logarithm
of a mean, against a solution of relative accuracy 1e-10, at draws of posteriordb's
`hudson_lynx_hare-lotka_volterra` and `one_comp_mm_elim_abs-one_comp_mm_elim_abs`. Far from those,
where solutions are less smooth, errors are larger, and a density may not be finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor

from benchmarks.posteriordb.programs.pyro.flat import Flat, as_tensor
from benchmarks.posteriordb.programs.steps import DRUG_FIRST_STEPS, DRUG_STEPS, drug_times, turns

Data = Mapping[str, Any]


def populations(theta: Tensor, log_start: Tensor, times: np.ndarray) -> Tensor:
    """Logarithms of the numbers of prey and predator, by the equations of Lotka and Volterra.

    The growth of either's logarithm depends on the other alone, so that each has an exact solution
    while the other stands still; they move in turns. What each does without the other, growth at
    a constant rate, is taken out of the logarithms and put back in the end.

    Parameters
    ----------
    theta : tensor (4,)
        Growth of prey and its loss per predator, loss of predators and their growth per prey.
    log_start : tensor (2,)
        At the first of the times.
    times : array (N + 1,)

    Returns
    -------
    tensor (N, 2)
        At the other times.
    """
    plan = turns(times)
    growth, loss_per_predator, loss, growth_per_prey = theta.unbind()
    first, first_clock, second, second_clock, ends = map(as_tensor, (*plan[:4], times))
    prey_factor = -loss_per_predator * first * torch.exp(-loss * second_clock)
    predator_factor = growth_per_prey * second * torch.exp(growth * first_clock)
    prey, predator = log_start[0] - growth * ends[0], log_start[1] + loss * ends[0]
    states = []
    factors = zip(prey_factor.unbind(), predator_factor.unbind(), strict=True)
    for number, (to_prey, to_predator) in enumerate(factors, start=1):
        prey = prey + to_prey * predator.exp()
        if number % plan.each:
            predator = predator + to_predator * prey.exp()
        else:
            states.append(torch.stack([prey, predator]))
    alone = torch.stack([growth, -loss])
    return torch.stack(states) + alone * ends[1:, None]


def lotka_volterra(data: Data) -> None:
    """Pelts of prey and predator, a lognormal sample of their numbers.

    Sites: `theta` (4,), see :func:`populations`; `z_init` (2,), the numbers at time zero; and
    `sigma` (2,), the errors' standard deviations on the logarithmic scale. With three steps a year
    the error is at most 9e-6, in the median 1e-6.
    """
    theta = pyro.sample("theta", Flat(constraints.independent(constraints.positive, 1), 4))
    loc, scale = torch.tensor([1.0, 0.05, 1.0, 0.05]), torch.tensor([0.5, 0.05, 0.5, 0.05])
    pyro.factor("theta_prior", dist.Normal(loc, scale).log_prob(theta).sum())
    sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))
    z_init = pyro.sample("z_init", dist.LogNormal(math.log(10.0), 1.0).expand([2]).to_event(1))
    log_start = z_init.log()
    log_z = populations(theta, log_start, np.array([0.0, *data["ts"]]))
    first, y = as_tensor(data["y_init"]), as_tensor(data["y"])
    pyro.sample("y_init", dist.LogNormal(log_start, sigma).to_event(1), obs=first)
    with pyro.plate("years", len(y)):
        pyro.sample("y", dist.LogNormal(log_z, sigma).to_event(1), obs=y)


def runge_kutta(
    slope: Callable[[Tensor, Tensor], Tensor], start: Tensor, times: np.ndarray, drive: Tensor
) -> Tensor:
    """Solution at the end of every step, by the classical method of order four.

    Parameters
    ----------
    slope : callable
        Derivative `slope(drive, state)`.
    start : tensor (...)
        State at the first of the times.
    times : array (2 S + 1,)
        Ends and middles of the steps.
    drive : tensor (2 S + 1, ...)
        What the slope needs besides the state, at the same times.

    Returns
    -------
    tensor (S, ...)
    """
    state, states, at = start, [], drive.unbind()
    for number, length in enumerate(np.diff(times[::2]).tolist()):
        now, middle, after = at[2 * number : 2 * number + 3]
        first = slope(now, state)
        second = slope(middle, torch.add(state, first, alpha=0.5 * length))
        third = slope(middle, torch.add(state, second, alpha=0.5 * length))
        fourth = slope(after, torch.add(state, third, alpha=length))
        weighted = torch.add(first + fourth, second + third, alpha=2.0)
        state = torch.add(state, weighted, alpha=length / 6.0)
        states.append(state)
    return torch.stack(states)


def one_comp_mm_elim_abs(data: Data) -> None:
    """Concentration of a drug in one compartment, with Michaelis-Menten elimination.

    The dose is absorbed at the rate `k_a`; elimination saturates, with the constant `K_m` and the
    largest rate `V_m`; observations are log-normal with scale `sigma`. What has been absorbed is
    known in closed form, so that only what has been eliminated is integrated. With 48 steps the
    error is at most 4e-6, in the median 4e-7.
    """
    names = ("k_a", "K_m", "V_m", "sigma")
    k_a, k_m, v_m, sigma = (pyro.sample(name, dist.HalfCauchy(1.0)) for name in names)
    times = drug_times(data["t0"], data["times"])
    absorbed = data["D"] / data["V"] * -torch.expm1(-k_a * as_tensor(times - data["t0"]))
    rate = v_m / data["V"]
    decrease = -rate * k_m

    def slope(above: Tensor, eliminated: Tensor) -> Tensor:
        # rate * c / (k_m + c) at the concentration c, with k_m + c = above - eliminated.
        return rate + decrease * (above - eliminated).reciprocal()

    eliminated = runge_kutta(slope, torch.zeros(()), times, k_m + absorbed)
    concentration = (absorbed[2::2] - eliminated)[DRUG_FIRST_STEPS - 1 :: DRUG_STEPS]
    observed = as_tensor(data["C_hat"])
    with pyro.plate("times", len(observed)):
        pyro.sample("C_hat", dist.LogNormal(concentration.log(), sigma), obs=observed)


PROGRAMS: dict[str, Callable[..., None]] = {
    "lotka_volterra": lotka_volterra,
    "one_comp_mm_elim_abs": one_comp_mm_elim_abs,
}
