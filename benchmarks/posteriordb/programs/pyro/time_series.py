"""Recursions over time in Pyro.

They take a number of operations that grows with the logarithm of the length, since in torch each
operation costs as much as much arithmetic.
"""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor


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


def variances(
    first: Tensor, alpha0: Tensor, alpha1: Tensor, beta1: Tensor, deviations: Tensor
) -> Tensor:
    """Variances (T,) of GARCH(1, 1), of deviations (T,) from the mean, the first one given."""
    inputs = alpha0 + alpha1 * deviations[:-1].square()
    return linear_recursion(torch.cat([first.reshape(1), inputs]), beta1)


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
