"""Programs in NumPyro whose means solve differential equations: populations, and a drug in blood.

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

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array

from benchmarks.posteriordb.programs.steps import DRUG_FIRST_STEPS, DRUG_STEPS, drug_times, turns

Data = Mapping[str, Any]


def populations(theta: Array, log_start: Array, times: np.ndarray) -> Array:
    """Logarithms of the numbers of prey and predator, by the equations of Lotka and Volterra.

    The growth of either's logarithm depends on the other alone, so that each has an exact solution
    while the other stands still; they move in turns. What each does without the other, growth at
    a constant rate, is taken out of the logarithms and put back in the end.

    Parameters
    ----------
    theta : array (4,)
        Growth of prey and its loss per predator, loss of predators and their growth per prey.
    log_start : array (2,)
        At the first of the times.
    times : array (N + 1,)

    Returns
    -------
    array (N, 2)
        At the other times.
    """
    plan = turns(times)
    growth, loss_per_predator, loss, growth_per_prey = theta
    prey_factor = -loss_per_predator * plan.first * jnp.exp(-loss * plan.second_clock)
    predator_factor = growth_per_prey * plan.second * jnp.exp(growth * plan.first_clock)

    def turn(state: tuple[Array, Array], factors: tuple[Array, Array]) -> Any:
        prey, predator = state
        prey = prey + factors[0] * jnp.exp(predator)
        predator = predator + factors[1] * jnp.exp(prey)
        return (prey, predator), (prey, predator)

    start = log_start[0] - growth * times[0], log_start[1] + loss * times[0]
    states = jax.lax.scan(turn, start, (prey_factor, predator_factor))[1]
    prey, predator = (values[plan.each - 1 :: plan.each] for values in states)
    return jnp.stack([prey + growth * times[1:], predator - loss * times[1:]], -1)


def lotka_volterra(data: Data) -> None:
    """Pelts of prey and predator, a lognormal sample of their numbers.

    Sites: `theta` (4,), see :func:`populations`; `z_init` (2,), the numbers at time zero; and
    `sigma` (2,), the errors' standard deviations on the logarithmic scale. With three steps a year
    the error is at most 9e-6, in the median 1e-6.
    """
    loc, scale = jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05])
    theta = numpyro.sample("theta", dist.TruncatedNormal(loc, scale, low=0.0).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))
    z_init = numpyro.sample("z_init", dist.LogNormal(math.log(10.0), 1.0).expand([2]).to_event(1))
    log_start = jnp.log(z_init)
    log_z = populations(theta, log_start, np.array([0.0, *data["ts"]]))
    first, y = data["y_init"], data["y"]
    numpyro.sample("y_init", dist.LogNormal(log_start, sigma).to_event(1), obs=first)
    with numpyro.plate("years", len(y)):
        numpyro.sample("y", dist.LogNormal(log_z, sigma).to_event(1), obs=y)


def runge_kutta(
    slope: Callable[[Array, Array], Array], start: Array, times: np.ndarray, drive: Array
) -> Array:
    """Solution at the end of every step, by the classical method of order four.

    Parameters
    ----------
    slope : callable
        Derivative `slope(drive, state)`.
    start : array (...)
        State at the first of the times.
    times : array (2 S + 1,)
        Ends and middles of the steps.
    drive : array (2 S + 1, ...)
        What the slope needs besides the state, at the same times.

    Returns
    -------
    array (S, ...)
    """

    def step(state: Array, inputs: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        length, now, middle, after = inputs
        first = slope(now, state)
        second = slope(middle, state + 0.5 * length * first)
        third = slope(middle, state + 0.5 * length * second)
        fourth = slope(after, state + length * third)
        state = state + length / 6.0 * (first + fourth + 2.0 * (second + third))
        return state, state

    lengths = jnp.asarray(np.diff(times[::2]))
    return jax.lax.scan(step, start, (lengths, drive[:-1:2], drive[1::2], drive[2::2]))[1]


def one_comp_mm_elim_abs(data: Data) -> None:
    """Concentration of a drug in one compartment, with Michaelis-Menten elimination.

    The dose is absorbed at the rate `k_a`; elimination saturates, with the constant `K_m` and the
    largest rate `V_m`; observations are log-normal with scale `sigma`. What has been absorbed is
    known in closed form, so that only what has been eliminated is integrated. With 48 steps the
    error is at most 4e-6, in the median 4e-7.
    """
    names = ("k_a", "K_m", "V_m", "sigma")
    k_a, k_m, v_m, sigma = (numpyro.sample(name, dist.HalfCauchy(1.0)) for name in names)
    times = drug_times(data["t0"], data["times"])
    absorbed = data["D"] / data["V"] * -jnp.expm1(-k_a * jnp.asarray(times - data["t0"]))
    rate = v_m / data["V"]
    decrease = -rate * k_m

    def slope(above: Array, eliminated: Array) -> Array:
        # rate * c / (k_m + c) at the concentration c, with k_m + c = above - eliminated.
        return rate + decrease / (above - eliminated)

    eliminated = runge_kutta(slope, jnp.zeros(()), times, k_m + absorbed)
    concentration = (absorbed[2::2] - eliminated)[DRUG_FIRST_STEPS - 1 :: DRUG_STEPS]
    observed = jnp.asarray(data["C_hat"])
    with numpyro.plate("times", len(observed)):
        numpyro.sample("C_hat", dist.LogNormal(jnp.log(concentration), sigma), obs=observed)


PROGRAMS: dict[str, Callable[..., None]] = {
    "lotka_volterra": lotka_volterra,
    "one_comp_mm_elim_abs": one_comp_mm_elim_abs,
}
