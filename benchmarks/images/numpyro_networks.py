"""The classifier of the image benchmark in NumPyro."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import jax
import numpyro
import numpyro.distributions as dist
from flax import nnx
from jax import Array
from numpyro import handlers
from numpyro.contrib.module import random_nnx_module

from benchmarks.images.numpyro_training import NumPyroTrainer, network_priors, release_programs

BACKEND = "NumPyro"
Trainer = NumPyroTrainer
release = release_programs


class Perceptron(nnx.Module):
    """Multilayer perceptron with ReLU units; ``sizes`` are inputs, hidden layers, classes."""

    def __init__(self, sizes: Sequence[int], rngs: nnx.Rngs) -> None:
        self.layers = nnx.List(
            [nnx.Linear(inputs, outputs, rngs=rngs) for inputs, outputs in pairwise(sizes)]
        )

    def __call__(self, x: Array) -> Array:
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)


def Classifier(sizes: Sequence[int], num_rows: int, temperature: float) -> Callable[..., None]:
    """Bayesian multilayer perceptron; the arguments are those of the Pyro class of this name."""
    module = Perceptron(sizes, nnx.Rngs(0))
    priors = network_priors(module, gain=2.0)

    def classifier(x: Array, y: Array | None = None) -> None:
        logits = random_nnx_module("network", module, priors)(x)
        if y is None:
            numpyro.deterministic("prediction", logits)
            return
        rows = numpyro.plate("rows", num_rows, subsample_size=len(x))
        with rows, handlers.scale(scale=1.0 / temperature):
            numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    return classifier
