"""Denoising score matching, and samples by Langevin steps through falling noise.

Rows x of the data get noise, x + s e, of many standard deviations s. The scores of what comes out
are learnt as the gradient of an energy E(x, s), from the noise itself (P. Vincent 2011): the mean
of

    |s grad E(x + s e, s) - e|^2

is least where -grad E is the score of the noisy data. Samples begin at the widest noise and take
steps of Langevin dynamics at each level in turn (Y. Song and S. Ermon 2019; W. Chen, B. Li, R.
Zhang and Y. Li, "Bayesian Computation in Deep Learning", sections 3.1.2 and 3.2). With
``--sampler predictor-corrector`` they follow the diffusion that adds the noise, dx = g(t) dw,
backwards in time: a step of that stochastic differential equation from each of many levels to the
next, and one of Langevin dynamics there (Y. Song et al. 2021).

The energy is a program: a Normal prior, which is the noise's and the data's spread, and a factor.
Its latent is u = x / s, so that one `SGLD` with one step size serves all levels; the level and the
network's parameters are arguments.

    python -m docs.examples.numpyro_examples.score_matching --out out --data moons
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
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
from docs.examples import score_matching_report as shared

Parameters = list[tuple[Array, Array]]


def initial_parameters(key: Array, dim: int, hidden: int) -> Parameters:
    """Weights of variance 1 / inputs, and no biases, for every layer."""
    widths = (dim + 1, hidden, hidden, 1)
    layers = zip(pairwise(widths), random.split(key, len(widths) - 1), strict=True)
    return [(random.normal(k, (i, o)) / jnp.sqrt(i), jnp.zeros(o)) for (i, o), k in layers]


def tilt(parameters: Parameters, x: Array, level: Array) -> Array:
    """The part of the energy that is learnt, of one point (D,) at a level of noise."""
    h = jnp.append(x, jnp.log(level))
    *hidden, (weights, bias) = parameters
    for w, b in hidden:
        h = jax.nn.silu(h @ w + b)
    return (h @ weights + bias)[0] / level


def energy(parameters: Parameters, x: Array, level: Array) -> Array:
    """The whole energy: that of a Normal with the variance of data and noise, and the tilt."""
    return 0.5 * (x**2).sum() / (1.0 + level**2) + tilt(parameters, x, level)


def program(parameters: Parameters, level: Array, dim: int) -> None:
    """The density of u = x / level."""
    scale = jnp.sqrt(1.0 + level**2) / level
    u = numpyro.sample("u", dist.Normal(0.0, scale).expand([dim]).to_event(1))
    numpyro.factor("tilt", -tilt(parameters, level * u, level))


def train(options: shared.Options, data: Array, key: Array) -> tuple[Parameters, float]:
    """The parameters, and the mean of the last losses."""
    first, loop = random.split(key)
    parameters = initial_parameters(first, data.shape[1], options.hidden)
    optimizer = optax.adam(optax.cosine_decay_schedule(options.rate, options.steps))
    ends = jnp.log(jnp.array([options.narrowest, options.widest]))

    def loss(parameters: Parameters, rows: Array, noise: Array, level: Array) -> Array:
        gradient = jax.vmap(jax.grad(energy, 1), (None, 0, 0))
        found = gradient(parameters, rows + level[:, None] * noise, level)
        return jnp.square(level[:, None] * found - noise).sum(-1).mean()

    def step(carry: tuple[Any, Any], key: Array) -> tuple[tuple[Any, Any], Array]:
        parameters, moments = carry
        keys = random.split(key, 3)
        rows = data[random.randint(keys[0], (options.batch,), 0, len(data))]
        noise = random.normal(keys[1], rows.shape)
        level = jnp.exp(random.uniform(keys[2], (options.batch,), minval=ends[0], maxval=ends[1]))
        value, gradient = jax.value_and_grad(loss)(parameters, rows, noise, level)
        moves, moments = optimizer.update(gradient, moments, parameters)
        return (optax.apply_updates(parameters, moves), moments), value

    run = jax.jit(lambda carry, keys: lax.scan(step, carry, keys))
    begin = (parameters, optimizer.init(parameters))
    (parameters, _), losses = run(begin, random.split(loop, options.steps))
    return parameters, float(losses[-200:].mean())


def predicted(parameters: Parameters, x: Array, wide: Array, narrow: Array, key: Array) -> Array:
    """A step of the reversed diffusion of x (n, D) from one level of noise to the next."""
    lost = wide**2 - narrow**2
    score = -jax.vmap(jax.grad(energy, 1), (None, 0, None))(parameters, x, wide)
    return x + lost * score + jnp.sqrt(lost) * random.normal(key, x.shape)


def generate(options: shared.Options, parameters: Parameters, dim: int, key: Array) -> Array:
    """Samples (SAMPLES, D): chains that go through all levels."""
    levels = jnp.array(options.noise_levels())
    before = jnp.append(levels[:1], levels[:-1])
    kernel = nx.SGLD(program, options.step_size)
    place, forecast, key = random.split(key, 3)
    start = jnp.sqrt(1.0 + levels[0] ** 2) * random.normal(place, (shared.SAMPLES, dim))
    keys = random.split(key, shared.SAMPLES)
    begin = {"u": start / levels[0]}
    state = kernel.init(keys, 0, begin, (parameters, levels[0], dim), {})

    def at_level(
        carry: tuple[Any, Array], given: tuple[Array, Array, Array]
    ) -> tuple[tuple[Any, Array], None]:
        (state, x), (wide, level, key) = carry, given
        if options.predicts:
            x = predicted(parameters, x, wide, level, key)
        state = state._replace(z={"u": x / level})

        def langevin(_: int, state: Any) -> Any:
            return kernel.sample(state, (parameters, level, dim), {})

        state = lax.fori_loop(0, options.langevin_steps, langevin, state)
        return (state, level * state.z["u"]), None

    given = (before, levels, random.split(forecast, len(levels)))
    return jax.jit(lambda carry: lax.scan(at_level, carry, given)[0][1])((state, start))


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, generate, judge and draw."""
    options = shared.read_options(__doc__ or "", argv)
    data = jnp.asarray(options.rows(held_out=False))
    training_key, sample_key = random.split(random.key(options.seed))
    started = time.perf_counter()
    parameters, loss = train(options, data, training_key)
    samples = np.asarray(generate(options, parameters, data.shape[1], sample_key))
    return shared.report("numpyro", options, samples, loss, time.perf_counter() - started)


if __name__ == "__main__":
    main(sys.argv[1:])
