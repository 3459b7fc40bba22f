"""The coordinates of some latent sites among those of all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from ppl_ext.curvature.program_curvature import stretches


class Coordinates:
    """The D' coordinates of some latent sites.

    Parameters
    ----------
    every : dict of str to slice
        Where each latent site is among the D coordinates.
    sites : collection of str
        Some of them.

    Attributes
    ----------
    numbers : array of int, shape (D',)
        Their numbers in the flat vector, rising.
    slices : dict of str to slice
        Where each of the sites is among the D'.
    """

    #: ``torch`` or ``jax.numpy``.
    xp: Any

    def __init__(self, every: Mapping[str, slice], sites: Collection[str]) -> None:
        self.every = every
        self.slices: dict[str, slice] = {}
        parts, start = [np.zeros(0, int)], 0
        for name, where in every.items():
            if name in sites:
                parts.append(np.arange(where.start, where.stop))
                self.slices[name] = slice(start, start + len(parts[-1]))
                start = self.slices[name].stop
        self._stretches = stretches(every, self.slices)
        self.numbers: Any = np.concatenate(parts)

    def __len__(self) -> int:
        return len(self.numbers)

    def part(self, position: Float[Any, "... D"]) -> Float[Any, "... d"]:
        """These coordinates (..., D') of positions (..., D)."""
        pieces = [position[..., each.whole] for each in self._stretches if each.part is not None]
        if len(pieces) == 1:
            return pieces[0]
        # The empty piece is for no stretches at all, which cannot be concatenated.
        return self.xp.concatenate([position[..., :0], *pieces], axis=-1)

    def placed(
        self, position: Float[Any, "... D"], part: Float[Any, "... d"]
    ) -> Float[Any, "... D"]:
        """The positions (..., D) with ``part`` (..., D') for these coordinates."""
        if len(self._stretches) == 1 and self._stretches[0].part is not None:
            return part
        # By slices: what is computed from the other coordinates alone then needs no derivative.
        pieces = [
            position[..., each.whole] if each.part is None else part[..., each.part]
            for each in self._stretches
        ]
        return self.xp.concatenate(pieces, axis=-1)
