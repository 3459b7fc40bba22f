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


def modes() -> Any:
    """The posterior."""
    masses = dist.Categorical(torch.tensor(shared.MASSES))
    return dist.MixtureSameFamily(masses, dist.Normal(torch.tensor(shared.MEANS), 1.0))


def interpolated(x: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    """Values between those at even edges, and those of the ends outside."""
    place = ((x - edges[0]) / (edges[1] - edges[0])).clamp(0.0, len(edges) - 1.0)
    left = place.detach().long().clamp(max=len(edges) - 2)
    return values[left] + (place - left) * (values[left + 1] - values[left])


def program(edges: Tensor, log_divisor: Tensor) -> None:
    """The posterior's density over the estimate at its energy."""
    x = pyro.sample("x", modes())
    pyro.factor("flat", -interpolated(-modes().log_prob(x), edges, log_divisor))


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
        energy = -modes().log_prob(block)
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
