"""Time series in Pyro: autoregression, GARCH(1, 1), and two hidden Markov models.

Each program takes the data of its posterior as a dict, and where its observations are independent
given what came before, `subsample_size`, the number of them that are evaluated at once. The
recursions over time take a number of operations that grows with the logarithm of its length, since
in torch each operation costs as much as much arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor

from benchmarks.posteriordb.programs.pyro.flat import Flat, as_tensor

Data = Mapping[str, Any]


def arK(data: Data, subsample_size: int | None = None) -> None:
    """Autoregression of order K; the first K values are given.

    Sites: `alpha`, `beta` (K,), whose first entry belongs to the value just before, and `sigma`.
    """
    order, y = data["K"], np.asarray(data["y"])
    count = len(y) - order
    before = as_tensor(np.stack([y[order - lag :][:count] for lag in range(1, order + 1)], -1))
    alpha = pyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = pyro.sample("beta", dist.Normal(0.0, 10.0).expand([order]).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfCauchy(2.5))
    after = as_tensor(y[order:])
    with pyro.plate("time", count, subsample_size=subsample_size) as rows:
        pyro.sample("y", dist.Normal(alpha + before[rows] @ beta, sigma), obs=after[rows])


def linear_recursion(inputs: Tensor, factor: Tensor) -> Tensor:
    """Solution of h_0 = inputs_0, h_t = inputs_t + factor * h_(t-1).

    Sums over the last 1, 2, 4, ... inputs, each from the one before, so that a series of length T
    takes log2(T) operations instead of T.

    Parameters
    ----------
    inputs : tensor (T,)
    factor : tensor ()
    """
    total, power, reach = inputs, factor, 1
    while reach < len(inputs):
        earlier = torch.nn.functional.pad(total[:-reach], (reach, 0))
        total = total + power * earlier
        power, reach = power * power, 2 * reach
    return total


def garch11(data: Data) -> None:
    """GARCH(1, 1): the variance follows the last squared deviation and the last variance.

    Sites: `mu`, `alpha0` > 0, and `alpha1`, `beta1` uniform on the triangle where both are
    positive and their sum is below one: the first margin of that is Beta(1, 2).
    """
    y = as_tensor(data["y"])
    mu = pyro.sample("mu", Flat(constraints.real))
    alpha0 = pyro.sample("alpha0", Flat(constraints.positive))
    alpha1 = pyro.sample("alpha1", dist.Beta(1.0, 2.0))
    beta1 = pyro.sample("beta1", dist.Uniform(0.0, 1.0 - alpha1))
    inputs = alpha0 + alpha1 * (y[:-1] - mu).square()
    first = torch.as_tensor(data["sigma1"], dtype=y.dtype).square().reshape(1)
    variance = linear_recursion(torch.cat([first, inputs]), beta1)
    with pyro.plate("time", len(y)):
        pyro.sample("y", dist.Normal(mu, variance.sqrt()), obs=y)


class HiddenMarkov(dist.DiscreteHMM):
    """Observations of a hidden Markov model of K states, whose states are summed out.

    The matrices of all steps are multiplied in pairs, in the logarithm of the number of steps.

    Parameters
    ----------
    theta : tensor (K, K)
        Row j holds the probabilities of the next state after state j.
    emission : distribution of batch shape (K,)
    duration : int
        Number of observations T.
    first : tensor (K,), optional
        Probabilities of the first state. Default: equal ones.
    """

    def __init__(
        self, theta: Tensor, emission: Any, duration: int, first: Tensor | None = None
    ) -> None:
        equal = torch.zeros_like(theta[0])
        odds = equal if first is None else first.log()
        # In Pyro a transition comes before the first observation: here one to the first state, from
        # wherever it may be.
        later = theta.log().expand(duration - 1, -1, -1)
        transitions = torch.cat([odds.expand(1, *theta.shape), later])
        super().__init__(equal, transitions, emission, duration=duration)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of a series, first axis T.

        Pyro's own takes a logarithm whose derivative `torch.func` cannot follow.
        """
        emission = self.observation_dist
        given_state = emission.log_prob(value.unsqueeze(-1 - emission.event_dim))
        steps = self.transition_logits + given_state.unsqueeze(-2)
        while len(steps) > 1:
            last = steps[len(steps) // 2 * 2 :]
            first, second = steps[: len(steps) - len(last)].unflatten(0, (-1, 2)).unbind(1)
            pairs = (first.unsqueeze(-1) + second.unsqueeze(-3)).logsumexp(-2)
            steps = torch.cat([pairs, last])
        return (self.initial_logits.unsqueeze(-1) + steps[0]).flatten().logsumexp(0)


def hmm_example(data: Data) -> None:
    """Two hidden states with Normal observations of unit variance.

    Sites: `theta1`, `theta2`, the rows of the transition matrix, and `mu` (K,), positive and
    increasing.
    """
    states, y = data["K"], as_tensor(data["y"])
    rows = [pyro.sample(f"theta{j + 1}", dist.Dirichlet(torch.ones(states))) for j in range(states)]
    mu = pyro.sample("mu", Flat(constraints.positive_ordered_vector, states))
    prior = dist.Normal(torch.tensor([3.0, 10.0]), 1.0)
    pyro.factor("mu_prior", prior.log_prob(mu).sum())
    pyro.sample("y", HiddenMarkov(torch.stack(rows), dist.Normal(mu, 1.0), len(y)), obs=y)


def hmm_drive_0(data: Data) -> None:
    """Two hidden states of a basketball player, with two Exponential observations at each time.

    Sites: `theta1`, `theta2`, the rows of the transition matrix, and the rates `phi` (K,) of `u`
    and `lambda` (K,) of `v`, both positive and increasing.
    """
    states = data["K"]
    observed = torch.stack([as_tensor(data["u"]), as_tensor(data["v"])], -1)
    concentration = as_tensor(data["alpha"])
    rows = [pyro.sample(f"theta{j + 1}", dist.Dirichlet(concentration[j])) for j in range(states)]
    prior = dist.Normal(torch.tensor([0.0, 3.0]), 1.0)
    rates = []
    for name in ("phi", "lambda"):
        rates.append(pyro.sample(name, Flat(constraints.positive_ordered_vector, states)))
        pyro.factor(f"{name}_prior", prior.log_prob(rates[-1]).sum())
    emission = dist.Exponential(torch.stack(rates, -1)).to_event(1)
    chain = HiddenMarkov(torch.stack(rows), emission, len(observed))
    pyro.sample("uv", chain, obs=observed)


PROGRAMS: dict[str, Callable[..., None]] = {
    "arK": arK,
    "garch11": garch11,
    "hmm_drive_0": hmm_drive_0,
    "hmm_example": hmm_example,
}
