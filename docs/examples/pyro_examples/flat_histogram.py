"""Masses of far modes by a flat histogram of energies, with ``SGLD``.

The program is the posterior and a factor, which divides its density by the estimate so far; the
estimate is an argument, so that one kernel serves all of it.

    python -m docs.examples.pyro_examples.flat_histogram --out out
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_ext as px
from docs.examples import flat_histogram_report as shared

#: Checks of values are Python, which a graph of all chains cannot have.
UNCHECKED: Any = {"validate_args": False}


def prior() -> Any:
    """Of the latent."""
    return dist.Normal(shared.MIDDLE, shared.PRIOR_SCALE, **UNCHECKED)


def log_likelihood(x: Tensor) -> Tensor:
    """Two modes."""
    masses = dist.Categorical(torch.tensor(shared.MASSES), **UNCHECKED)
    parts = dist.Normal(torch.tensor(shared.MEANS), 1.0, **UNCHECKED)
    modes = dist.MixtureSameFamily(masses, parts, **UNCHECKED)
    found: Tensor = modes.log_prob(x)
    return found


def energy_of(x: Tensor) -> Tensor:
    """Negative log density of the posterior, up to a constant."""
    found: Tensor = -(prior().log_prob(x) + log_likelihood(x))
    return found


def interpolated(x: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    """Values between those at even edges, and those of the ends outside."""
    width = edges[1] - edges[0]
    # A sum over bins, as positions of many chains cannot be indices of a graph.
    inside = (x.unsqueeze(-1) - edges[:-1]).clamp(min=torch.zeros_like(width), max=width)
    return values[0] + (inside * values.diff() / width).sum(-1)


def program(edges: Tensor, log_divisor: Tensor) -> None:
    """The posterior's density over the estimate at its energy."""
    x = pyro.sample("x", prior())
    pyro.factor("likelihood", log_likelihood(x))
    pyro.factor("flat", -interpolated(energy_of(x), edges, log_divisor))


def sampled(options: shared.Options) -> tuple[shared.Floats, shared.Floats]:
    """Draws (steps, chains), and the logarithms of their weights."""
    kernel = px.SGLD(program, options.step_size)
    edges = options.lowest + options.width * torch.arange(options.bins + 1.0)
    estimate = np.zeros(options.bins + 1)
    x = torch.full((options.chains,), shared.MEANS[0])
    draws, log_weights = [], []
    for number in range(1, options.steps // options.block + 1):
        log_divisor = torch.as_tensor(options.power * estimate, dtype=edges.dtype)
        kernel.initial_params = {"x": x}
        # The model is checked and traced the first time only; later calls bind another estimate.
        kernel.setup_chains(options.chains, 0, edges, log_divisor)
        found = []
        for _ in range(options.block):
            x = kernel.draw().z.reshape(-1)
            found.append(x)
        block = torch.stack(found)
        energy = energy_of(block)
        draws.append(np.asarray(block, np.float64))
        log_weights.append(np.asarray(interpolated(energy, edges, log_divisor), np.float64))
        estimate = shared.updated(options, estimate, np.asarray(energy, np.float64), number)
    return np.concatenate(draws), np.concatenate(log_weights)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Sample and judge."""
    options = shared.read_options(__doc__ or "", argv)
    pyro.set_rng_seed(options.seed)
    started = time.perf_counter()
    found = sampled(options)
    return shared.report("pyro", options, *found, time.perf_counter() - started)


if __name__ == "__main__":
    main(sys.argv[1:])
