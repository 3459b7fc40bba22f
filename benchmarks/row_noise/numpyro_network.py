"""The network and its gradients in NumPyro."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO, init_to_sample
from numpyro.infer.autoguide import AutoNormal

import numpyro_ext as nx
from benchmarks.row_noise.comparison import BATCH, LAYERS, NOISE, NUM_DATA, PLAIN, RATE, Array

WEIGHTS = tuple(f"w{layer}" for layer in range(1, len(LAYERS)))


def model(x: Any, y: Any) -> None:
    """A network whose prior keeps the sizes of its layers' outputs."""
    hidden = x
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(LAYERS), start=1):
        prior = dist.Normal(0.0, fan_in**-0.5).expand([fan_in, fan_out]).to_event(2)
        bias = numpyro.sample(f"b{layer}", dist.Normal(0.0, 1.0).expand([fan_out]).to_event(1))
        hidden = hidden @ numpyro.sample(f"w{layer}", prior) + bias
        hidden = jnp.tanh(hidden) if layer < len(LAYERS) - 1 else hidden
    with numpyro.plate("rows", len(x)), numpyro.handlers.scale(scale=NUM_DATA / len(x)):
        numpyro.sample("y", dist.Normal(hidden.squeeze(-1), NOISE), obs=y)


class Trained:
    """A guide after some steps of the host's objective."""

    def __init__(self, x: Array, y: Array, steps: int, seed: int) -> None:
        self._data = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
        self.guide = AutoNormal(model, init_loc_fn=init_to_sample, init_scale=0.05)
        svi = SVI(model, self.guide, numpyro.optim.Adam(RATE), Trace_ELBO())
        self.key = jax.random.key(seed)
        state = svi.init(self.key, *self._first(slice(BATCH)))

        @jax.jit
        def run(state: Any, data: Any, key: Any) -> Any:
            def step(index: Any, state: Any) -> Any:
                rows = jax.random.randint(jax.random.fold_in(key, index), (BATCH,), 0, NUM_DATA)
                return svi.update(state, *(each[rows] for each in data))[0]

            return jax.lax.fori_loop(0, steps, step, state)

        self._svi, self._state = svi, run(state, self._data, self.key)
        self._parameters = svi.optim.get_params(self._state.optim_state)

    def _first(self, rows: Any) -> tuple[Any, Any]:
        x, y = self._data
        return x[rows], y[rows]

    @staticmethod
    def _objective(method: str) -> Any:
        return Trace_ELBO() if method == PLAIN else getattr(nx, method)(Trace_ELBO())

    def gradients(self, method: str, rows: int, draws: int) -> dict[str, Array]:
        """See :class:`~benchmarks.row_noise.comparison.Network`."""
        objective, data = self._objective(method), self._first(slice(rows))

        def loss(parameters: Any, key: Any) -> Any:
            constrained = self._svi.constrain_fn(parameters)
            return objective.loss(key, constrained, model, self.guide, *data)

        keys = jax.random.split(jax.random.fold_in(self.key, rows), draws)
        # One after another: all at once the rows of all draws would be in memory.
        found = jax.jit(lambda p: jax.lax.map(lambda key: jax.grad(loss)(p, key), keys))(
            self._parameters
        )
        return {
            name: np.concatenate(
                [np.asarray(found[f"{site}_auto_{kind}"]).reshape(draws, -1) for site in WEIGHTS], 1
            ).astype(np.float64)
            for name, kind in (("means", "loc"), ("scales", "scale"))
        }

    def step(self, method: str, rows: int) -> Callable[[], object]:
        """See :class:`~benchmarks.row_noise.comparison.Network`."""
        data = self._first(slice(rows))
        svi = SVI(model, self.guide, self._svi.optim, self._objective(method))
        state = svi.init(self.key, *data)
        update = jax.jit(svi.update)
        return lambda: jax.block_until_ready(update(state, *data))


def trained(x: Array, y: Array, steps: int, seed: int) -> Trained:
    """A trained network."""
    return Trained(x, y, steps, seed)
