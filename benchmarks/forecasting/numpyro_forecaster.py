"""The forecaster in NumPyro; see :mod:`benchmarks.forecasting` for what it does."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from flax import nnx
from jax import Array
from numpyro import handlers
from numpyro.contrib.module import random_nnx_module

from benchmarks.forecasting.problem import SEGMENTS, SMALL_VARIANCE, Problem
from benchmarks.forecasting.sizes import RIDGE, Sizes
from benchmarks.images.numpyro_training import NumPyroTrainer, network_priors, release_programs

BACKEND = "NumPyro"
Trainer = NumPyroTrainer
release = release_programs


def local_dynamics(latent: Array, steps: int) -> Array:
    """Continue a sequence by the linear map that fits it best.

    Parameters
    ----------
    latent : array (..., S, d)
        Latent of each segment of a window.
    steps : int

    Returns
    -------
    array (..., steps, d)
        z_S A, z_S A^2, ..., where A minimises the squares of z_{s+1} - z_s A over s plus ``RIDGE``
        times those of A's entries.
    """
    before, after = latent[..., :-1, :], latent[..., 1:, :]
    # A = B^T (B B^T + ridge)^{-1} C: a system of the few segments, not of the latent's size.
    gram = before @ before.mT + RIDGE * jnp.eye(before.shape[-2], dtype=latent.dtype)
    weights = jnp.linalg.solve(gram, after)
    present, found = latent[..., -1:, :], []
    for _ in range(steps):
        present = present @ before.mT @ weights
        found.append(present)
    return jnp.concatenate(found, -2)


class Perceptron(nnx.Module):
    """One hidden layer of tanh units."""

    def __init__(self, inputs: int, hidden: int, outputs: int, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(inputs, hidden, rngs=rngs)
        self.second = nnx.Linear(hidden, outputs, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.second(jnp.tanh(self.first(x)))


class Network(nnx.Module):
    """Forecasts (..., horizon, channels) for windows (..., window, channels)."""

    def __init__(self, problem: Problem, sizes: Sizes, rngs: nnx.Rngs) -> None:
        self.segment = problem.window // SEGMENTS
        self.steps = problem.horizon // self.segment
        window, horizon = problem.window, problem.horizon
        self.invariant_encoder = Perceptron(window, sizes.hidden, sizes.latent, rngs)
        self.koopman = nnx.Linear(sizes.latent, sizes.latent, use_bias=False, rngs=rngs)
        self.invariant_decoder = Perceptron(sizes.latent, sizes.hidden, horizon, rngs)
        self.variant_encoder = Perceptron(
            self.segment, sizes.local_hidden, sizes.local_latent, rngs
        )
        self.variant_decoder = Perceptron(
            sizes.local_latent, sizes.local_hidden, self.segment, rngs
        )

    def __call__(self, x: Array, filtering: Array) -> Array:
        last = x[..., -1:, :]
        scale = jnp.sqrt(x.var(-2, keepdims=True) + SMALL_VARIANCE)
        standard = (x - last) / scale
        invariant = filtering @ standard
        variant = (standard - invariant).mT
        latent = self.koopman(self.invariant_encoder(invariant.mT))
        segments = variant.reshape(*variant.shape[:-1], SEGMENTS, self.segment)
        later = local_dynamics(self.variant_encoder(segments), self.steps)
        local = self.variant_decoder(later)
        local = local.reshape(*local.shape[:-2], -1)
        return (self.invariant_decoder(latent) + local).mT * scale + last


def Forecaster(problem: Problem, sizes: Sizes, temperature: float) -> Callable[..., None]:
    """Bayesian forecaster; the arguments are those of the Pyro class of this name."""
    module = Network(problem, sizes, nnx.Rngs(0))
    priors = network_priors(module, gain=1.0)
    num_rows, filtering = len(problem.x_train), jnp.asarray(problem.invariant)

    def forecaster(x: Array, y: Array | None = None) -> None:
        forecast = random_nnx_module("network", module, priors)(x, filtering)
        if y is None:
            numpyro.deterministic("prediction", forecast)
            return
        rows = numpyro.plate("rows", num_rows, subsample_size=len(x))
        with rows, handlers.scale(scale=1.0 / temperature):
            numpyro.sample("y", dist.Normal(forecast, 1.0).to_event(2), obs=y)

    return forecaster
