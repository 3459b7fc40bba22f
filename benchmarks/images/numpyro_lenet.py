"""LeNet in NumPyro, by flax nnx, and its particles in training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from flax import nnx
from numpy.typing import NDArray
from numpyro.contrib.module import random_nnx_module
from numpyro.infer import Predictive

import numpyro_ext as nx
from benchmarks.images.lenet import (
    CHANNELS,
    CLASSES,
    PRIOR_SCALE,
    UNITS,
    Method,
    Plan,
)
from benchmarks.images.numpyro_training import release_programs
from benchmarks.images.training import Array, in_chunks, spread_seed
from numpyro_ext.stein import curvature_kernel

BACKEND = "NumPyro"
#: Images that are predicted at once.
CHUNK = 500
LAST_LAYER = ("network/output.kernel", "network/output.bias")
release = release_programs


class Convolution(nnx.Module):
    """A convolution of 5 x 5 pixels as the product of patches with the kernel.

    Images are (n, height, width, channels), and get ``margin`` zeros on each side.

    XLA's own convolutions on CPUs take many times longer where each image has a derivative of its
    own, as the Jacobians of Newton steps ask for.
    """

    def __init__(self, inputs: int, outputs: int, margin: int) -> None:
        self.kernel = nnx.Param(jnp.zeros((25 * inputs, outputs)))
        self.bias = nnx.Param(jnp.zeros(outputs))
        self.margin = margin

    def __call__(self, inputs: jax.Array) -> jax.Array:
        margin = (self.margin, self.margin)
        inputs = jnp.pad(inputs, ((0, 0), margin, margin, (0, 0)))
        height, width = inputs.shape[1] - 4, inputs.shape[2] - 4
        patches = jnp.concatenate(
            [
                inputs[:, row : row + height, column : column + width]
                for row in range(5)
                for column in range(5)
            ],
            axis=-1,
        )
        return jnp.asarray(patches @ self.kernel[...] + self.bias[...])


class LeNet(nnx.Module):
    """Two convolutions and three linear layers with ReLU units, for images of 28 x 28 pixels."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        # Zeros, as the prior and the start of the engines take their place.
        linear = partial(nnx.Linear, kernel_init=nnx.initializers.zeros_init(), rngs=rngs)
        first, second = CHANNELS
        self.convolution1 = Convolution(1, first, margin=2)
        self.convolution2 = Convolution(first, second, margin=0)
        self.dense1 = linear(25 * second, UNITS[0])
        self.dense2 = linear(*UNITS)
        self.output = linear(UNITS[1], CLASSES)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = _halved(jax.nn.relu(self.convolution1(x[..., None])))
        x = _halved(jax.nn.relu(self.convolution2(x)))
        x = x.reshape(len(x), -1)
        x = jax.nn.relu(self.dense1(x))
        x = jax.nn.relu(self.dense2(x))
        return self.output(x)


def _halved(x: jax.Array) -> jax.Array:
    """The largest of each two by two pixels."""
    number, height, width, channels = x.shape
    return x.reshape(number, height // 2, 2, width // 2, 2, channels).max((2, 4))


def program(num_rows: int, batch_size: int) -> Callable[..., None]:
    """Bayesian LeNet: ``model(x, y)`` draws its own minibatch, ``model(x)`` predicts.

    Images are (n, 28, 28). Weights and biases are Normal(0, PRIOR_SCALE^2).
    """
    module = LeNet(nnx.Rngs(0))
    prior = dist.Normal(0.0, PRIOR_SCALE)

    def model(x: jax.Array, y: jax.Array | None = None) -> None:
        network = random_nnx_module("network", module, prior)
        if y is None:
            numpyro.deterministic("prediction", network(x))
            return
        with numpyro.plate("images", num_rows, subsample_size=batch_size) as rows:
            numpyro.sample("y", dist.Categorical(logits=network(x[rows])), obs=y[rows])

    return model


def start(site: dict[str, Any]) -> jax.Array | None:
    """Weights of variance 1 / inputs of a unit, biases 0."""
    if site["type"] != "sample" or site["is_observed"]:
        return None
    shape = site["fn"].shape()
    if site["name"].endswith("bias"):
        return jnp.zeros(shape)
    return jax.random.normal(site["kwargs"]["rng_key"], shape) * shape[0] ** -0.5


def make_engine(model: Callable[..., Any], method: Method, plan: Plan, rate: float) -> Any:
    """The engine of a method; ``rate`` is Adam's, or the share of Newton's move at the start."""
    falling = optax.cosine_decay_schedule(rate, plan.steps)
    options: dict[str, Any] = {"num_particles": plan.particles, "init_strategy": start}
    optim = optax.adam(falling)
    if method.engine == "SVN":
        taken = {"optim": optim} if method.adam else {"step_size": falling}
        return nx.SVN(
            model,
            **taken,
            kernel=curvature_kernel(),  # of the full system, as published
            **method.newton_options(plan.curvature_every),
            **options,
        )
    if method.engine == "LL-SVN":
        return nx.SVN(
            model,
            optim,
            step_size=optax.cosine_decay_schedule(plan.newton_share, plan.steps),
            kernel=curvature_kernel(),  # of the full system, as published
            **method.newton_options(sites=LAST_LAYER),
            **options,
        )
    engines: dict[str, Any] = {"DeepEnsemble": nx.DeepEnsemble, "WGD": nx.WGD, "SVGD": nx.SVGD}
    return engines[method.engine](model, optim, **options)


class Trainer:
    """See :class:`~benchmarks.images.lenet.Trainer`."""

    def __init__(
        self, method: Method, x: Array, y: Array, plan: Plan, rate: float, seed: int
    ) -> None:
        model = program(len(x), plan.batch_size)
        self._data = jnp.asarray(x), jnp.asarray(y)
        self._engine = make_engine(model, method, plan, rate)
        self._key = jax.random.key(spread_seed(seed, 3))
        self._state = self._engine.init(self._key, *self._data)
        self.num_weights = self._engine.particles(self._state).shape[1]

        @jax.jit
        def predict(draws: Any, x: jax.Array) -> jax.Array:
            predictive = Predictive(model, draws, return_sites=["prediction"], parallel=True)
            return jnp.asarray(predictive(jax.random.key(0), x)["prediction"])

        self._predict = predict
        self._kept = self._draws()

    def _draws(self) -> Any:
        return self._engine.get_samples(self._state)

    def advance(self, steps: int) -> dict[str, NDArray[Any]]:
        """Take so many steps."""
        result = self._engine.run(
            self._key, steps, *self._data, init_state=self._state, progress_bar=False
        )
        self._state = jax.block_until_ready(result.state)
        return dict(result.info)

    def predict(self, x: Array) -> Array:
        """Logits (particles, n, classes) of the present particles."""
        return self._logits(self._draws(), x)

    def predict_kept(self, x: Array) -> Array:
        """The same by the particles that were kept last."""
        return self._logits(self._kept, x)

    def _logits(self, draws: Any, x: Array) -> Array:
        pieces = []
        for piece in in_chunks(x, CHUNK):
            # One compiled program for all pieces: a short one is filled up with its first image.
            missing = CHUNK - len(piece)
            filled = np.concatenate([piece, np.repeat(piece[:1], missing, axis=0)])
            pieces.append(np.asarray(self._predict(draws, jnp.asarray(filled)))[:, : len(piece)])
        return np.concatenate(pieces, axis=1)

    def keep(self) -> None:
        """Remember the present particles."""
        self._kept = self._draws()
