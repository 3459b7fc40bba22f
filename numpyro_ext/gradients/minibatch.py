"""Minibatch scores, by row indices that the engine owns or of batches that are arguments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Float, Int

from numpyro_ext.density import Data, Indices, LogDensity, Score
from numpyro_ext.gradients.estimator import EstimatorState, Full, GradientEstimator
from numpyro_ext.gradients.full_data import num_rows
from numpyro_ext.gradients.permutation import draw_order, next_rows
from ppl_ext.errors import ArgumentError
from ppl_ext.gradients import minibatch
from ppl_ext.gradients.full_data import check_rows


class Minibatch(minibatch.Minibatch, GradientEstimator):
    def init(
        self, target: LogDensity, data: Data, rng_key: Array, num_positions: int
    ) -> EstimatorState:
        """State: a key, each plate's position and, for ``"reshuffle"``, its order."""
        self._check_plates(target)
        state: dict[str, Array | dict[str, Array]] = {"rng_key": rng_key}
        for name, plate in target.plates.items():
            if self.sampling == "cyclic":
                state[f"position {name}"] = jnp.asarray(0, jnp.int32)
            elif self.sampling == "reshuffle":
                # A position past the end makes the first draw start with a fresh permutation.
                lead = (num_positions,) if self.own_rows else ()
                state[f"order {name}"] = draw_order(rng_key, lead)
                state[f"position {name}"] = jnp.asarray(plate.size, jnp.int32)
        return state

    def draw(
        self, target: LogDensity, state: EstimatorState, num_positions: int = 1
    ) -> tuple[Indices, EstimatorState]:
        lead = (num_positions,) if self.own_rows else ()
        rng_key, *keys = random.split(state["rng_key"], 1 + len(target.plates))
        state = {**state, "rng_key": rng_key}
        indices: Indices = {}
        for key, (name, plate) in zip(keys, target.plates.items(), strict=True):
            if self.sampling == "replacement":
                indices[name] = random.randint(key, (*lead, plate.subsample_size), 0, plate.size)
                continue
            if self.sampling == "cyclic":
                position = state[f"position {name}"]
                indices[name] = (position + jnp.arange(plate.subsample_size)) % plate.size
                state[f"position {name}"] = (position + plate.subsample_size) % plate.size
                continue
            indices[name], state[f"order {name}"], state[f"position {name}"] = next_rows(
                key,
                plate.size,
                plate.subsample_size,
                state[f"order {name}"],
                state[f"position {name}"],
            )
        return indices, state


class BatchArguments(minibatch.BatchArguments, GradientEstimator):
    """Score of one of the given batches, in an order that is drawn anew for every round.

    Engines that are stepped are called with a new batch each time. A host's ``MCMC`` is called
    once, and the batches have to come from somewhere else.

    Parameters
    ----------
    batches : iterable of tuples
        The model's positional arguments of each batch, such as ``(x, y)``, or a ``DataLoader`` of
        these; together they hold each row once. The model's plate scales a batch up to all rows
        by its size, as in ``plate("data", N, subsample_size=len(x))``. Keyword arguments are those
        of the call.
    own_rows : bool
        Draw a batch for each position apart, as independent chains need them. In Pyro positions
        are then evaluated one after another.

    Raises
    ------
    ArgumentError
        There are no batches; or, in NumPyro, they differ in shape, as one compiled program serves
        all. From ``init``: the model looks up its rows itself, or the batches do not hold each row
        once.

    Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", 4, subsample_size=len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> batches = [(jnp.array([1.0, 2.0]),), (jnp.array([2.0, 3.0]),)]
    >>> kernel = nx.SGLD(model, 0.02, estimator=nx.BatchArguments(batches))
    >>> mcmc = numpyro.infer.MCMC(kernel, num_warmup=100, num_samples=2000)
    >>> mcmc.run(jax.random.key(0), *batches[0])
    >>> print(f"{mcmc.get_samples()['mean'].mean():.0f}")
    2
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        leaves = [jax.tree.leaves(batch) for batch in self.batches]
        shapes = {tuple(map(np.shape, each)) for each in leaves}
        if len(shapes) > 1:
            raise ArgumentError(
                "Expected batches of one shape, since one compiled program serves all, found "
                f"{sorted(shapes)}. Take a size that divides the rows."
            )

    def _stacked(self) -> tuple[Any, ...]:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *self.batches)

    def init(
        self, target: LogDensity, data: Data, rng_key: Array, num_positions: int
    ) -> EstimatorState:
        """State: a key, the order of the batches and the position in it."""
        batches = tuple(self.batches)
        check_rows(target, data, batches, num_rows)
        return {
            "rng_key": rng_key,
            "order": draw_order(rng_key, (num_positions,) if self.own_rows else ()),
            # A position past the end makes the first draw start with a fresh order.
            "position": jnp.asarray(len(batches), jnp.int32),
        }

    def draw(
        self, state: EstimatorState, num_positions: int = 1
    ) -> tuple[Int[Array, "*P"], EstimatorState]:
        rng_key, key = random.split(state["rng_key"])
        number = len(tuple(self.batches))
        chosen, order, position = next_rows(key, number, 1, state["order"], state["position"])
        return chosen[..., 0], {"rng_key": rng_key, "order": order, "position": position}

    def score(
        self, target: LogDensity, chosen: Int[Array, "*P"], z: Float[Array, "P D"], data: Data
    ) -> Score:
        stacked = self._stacked()

        def of_batch(z: Array, number: Array) -> Score:
            batch = jax.tree.map(lambda leaf: leaf[number], stacked)
            return target.score(z, target.bind(*batch, **data.kwargs))

        if chosen.ndim == 0:
            return of_batch(z, chosen)
        return jax.tree.map(
            lambda leaf: leaf[:, 0],
            jax.vmap(lambda z, number: of_batch(z[None], number))(z, chosen),
        )


def default_estimator(target: LogDensity) -> GradientEstimator:
    """Minibatches where the model leaves its rows to the engine, else the full score."""
    return Minibatch() if target.plates and not target.batch_arguments else Full()
