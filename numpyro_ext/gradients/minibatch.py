"""Minibatch scores: one set of rows per step and plate, shared by all particles or not.

The sets are drawn here rather than by the plates: NumPyro's own draw runs a sequential shuffle
of the whole plate on a CPU at every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import jax.numpy as jnp
from jax import Array, random

from numpyro_ext.density import Data, Indices, LogDensity
from numpyro_ext.gradients.estimator import EstimatorState, GradientEstimator, ScoreEstimate
from numpyro_ext.gradients.permutation import draw_order, next_rows
from ppl_ext.errors import ArgumentError

Sampling = Literal["reshuffle", "replacement", "cyclic"]
SAMPLING: tuple[str, ...] = get_args(Sampling)


@dataclass(frozen=True)
class Minibatch(GradientEstimator):
    """Score of a random set of rows of every subsampled plate, of the model's subsample size.

    Parameters
    ----------
    sampling : {"reshuffle", "replacement", "cyclic"}
        ``"reshuffle"``: a random permutation of the rows is cut into batches, and drawn anew
        when fewer rows than a batch are left; those rows wait for the next permutation, so that
        every batch is a simple random sample and the score unbiased. ``"replacement"``: rows are
        drawn independently. ``"cyclic"``: rows come in the order of the data, again and again,
        without a gap at its end; right on average over a whole number of rounds only, and biased
        within one where the data are sorted.
    own_rows : bool
        Draw rows for each position apart, as independent chains need them. Particles of one fit
        share theirs, which costs less.

    Raises
    ------
    ArgumentError
        ``sampling`` is none of these, or ``"cyclic"`` with rows of each position's own.
    """

    sampling: Sampling = "reshuffle"
    own_rows: bool = False

    def __post_init__(self) -> None:
        if self.sampling not in SAMPLING:
            raise ArgumentError(
                f"Expected sampling to be one of {SAMPLING}, found {self.sampling!r}."
            )
        if self.own_rows and self.sampling == "cyclic":
            raise ArgumentError(
                "Expected sampling 'reshuffle' or 'replacement' where each position draws rows of "
                "its own, as chains do, found 'cyclic', which takes the same rows for all."
            )

    def init(
        self, target: LogDensity, data: Data, rng_key: Array, num_positions: int
    ) -> EstimatorState:
        """State: a key, each plate's position and, for ``"reshuffle"``, its order.

        Raises
        ------
        ArgumentError
            When the model has no subsampled plate whose rows it looks up.
        """
        if not target.plates and not target.observed_sites:
            raise ArgumentError(
                "Minibatch draws rows of the observed sites. Expected a model that has some, found "
                "none: its density is in one piece, as that of a Stan program is, and cannot be "
                "divided by rows. Use Full(), the exact score."
            )
        if not target.plates:
            found = "batches are passed as arguments" if target.batch_arguments else "it has none"
            raise ArgumentError(
                "Minibatch needs a model with a subsampled plate whose rows are looked up by its "
                f"indices, 'with numpyro.plate(name, N, subsample_size=B) as i: ... y[i]'; "
                f"{found}. Use estimator=Full(), which evaluates the arguments as they are."
            )
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
        """Row indices of the next batch, by plate, and the next state.

        Of shape (B,), or (P, B) where each position has its own.
        """
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

    def estimate(
        self, target: LogDensity, state: EstimatorState, z: Array, data: Data
    ) -> tuple[ScoreEstimate, EstimatorState]:
        """Score at positions (P, D) of the next batch."""
        indices, state = self.draw(target, state, len(z))
        return ScoreEstimate(*target.score(z, data, indices), indices=indices), state

    def with_own_rows(self, target: LogDensity) -> Minibatch:
        """The same sampling, with rows drawn for each position apart."""
        return replace(self, own_rows=True)

    def evaluations_per_step(self, target: LogDensity) -> float:
        """Share of the rows in one batch, over all plates."""
        return math.prod(plate.subsample_size / plate.size for plate in target.plates.values())
