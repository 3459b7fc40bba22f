"""The benchmark's chains in Pyro, and steps of the library posteriors on the same network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn

import pyro_ext as px
from benchmarks.hosts import host_of
from benchmarks.sgmcmc import problems

Chains = dict[str, np.ndarray]
logistic = partial(problems.logistic, host_of("pyro"))
two_modes = partial(problems.two_modes, host_of("pyro"))


def draw(
    kernel: Any,
    args: tuple[Any, ...],
    options: dict[str, Any],
    *,
    num_samples: int,
    warmup: int,
    chains: int,
    initial: dict[str, np.ndarray] | None = None,
) -> Chains:
    """Draws (chains, draws, ...) by site."""
    pyro.set_rng_seed(0)
    start = None if initial is None else {k: torch.from_numpy(v) for k, v in initial.items()}
    mcmc = px.MCMC(kernel, num_samples, warmup, start, chains, disable_progbar=True)
    mcmc.run(*args, **options)
    draws = mcmc.get_samples(group_by_chain=True)
    return {name: np.asarray(values) for name, values in draws.items()}


def rows(x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
    """The data as tensors of the backend."""
    return torch.from_numpy(x), torch.from_numpy(y)


class Network(PyroModule):
    """The network of the comparison as a Pyro program with Normal priors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = PyroModule[nn.Linear](problems.INPUTS, problems.HIDDEN)
        self.second = PyroModule[nn.Linear](problems.HIDDEN, 1)
        for layer in (self.first, self.second):
            for name, value in list(layer.named_parameters()):
                shape = list(value.shape)
                prior = dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape))
                setattr(layer, name, PyroSample(prior))

    def forward(self, x: Tensor, y: Tensor) -> None:
        plate = pyro.plate("rows", len(x), subsample_size=problems.NETWORK_BATCH)
        with plate as chosen:
            pass
        mean = self.second(torch.tanh(self.first(x[chosen]))).squeeze(-1)
        with plate:
            pyro.sample("y", dist.Normal(mean, 0.1), obs=y[chosen])


def speed_cases(steps: int) -> dict[str, Callable[[], object]]:
    """So many steps of eight chains of SGLD on the network."""
    x, y = rows(*problems.network_rows())
    size, chains = 1e-6, problems.CHAINS
    kernel = px.SGLD(Network(), size)
    pyro.set_rng_seed(0)
    mcmc = px.MCMC(kernel, steps, 0, num_chains=chains, disable_progbar=True)
    cases: dict[str, Callable[[], object]] = {"pyro_ext": lambda: mcmc.run(x, y)}
    try:
        import posteriors
    except ImportError:
        return cases
    module = nn.Sequential(
        nn.Linear(problems.INPUTS, problems.HIDDEN), nn.Tanh(), nn.Linear(problems.HIDDEN, 1)
    )
    scale = len(x) / problems.NETWORK_BATCH

    def log_posterior(weights: Any, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        inputs, responses = batch
        mean = torch.func.functional_call(module, weights, (inputs,)).squeeze(-1)
        prior = sum(-0.5 * (value**2).sum() for value in weights.values())
        likelihood = -0.5 * (((responses - mean) / 0.1) ** 2).sum()
        return prior + scale * likelihood, torch.zeros(())

    algorithm = posteriors.sgmcmc.sgld.build(log_posterior, lr=size)

    def peer() -> object:
        drawn = []
        for _ in range(chains):
            weights = {name: value.detach().clone() for name, value in module.named_parameters()}
            state = algorithm.init(weights)
            for _ in range(steps):
                chosen = torch.randint(len(x), (problems.NETWORK_BATCH,))
                state, _ = algorithm.update(state, (x[chosen], y[chosen]))
                drawn.append(state.params)
        return drawn

    cases["posteriors"] = peer
    return cases
