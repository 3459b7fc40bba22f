"""What the tests of NumPyro's kernels share: particles, and the direction by its definition."""

from __future__ import annotations

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np


def cloud(num: int, dim: int, seed: int = 0, dtype=jnp.float64):
    """Particles with unequal scales, and scores that are neither symmetric nor centred."""
    generator = np.random.default_rng(seed)
    particles = generator.normal(size=(num, dim)) * np.linspace(0.5, 2.0, dim)
    scores = generator.uniform(size=(num, dim)) ** 3 + 0.3
    return jnp.asarray(particles, dtype), jnp.asarray(scores, dtype)


def loop_direction(value, particles, scores, *constants):
    """phi and the Gram matrix by definition: a double loop, with autodiff in z_j.

    ``value(x, y, *constants)`` is the kernel; compiled once for each shape and function.
    """
    value_and_slope = _compiled(value)
    particles, scores = np.asarray(particles), np.asarray(scores)
    directions, gram = np.zeros(particles.shape), np.zeros((len(particles), len(particles)))
    for i, to in enumerate(particles):
        for j, source in enumerate(particles):
            gram[j, i], slope = value_and_slope(source, to, *constants)
            directions[i] += gram[j, i] * scores[j] + slope
    return directions / len(particles), gram


@functools.cache
def _compiled(value):
    return jax.jit(jax.value_and_grad(value))


def largest_array(function, *args) -> int:
    """Entries of the largest array in the program that a function is compiled to."""
    types = re.findall(r"tensor<((?:\d+x)+)", jax.jit(function).lower(*args).as_text())
    return max(math.prod(int(n) for n in dims[:-1].split("x")) for dims in types)
