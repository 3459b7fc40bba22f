"""Chains of stochastic gradient MCMC in NumPyro."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

import numpyro_ext as nx
from benchmarks.bnn.chains import ChainTrainer
from benchmarks.bnn.methods import Floats, Method, Setting
from benchmarks.bnn.numpyro_network import program, start


class Trainer(ChainTrainer):
    """Runs of a kernel of the package; see :class:`~benchmarks.bnn.chains.ChainTrainer`."""

    def __init__(self, method: Method, setting: Setting) -> None:
        super().__init__(method, setting)
        self._step_size: float | None = None

    def _begin(self, x: Floats, y: NDArray[Any], seed: int, step_size: float) -> None:
        self._data = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
        new = step_size != self._step_size
        if new:
            self._step_size = step_size
            self._compile(step_size)
        keys = jax.random.split(jax.random.key(seed), self._setting.particles)
        self._state = self._kernel.init(keys, 0, None, self._data, {})
        if new:
            # Compiled here, apart from the steps, whose seconds are taken.
            self._move(0)
            self._networks()

    def _compile(self, step_size: float) -> None:
        kernel: Any = getattr(nx, self._method.engine)(
            program(self._setting), step_size, init_strategy=start
        )

        def run(state: Any, count: Array, data: tuple[Array, Array]) -> Any:
            return jax.lax.fori_loop(
                0, count, lambda _, state: kernel.sample(state, data, {}), state
            )

        def networks(z: dict[str, Array], data: tuple[Array, Array]) -> dict[str, Array]:
            return jax.vmap(kernel.postprocess_fn(data, {}))(z)

        self._kernel, self._run, self._read = kernel, jax.jit(run), jax.jit(networks)

    def _move(self, steps: int) -> None:
        state = self._run(self._state, jnp.asarray(steps, jnp.int32), self._data)
        self._state = jax.block_until_ready(state)

    def _networks(self) -> dict[str, Floats]:
        found = self._read(self._state.z, self._data)
        return {name: np.asarray(value) for name, value in found.items()}

    def said(self) -> dict[str, float]:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        return {"skipped": float(self._state.num_diverging.sum())}


def trainer(method: Method, setting: Setting) -> Trainer:
    """Runs of a method."""
    return Trainer(method, setting)
