"""Evaluating the density: value, score and score by parts, at one position and at many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from numpyro_ext.density.bound_model import BoundModel
from numpyro_ext.density.layout import Data, Indices
from numpyro_ext.sharding import Sharding
from ppl_ext.target.bound_model import check_own_rows
from ppl_ext.target.scores import Score, ScoreParts, tempered


@dataclass(frozen=True)
class Evaluation:
    """Pure functions of positions, arguments and rows.

    Parameters
    ----------
    bound : BoundModel
    temperature : float
        The log likelihood is divided by it.
    particle_chunk : int or None
        How many positions are evaluated at once.
    sharding : Sharding or None
        How positions and rows are split over devices.
    """

    bound: BoundModel
    temperature: float = 1.0
    particle_chunk: int | None = None
    sharding: Sharding | None = None

    def value(
        self, data: Data, indices: Indices, position: Float[Array, " D"] | dict[str, Array]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Log prior and log likelihood at one position, a vector or one that is split already."""
        return self.bound.prior_and_likelihood(self.bound.trace(position, data, indices))

    def log_density(
        self, data: Data, indices: Indices, position: Float[Array, " D"]
    ) -> Float[Array, ""]:
        """Log prior + log likelihood / temperature at one position."""
        return tempered(*self.value(data, indices, position), self.temperature)

    def score(self, data: Data, indices: Indices, position: Float[Array, " D"]) -> Score[Array]:
        """Tempered score at one position."""

        def log_density(sites: dict[str, Array]) -> tuple[Array, tuple[Array, Array]]:
            values = self.value(data, indices, sites)
            return tempered(*values, self.temperature), values

        layout = self.bound.layout
        # By site: by the vector, each site would add a vector of full length that is zero
        # elsewhere.
        gradient, values = jax.grad(log_density, has_aux=True)(layout.split(position))
        return Score(layout.join(gradient), *values)

    def parts(
        self, data: Data, indices: Indices, position: Float[Array, " D"]
    ) -> ScoreParts[Array]:
        """Gradients of prior and likelihood apart, at one position."""
        values, pull = jax.vjp(partial(self.value, data, indices), position)
        prior, likelihood = values
        (of_prior,) = pull((jnp.ones_like(prior), jnp.zeros_like(likelihood)))
        (of_likelihood,) = pull((jnp.zeros_like(prior), jnp.ones_like(likelihood)))
        return ScoreParts(of_prior, of_likelihood, prior, likelihood)

    def over_particles(self, function: Callable[[Any], Any], positions: Any) -> Any:
        """A function of one position at many, in chunks."""
        count = jax.tree.leaves(positions)[0].shape[0]
        chunk = self.particle_chunk
        if count == 1:
            # Without an axis of one: the compiler would transpose gradients of products with it.
            alone = function(jax.tree.map(lambda leaf: leaf[0], positions))
            return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], alone)
        if chunk is None or chunk >= count:
            return jax.vmap(function)(positions)
        # One chunk after another, so that memory holds one chunk's intermediate results.
        return lax.map(function, positions, batch_size=chunk)

    def batch(
        self,
        one: Callable[..., Any],
        positions: Float[Array, "P D"],
        data: Data,
        indices: Indices,
    ) -> Any:
        """One of the functions above at many positions, with the same rows or rows of their own.

        Raises
        ------
        ArgumentError
            Some plates have rows for each position and some for all.
        """
        if self.sharding is not None:
            positions, indices = self.sharding.split(positions), self.sharding.split_rows(indices)
        if all(rows.ndim == 1 for rows in indices.values()):
            found = self.over_particles(partial(one, data, indices), positions)
        else:
            check_own_rows(indices, len(positions))
            found = self.over_particles(lambda own: one(data, own[1], own[0]), (positions, indices))
        return found if self.sharding is None else self.sharding.split(found)
