"""Steps over time of the differential equations in NumPyro, which are `lax.scan`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array

from benchmarks.posteriordb.programs.steps import turns


def positive_normal(name: str, loc: Array, scale: Array) -> Array:
    """A vector whose entries are Normal, and positive."""
    prior = dist.TruncatedNormal(loc, scale, low=0.0).to_event(1)
    value: Array = numpyro.sample(name, prior)
    return value


def quotient(above: Array, below: Array) -> Array:
    """One over the other."""
    return above / below


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
