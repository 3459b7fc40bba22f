"""An energy-based model of two moons, with negative samples from stochastic gradient Langevin.

The density is exp(-E(x)) times a wide Normal base, E being a small network. Its log likelihood has
the gradient

    mean over samples of the model of grad E  -  mean over the data of grad E,

so a training step needs samples of the model as it is now. As a program the model is one latent
site and a factor, and `SGLD` draws from it: a chain for each sample, a few steps from where the
chains were after the last update. The network's parameters are arguments of the program, so that
nothing is traced again when they change (W. Chen, B. Li, R. Zhang and Y. Li, "Bayesian
Computation in Deep Learning", section 3.1, algorithm 3).

    python -m docs.examples.pyro_examples.energy_based_model --out out
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_ext as px
from docs.examples import energy_based_report as shared

WIDTHS = (2, 64, 64, 1)
Parameters = list[tuple[Tensor, Tensor]]


def initial_parameters() -> Parameters:
    """Weights of variance 1 / inputs, and no biases, for every layer."""
    return [(torch.randn(i, o) / i**0.5, torch.zeros(o)) for i, o in pairwise(WIDTHS)]


def energy(parameters: Parameters, x: Tensor) -> Tensor:
    """Energies (...) of points (..., 2)."""
    *hidden, (weights, bias) = parameters
    for w, b in hidden:
        x = torch.nn.functional.silu(x @ w + b)
    return (x @ weights + bias)[..., 0]


def program(parameters: Parameters) -> None:
    """The density as a program: the base is a prior, the energy a factor."""
    x = pyro.sample("x", dist.Normal(0.0, shared.BASE_SCALE).expand([2]).to_event(1))
    pyro.factor("energy", -energy(parameters, x))


def langevin(kernel: px.SGLD, start: Tensor, parameters: Parameters, steps: int) -> Tensor:
    """Where chains that begin at the rows of `start` are after so many steps."""
    fixed = [(w.detach(), b.detach()) for w, b in parameters]
    kernel.initial_params = {"x": start}
    # The model is checked and traced the first time only; later calls bind other parameters.
    kernel.setup_chains(len(start), 0, fixed)
    for _ in range(steps):
        state = kernel.draw()
    return state.z


def train(options: shared.Options, data: Tensor) -> tuple[px.SGLD, Parameters]:
    """Maximum likelihood, with the chains' positions as the samples of the model."""
    kernel = px.SGLD(program, options.step_size)
    parameters = initial_parameters()
    tensors = [tensor.requires_grad_() for layer in parameters for tensor in layer]
    optimizer = torch.optim.Adam(tensors, lr=options.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    samples = shared.BASE_SCALE * torch.randn(options.chains, 2)
    for _ in range(options.steps):
        rows = data[torch.randint(len(data), (options.chains,))]
        if options.start != "persistent":
            noise = shared.BASE_SCALE * torch.randn(options.chains, 2)
            samples = rows if options.start == "data" else noise
        samples = langevin(kernel, samples, parameters, options.langevin_steps)
        optimizer.zero_grad()
        contrast = energy(parameters, rows).mean() - energy(parameters, samples).mean()
        contrast.backward()
        optimizer.step()
        schedule.step()
    return kernel, parameters


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, generate, judge and draw."""
    options = shared.read_options(__doc__ or "", argv)
    pyro.set_rng_seed(options.seed)
    data = torch.from_numpy(shared.two_moons(2000, options.seed))
    started = time.perf_counter()
    kernel, parameters = train(options, data)
    begin = shared.BASE_SCALE * torch.randn(1000, 2)
    samples = langevin(kernel, begin, parameters, options.generation_steps)
    seconds = time.perf_counter() - started

    def network_energy(x: shared.Floats) -> shared.Floats:
        with torch.no_grad():
            return np.asarray(energy(parameters, torch.from_numpy(x)))

    return shared.report("pyro", options, network_energy, np.asarray(samples), seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
