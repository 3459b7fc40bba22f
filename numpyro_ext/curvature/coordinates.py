"""Some latent sites as coordinates of the flat vector."""

from __future__ import annotations

from collections.abc import Collection

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from numpyro_ext.density import LogDensity


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
        self.numbers = np.concatenate(parts)

    def __len__(self) -> int:
        return len(self.numbers)

    def part(self, position: Float[Array, " D"]) -> Float[Array, " d"]:
        """These coordinates (D',) of a position (D,)."""
        return jnp.concatenate(
            [position[self._all[name]] for name in self.slices] or [jnp.zeros(0)]
        )

    def placed(self, position: Float[Array, " D"], part: Float[Array, " d"]) -> Float[Array, " D"]:
        """The position (D,) with ``part`` (D',) for these coordinates."""
        if len(self.slices) == len(self._all):
            return part
        # By slices, not by a scatter: compilers then see that no other derivative is wanted.
        return jnp.concatenate(
            [
                part[self.slices[name]] if name in self.slices else position[where]
                for name, where in self._all.items()
            ]
        )
