"""An energy-based model of two moons, with negative samples from stochastic gradient Langevin.

The density is exp(-E(x)) times a wide Normal base, E being a small network. Its log likelihood has
the gradient

    mean over samples of the model of grad E  -  mean over the data of grad E,

so a training step needs samples of the model as it is now. As a program the model is one latent
site and a factor, and `SGLD` draws from it: a chain for each sample, a few steps from where the
chains were after the last update. The network's parameters are arguments of the program, so that
nothing is compiled again when they change (W. Chen, B. Li, R. Zhang and Y. Li, "Bayesian
Computation in Deep Learning", section 3.1, algorithm 3).

    python -m docs.examples.numpyro_examples.energy_based_model --out out
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import Array, lax, random

import numpyro_ext as nx
from docs.examples import energy_based_report as shared

WIDTHS = (2, 64, 64, 1)
Parameters = list[tuple[Array, Array]]


def initial_parameters(key: Array) -> Parameters:
    """Weights of variance 1 / inputs, and no biases, for every layer."""
    layers = zip(pairwise(WIDTHS), random.split(key, len(WIDTHS) - 1), strict=True)
    return [(random.normal(k, (i, o)) / jnp.sqrt(i), jnp.zeros(o)) for (i, o), k in layers]


def energy(parameters: Parameters, x: Array) -> Array:
    """Energies (...) of points (..., 2)."""
    *hidden, (weights, bias) = parameters
    for w, b in hidden:
        x = jax.nn.silu(x @ w + b)
    return (x @ weights + bias)[..., 0]


def program(parameters: Parameters) -> None:
    """The density as a program: the base is a prior, the energy a factor."""
    x = numpyro.sample("x", dist.Normal(0.0, shared.BASE_SCALE).expand([2]).to_event(1))
    numpyro.factor("energy", -energy(parameters, x))


def langevin(kernel: nx.SGLD, state: Any, parameters: Parameters, steps: int) -> Any:
    """The chains after so many steps, at these parameters."""
    return lax.fori_loop(0, steps, lambda _, s: kernel.sample(s, (parameters,), {}), state)


def start_chains(kernel: nx.SGLD, key: Array, parameters: Parameters, chains: int) -> Any:
    """Chains that begin at the base distribution."""
    place, key = random.split(key)
    start = {"x": shared.BASE_SCALE * random.normal(place, (chains, 2))}
    # Checks the model; this is work of the host and not of a training step.
    return kernel.init(random.split(key, chains), 0, start, (parameters,), {})


def train(options: shared.Options, data: Array, key: Array) -> tuple[nx.SGLD, Parameters]:
    """Maximum likelihood, with the chains' positions as the samples of the model."""
    first, second, loop = random.split(key, 3)
    kernel = nx.SGLD(program, options.step_size)
    parameters = initial_parameters(first)
    chains = start_chains(kernel, second, parameters, options.chains)
    optimizer = optax.adam(optax.cosine_decay_schedule(options.rate, options.steps))

    def contrast(parameters: Parameters, rows: Array, samples: Array) -> Array:
        return energy(parameters, rows).mean() - energy(parameters, samples).mean()

    def step(carry: tuple[Any, Any, Any], key: Array) -> tuple[tuple[Any, Any, Any], None]:
        parameters, moments, chains = carry
        row_key, noise_key = random.split(key)
        rows = data[random.randint(row_key, (options.chains,), 0, len(data))]
        if options.start != "persistent":
            noise = shared.BASE_SCALE * random.normal(noise_key, rows.shape)
            # Only the positions change: keys, counters and what was compiled go on.
            chains = chains._replace(z={"x": rows if options.start == "data" else noise})
        chains = langevin(kernel, chains, parameters, options.langevin_steps)
        gradient = jax.grad(contrast)(parameters, rows, chains.z["x"])
        moves, moments = optimizer.update(gradient, moments, parameters)
        return (optax.apply_updates(parameters, moves), moments, chains), None

    # One compiled program for the whole training.
    run = jax.jit(lambda carry, keys: lax.scan(step, carry, keys)[0])
    begin = (parameters, optimizer.init(parameters), chains)
    return kernel, run(begin, random.split(loop, options.steps))[0]


def generate(kernel: nx.SGLD, parameters: Parameters, key: Array, chains: int, steps: int) -> Array:
    """Samples (chains, 2) of the trained model, from fresh chains."""
    state = start_chains(kernel, key, parameters, chains)
    return jax.jit(partial(langevin, kernel, steps=steps))(state, parameters).z["x"]


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, generate, judge and draw."""
    options = shared.read_options(__doc__ or "", argv)
    data = jnp.asarray(shared.two_moons(2000, options.seed))
    training_key, sample_key = random.split(random.key(options.seed))
    started = time.perf_counter()
    kernel, parameters = train(options, data, training_key)
    samples = generate(kernel, parameters, sample_key, 1000, options.generation_steps)
    found = np.asarray(samples)
    seconds = time.perf_counter() - started
    return shared.report(
        "numpyro",
        options,
        lambda x: np.asarray(energy(parameters, jnp.asarray(x))),
        found,
        seconds,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
