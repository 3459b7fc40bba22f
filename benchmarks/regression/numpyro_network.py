"""The regression network in NumPyro, by flax nnx."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from flax import nnx
from jax import Array
from numpyro.contrib.module import random_nnx_module

from benchmarks.variance_reduction.methods import Arguments, Floats, Method, Schedule
from benchmarks.variance_reduction.numpyro_trainer import NumPyroTrainer

#: Shape and rate of both precisions' Gamma priors.
PRIOR = (1.0, 0.1)
_NEUTRAL = {
    "net/first.kernel": "w1",
    "net/first.bias": "b1",
    "net/second.kernel": "w2",
    "net/second.bias": "b2",
}


class Network(nnx.Module):
    """One hidden layer with ReLU units."""

    def __init__(self, features: int, hidden: int, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(features, hidden, rngs=rngs)
        self.second = nnx.Linear(hidden, 1, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.second(jax.nn.relu(self.first(x)))[..., 0]


def program(features: int, hidden: int, schedule: Schedule) -> Callable[[Array, Array], None]:
    """Normal responses and weights, the precisions of both unknown."""
    module = Network(features, hidden, nnx.Rngs(0))

    def model(x: Array, y: Array) -> None:
        noise_precision = numpyro.sample("noise_precision", dist.Gamma(*PRIOR))
        weight_precision = numpyro.sample("weight_precision", dist.Gamma(*PRIOR))
        net = random_nnx_module("net", module, dist.Normal(0.0, weight_precision**-0.5))
        with numpyro.plate("rows", schedule.rows, subsample_size=schedule.batch) as rows:
            numpyro.sample("y", dist.Normal(net(x[rows]), noise_precision**-0.5), obs=y[rows])

    return model


def start(site: dict[str, Any]) -> Array | None:
    """Weights of variance 1 / (inputs + 1), biases 0, precisions 1."""
    if site["type"] != "sample" or site["is_observed"]:
        return None
    shape = site["fn"].shape()
    if site["name"].endswith("kernel"):
        key = site["kwargs"]["rng_key"]
        return jax.random.normal(key, shape) * (shape[0] + 1) ** -0.5
    return jnp.zeros(shape) if site["name"].endswith("bias") else jnp.ones(shape)


class Trainer(NumPyroTrainer):
    """A run on standardised rows."""

    def __init__(
        self,
        data: Arguments,
        hidden: int,
        schedule: Schedule,
        method: Method,
        rate: float,
        seed: int,
    ) -> None:
        model = program(data[0].shape[1], hidden, schedule)
        super().__init__(model, data, schedule, method, rate, seed, init_strategy=start)

    def draws(self) -> dict[str, Floats]:
        """Draws by the names that ``benchmarks.predictive`` knows."""
        found = {_NEUTRAL.get(name, name): value for name, value in super().draws().items()}
        found["w2"], found["b2"] = found["w2"][..., 0], found["b2"][..., 0]
        found["noise"] = found["noise_precision"] ** -0.5
        return found
