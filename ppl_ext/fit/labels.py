"""Modes that are one another with labels exchanged, as in mixtures whose components are alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

#: Draws of a mode that its values are told from.
DRAWS = 64
#: Values of two modes are the same when their means differ by less than so many standard
#: deviations, and these by less than this factor.
SAME, FACTOR = 0.75, 1.6
#: Values have changed places when they differ by more standard deviations than this.
MOVED = 3.0

Values = Mapping[str, Float[np.ndarray, "S ..."]]
#: Means and standard deviations.
Figures = Float[np.ndarray, "2 K"]


def exchanged(modes: Sequence[Values]) -> tuple[str, ...]:
    """Sites whose entries change places between the first mode and another that is the same.

    Entries change places within a site, and scalar sites with each other.

    Parameters
    ----------
    modes : sequence of mappings
        Of each mode, the one of most mass first: site to constrained draws (S, ...).
    """
    found: dict[str, None] = {}
    first, *others = [{name: _figures(draws) for name, draws in mode.items()} for mode in modes]
    for other in others:
        moved = [name for name in first if _has_moved(first[name], other[name])]
        if moved and all(map(_is_same, _in_groups(first), _in_groups(other))):
            found |= dict.fromkeys(moved)
    return tuple(found)


def _figures(draws: Float[np.ndarray, "S ..."]) -> Figures:
    flat = np.asarray(draws, np.float64).reshape(len(draws), -1)
    return np.stack([flat.mean(0), flat.std(0)])


def _in_groups(mode: Mapping[str, Figures]) -> list[Figures]:
    """Figures of what may change places with each other."""
    scalars = [figures for figures in mode.values() if figures.shape[1] == 1]
    others = [figures for figures in mode.values() if figures.shape[1] != 1]
    return [*others, np.concatenate(scalars, 1)] if scalars else others


def _has_moved(one: Figures, other: Figures) -> bool:
    return bool((np.abs(one[0] - other[0]) > MOVED * np.maximum(one[1], other[1])).any())


def _is_same(one: Figures, other: Figures) -> bool:
    """Whether one mode's values, in whatever order, are the other's."""
    one, other = (each[:, np.argsort(each[0], kind="stable")] for each in (one, other))
    least = np.finfo(np.float64).tiny
    near = np.abs(one[0] - other[0]) < SAME * np.maximum(one[1], other[1]) + least
    factor = np.abs(np.log((one[1] + least) / (other[1] + least)))
    return bool((near & (factor < np.log(FACTOR))).all())
