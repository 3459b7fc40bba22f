"""Minibatch scores: one set of rows per step and plate, shared by all particles or not.

The sets are drawn here rather than by the plates: NumPyro's own draw runs a sequential shuffle
of the whole plate on a CPU at every step.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, random

from numpyro_ext.density import Data, Indices, LogDensity
from numpyro_ext.gradients.estimator import EstimatorState, GradientEstimator
from numpyro_ext.gradients.permutation import draw_order, next_rows
from ppl_ext.gradients import minibatch
from ppl_ext.gradients.minibatch import Sampling


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


__all__ = ["Minibatch", "Sampling"]
