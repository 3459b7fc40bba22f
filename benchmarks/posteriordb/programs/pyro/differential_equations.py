"""Steps over time of the differential equations in Pyro."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor

from benchmarks.posteriordb.programs.pyro.flat import Flat, as_tensor
from benchmarks.posteriordb.programs.steps import turns


def positive_normal(name: str, loc: Tensor, scale: Tensor) -> Tensor:
    """A vector whose entries are Normal, and positive."""
    positive = constraints.independent(constraints.positive, 1)
    value: Tensor = pyro.sample(name, Flat(positive, len(loc)))
    pyro.factor(f"{name}_prior", dist.Normal(loc, scale).log_prob(value).sum())
    return value


def quotient(above: Tensor, below: Tensor) -> Tensor:
    """One over the other."""
    return above * below.reciprocal()


def populations(theta: Tensor, log_start: Tensor, times: np.ndarray) -> Tensor:
    """Logarithms (N, 2) of the numbers of prey and predator; see the NumPyro module."""
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


def runge_kutta(
    slope: Callable[[Tensor, Tensor], Tensor], start: Tensor, times: np.ndarray, drive: Tensor
) -> Tensor:
    """Solution (S, ...) at the end of every step; see the NumPyro module."""
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
