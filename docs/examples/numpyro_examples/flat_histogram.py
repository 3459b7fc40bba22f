"""Masses of far modes by a flat histogram of energies, with ``SGLD``.

The program is the posterior and a factor, which divides its density by the estimate so far; the
estimate is an argument, so that one kernel serves all of it.

    python -m docs.examples.numpyro_examples.flat_histogram --out out
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array, lax, random

import numpyro_ext as nx
from docs.examples import flat_histogram_report as shared


def prior() -> Any:
    """Of the latent."""
    return dist.Normal(shared.MIDDLE, shared.PRIOR_SCALE)


def log_likelihood(x: Array) -> Array:
    """Two modes."""
    masses = dist.Categorical(jnp.array(shared.MASSES))
    modes = dist.MixtureSameFamily(masses, dist.Normal(jnp.array(shared.MEANS), 1.0))
    found: Array = modes.log_prob(x)
    return found


def energy_of(x: Array) -> Array:
    """Negative log density of the posterior, up to a constant."""
    found: Array = -(prior().log_prob(x) + log_likelihood(x))
    return found


def program(edges: Array, log_divisor: Array) -> None:
    """The posterior's density over the estimate at its energy."""
    x = numpyro.sample("x", prior())
    numpyro.factor("likelihood", log_likelihood(x))
    numpyro.factor("flat", -jnp.interp(energy_of(x), edges, log_divisor))


def sampled(options: shared.Options) -> tuple[shared.Floats, shared.Floats]:
    """Draws (steps, chains), and the logarithms of their weights."""
    kernel = nx.SGLD(program, options.step_size)
    edges = options.lowest + options.width * jnp.arange(options.bins + 1)
    estimate = np.zeros(options.bins + 1)
    keys = random.split(random.key(options.seed), options.chains)
    start = {"x": jnp.full(options.chains, shared.MEANS[0])}
    state = kernel.init(keys, 0, start, (edges, jnp.asarray(estimate)), {})

    @jax.jit
    def block(state: Any, log_divisor: Array) -> tuple[Any, tuple[Array, Array, Array]]:
        def step(state: Any, _: None) -> tuple[Any, tuple[Array, Array, Array]]:
            state = kernel.sample(state, (edges, log_divisor), {})
            energy = energy_of(state.z["x"])
            return state, (state.z["x"], energy, jnp.interp(energy, edges, log_divisor))

        return lax.scan(step, state, None, options.block)

    draws, log_weights = [], []
    for number in range(1, options.steps // options.block + 1):
        state, found = block(state, jnp.asarray(options.power * estimate))
        x, energy, log_weight = (np.asarray(each, np.float64) for each in found)
        draws.append(x)
        log_weights.append(log_weight)
        estimate = shared.updated(options, estimate, energy, number)
    return np.concatenate(draws), np.concatenate(log_weights)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Sample and judge."""
    options = shared.read_options(__doc__ or "", argv)
    started = time.perf_counter()
    found = sampled(options)
    return shared.report("numpyro", options, *found, time.perf_counter() - started)


if __name__ == "__main__":
    main(sys.argv[1:])
