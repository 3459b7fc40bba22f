"""Coordinates of some latent sites on JAX arrays, see :mod:`ppl_ext.curvature.coordinates`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from numpyro_ext.density import LogDensity
from ppl_ext.curvature import coordinates


class Coordinates(coordinates.Coordinates):
    """The D' coordinates of some latent sites of a target."""

    xp = jnp

    def __init__(self, target: LogDensity, sites: Collection[str]) -> None:
        super().__init__(target.layout.slices, sites)

    def parts(self, position: Float[Array, "... D"]) -> dict[str, Float[Array, "... d"]]:
        """These coordinates of positions (..., D), by site."""
        return {name: position[..., self.every[name]] for name in self.slices}

    def placed(
        self,
        position: Float[Array, "... D"],
        part: Float[Array, "... d"] | Mapping[str, Float[Array, "... d"]],
    ) -> Float[Array, "... D"]:
        """The positions (..., D) with ``part`` (..., D') there, which may be given by site."""
        if not isinstance(part, Mapping):
            return super().placed(position, part)
        pieces = [part.get(name, position[..., where]) for name, where in self.every.items()]
        return jnp.concatenate(pieces, axis=-1)
