"""Training of a NumPyro network by the host's SVI or by ProximalScoreVI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from flax import nnx
from jax import lax
from numpy.typing import NDArray
from numpyro.infer import SVI, Predictive, Trace_ELBO, init_to_value

import numpyro_ext as nx
from benchmarks.hosts import falling_adam
from benchmarks.images.training import (
    INNER_STEPS,
    Array,
    Method,
    Schedule,
    in_chunks,
    make_guide,
    spread_seed,
)

BACKEND = "NumPyro"
#: Rows that are predicted at once.
CHUNK = 250


def release_programs() -> None:
    """Let go of compiled programs, which for shapes gone by would pile up to gigabytes."""
    jax.clear_caches()


def network_priors(module: nnx.Module, gain: float) -> dict[str, Any]:
    """Normal(0, gain / inputs) for weights and biases of every linear layer, by flax's names."""
    priors = {}
    for path, layer in nnx.iter_modules(module):
        if isinstance(layer, nnx.Linear):
            prior = dist.Normal(0.0, (gain / layer.in_features) ** 0.5)
            names = ("kernel", "bias") if layer.use_bias else ("kernel",)
            priors.update({".".join((*map(str, path), name)): prior for name in names})
    return priors


class NumPyroTrainer:
    """See :class:`~benchmarks.images.training.Trainer`.

    Parameters
    ----------
    model : callable
        ``model(x, y)``, whose plate has the size of the data set; ``model(x)`` has the
        deterministic site "prediction" and no observation.
    method : Method
    x, y : arrays
        Training data.
    schedule : Schedule
    rate : float or None
        Learning rate of Adam, which falls to 0 along a cosine over all steps; None for the closed
        form.
    seed : int
    """

    def __init__(
        self,
        model: Callable[..., Any],
        method: Method,
        x: Array,
        y: Array,
        schedule: Schedule,
        rate: float | None,
        seed: int,
    ) -> None:
        self.draws = 1 if method.guide == "point" else schedule.draws
        self._x, self._y = jnp.asarray(x), jnp.asarray(y)
        first = self._x[: schedule.batch_size], self._y[: schedule.batch_size]
        values = Predictive(model, num_samples=1)(jax.random.key(spread_seed(seed, 2)), self._x[:1])
        values = {name: value[0] for name, value in values.items() if name != "prediction"}
        guide = make_guide(
            "numpyro", model, method, init_to_value(values=values), schedule.init_scale
        )
        key = jax.random.key(spread_seed(seed, 3))
        update: Callable[..., Any]
        self._every = 2 if method.engine == "closed form" else 1
        if method.engine == "svi":
            svi = SVI(model, guide, falling_adam("numpyro", rate, schedule.steps), Trace_ELBO())
            self._state, update, self._params = svi.init(key, *first), svi.update, svi.get_params
        else:
            solver: Any = None
            if method.engine == "gradient":
                optim = falling_adam("numpyro", rate, schedule.steps * INNER_STEPS)
                solver = nx.GradientSteps(optim, num_samples=1, num_inner_steps=INNER_STEPS)
            engine = nx.ProximalScoreVI(
                model,
                guide,
                solver=solver,
                total_steps=schedule.steps // self._every,
                on_nonfinite="skip",
            )
            self._state, update = engine.init(key, *first), engine.update
            self._params = engine.get_params
        self.num_weights = sum(int(value.size) for value in values.values())

        @jax.jit
        def advance(state: Any, x: jax.Array, y: jax.Array, rows: jax.Array) -> Any:
            def step(state: Any, chosen: jax.Array) -> tuple[Any, None]:
                return update(state, x[chosen], y[chosen])[0], None

            return lax.scan(step, state, rows)[0]

        @jax.jit
        def predict(parameters: Any, key: jax.Array, x: jax.Array) -> jax.Array:
            draws = guide.sample_posterior(key, parameters, sample_shape=(self.draws,))
            predictive = Predictive(model, draws, return_sites=["prediction"])
            return jnp.asarray(predictive(key, x)["prediction"])

        self._advance, self._predict = advance, predict
        self._parameters = self._kept = self._params(self._state)

    def advance(self, rows: NDArray[np.int64]) -> None:
        """Take the steps of a method for these lines of ``rows``."""
        rows = rows[:: self._every]
        self._state = self._advance(self._state, self._x, self._y, jnp.asarray(rows))
        self._parameters = self._params(self._state)

    def predict(self, x: Array, seed: int) -> Array:
        """Predictions (draws, n, ...), the same draws for all rows."""
        key = jax.random.key(spread_seed(seed, 4))
        pieces = []
        for piece in in_chunks(x, CHUNK):
            # One compiled program for all pieces: a short one is filled up with its first row.
            missing = CHUNK - len(piece)
            filled = np.concatenate([piece, np.repeat(piece[:1], missing, axis=0)])
            found = np.asarray(self._predict(self._parameters, key, jnp.asarray(filled)))
            pieces.append(found[:, : len(piece)])
        return np.concatenate(pieces, axis=1)

    def keep(self) -> None:
        """Remember the present guide."""
        self._kept = self._parameters

    def restore(self) -> None:
        """Go back to the guide that was remembered last."""
        self._parameters = self._kept
