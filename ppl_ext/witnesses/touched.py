"""Latents that the data tell nothing of: neither the likelihood nor a site that it moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float

Positions = Float[np.ndarray, "P D"]

#: Draws that tell.
DRAWS = 16


def untouched(
    parts: Callable[[Positions], tuple[Positions, Positions]],
    coordinates: Mapping[str, slice],
    positions: Positions,
) -> list[str]:
    """Names of the sites that the data do not touch.

    A site is touched where the likelihood's score of its coordinates is not zero everywhere, and
    where the prior's score of a touched site changes when its own values are exchanged between
    draws, as scales of a hierarchy are.

    Parameters
    ----------
    parts : callable
        Scores of the prior and of the likelihood (P, D) at positions (P, D).
    coordinates : dict of str to slice
    positions : array (P, D)
    """
    # Always as many, by repeating them, so that one compiled program serves.
    positions = np.resize(positions[:DRAWS], (DRAWS, positions.shape[1]))
    prior, likelihood = parts(positions)
    moves = (likelihood != 0.0).any(0)
    left = [name for name, where in coordinates.items() if not moves[where].any()]
    touched = set(coordinates) - set(left)
    # A site that is found touched may be the one by which another is.
    while left:
        found = [
            name for name in left if _moves(name, touched, parts, coordinates, positions, prior)
        ]
        if not found:
            break
        touched |= set(found)
        left = [name for name in left if name not in touched]
    return left


def _moves(
    name: str,
    touched: set[str],
    parts: Callable[[Positions], tuple[Positions, Positions]],
    coordinates: Mapping[str, slice],
    positions: Positions,
    prior: Positions,
) -> bool:
    exchanged = positions.copy()
    exchanged[:, coordinates[name]] = np.roll(positions[:, coordinates[name]], 1, axis=0)
    change = parts(exchanged)[0] != prior
    return any(bool(change[:, coordinates[other]].any()) for other in touched)
