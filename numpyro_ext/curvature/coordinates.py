"""Some latent sites as coordinates of the flat vector."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from numpyro_ext.density import LogDensity
from ppl_ext.curvature.program_curvature import runs


class Coordinates:
    """The D' coordinates of some latent sites.

    Parameters
    ----------
    target : LogDensity
    sites : collection of str
        Latent sites.

    Attributes
    ----------
    numbers : array of int, shape (D',)
        Their numbers in the flat vector, rising.
    slices : dict of str to slice
        Where each of the sites is among the D'.
    """

    def __init__(self, target: LogDensity, sites: Collection[str]) -> None:
        self._all = target.layout.slices
        self.slices: dict[str, slice] = {}
        parts, start = [np.zeros(0, int)], 0
        for name, where in self._all.items():
            if name in sites:
                parts.append(np.arange(where.start, where.stop))
                self.slices[name] = slice(start, start + len(parts[-1]))
                start = self.slices[name].stop
        self._runs = runs(self._all, self.slices)
        self.numbers = np.concatenate(parts)

    def __len__(self) -> int:
        return len(self.numbers)

    def parts(self, position: Float[Array, "... D"]) -> dict[str, Float[Array, "... d"]]:
        """These coordinates of positions (..., D), by site."""
        return {name: position[..., self._all[name]] for name in self.slices}

    def part(self, position: Float[Array, "... D"]) -> Float[Array, "... d"]:
        """These coordinates (..., D') of positions (..., D)."""
        pieces = [position[..., run.whole] for run in self._runs if run.part is not None]
        return (
            pieces[0]
            if len(pieces) == 1
            else jnp.concatenate([position[..., :0], *pieces], axis=-1)
        )

    def placed(
        self,
        position: Float[Array, "... D"],
        part: Float[Array, "... d"] | Mapping[str, Float[Array, "... d"]],
    ) -> Float[Array, "... D"]:
        """The positions (..., D) with ``part`` (..., D') there, which may be given by site."""
        if isinstance(part, Mapping):
            pieces = [part.get(name, position[..., where]) for name, where in self._all.items()]
            return jnp.concatenate(pieces, axis=-1)
        if len(self._runs) == 1 and self._runs[0].part is not None:
            return part
        # By slices: what is computed from the other coordinates alone then needs no derivative.
        pieces = [
            position[..., run.whole] if run.part is None else part[..., run.part]
            for run in self._runs
        ]
        return jnp.concatenate(pieces, axis=-1)
