"""Modes that are one another with labels exchanged, as in mixtures whose components are alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

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


def exchanged(modes: Sequence[Values]) -> dict[str, tuple[int, ...]]:
    """Sites whose entries change places between the first mode and another that is the same.

    Entries change places within a site, and scalar sites with each other.

    Parameters
    ----------
    modes : sequence of mappings
        Of each mode, the one of most mass first: site to constrained draws (S, ...).

    Returns
    -------
    dict of str to tuple of int
        By site, where on its first axis entries change places; (0,) of a scalar site.
    """
    found: dict[str, set[int]] = {}
    first, *others = [{name: _figures(draws) for name, draws in mode.items()} for mode in modes]
    for other in others:
        moved = {name: _moved(first[name], other[name]) for name in first}
        is_same = all(map(_is_same, _in_groups(first), _in_groups(other)))
        for name, entries in moved.items():
            if is_same and entries.any():
                length = modes[0][name].shape[1] if modes[0][name].ndim > 1 else 1
                places = entries.reshape(length, -1).any(1)
                found.setdefault(name, set()).update(map(int, np.flatnonzero(places)))
    return {name: tuple(sorted(places)) for name, places in found.items()}


def orders(
    draws: Mapping[str, Float[np.ndarray, "S ..."]], places: Mapping[str, Sequence[int]]
) -> tuple[int, int]:
    """Different orders of the labels in draws, and how many there are.

    Where labels can be exchanged, all orders are alike, and draws of the posterior have each as
    often as the others.

    Parameters
    ----------
    draws : mapping of str to array (S, ...)
    places : mapping of str to sequence of int
        Of :func:`exchanged`.
    """
    scalars = [draws[name] for name in places if draws[name].ndim == 1]
    if scalars:
        values = np.stack(scalars, axis=1)
    else:
        name = min(places, key=lambda each: draws[each].ndim)
        own = draws[name].reshape(*draws[name].shape[:2], -1)
        values = own[:, list(places[name]), 0]
    seen = {tuple(row) for row in np.argsort(values, axis=1)}
    return len(seen), math.factorial(values.shape[1])


def _figures(draws: Float[np.ndarray, "S ..."]) -> Figures:
    flat = np.asarray(draws, np.float64).reshape(len(draws), -1)
    return np.stack([flat.mean(0), flat.std(0)])


def _in_groups(mode: Mapping[str, Figures]) -> list[Figures]:
    """Figures of what may change places with each other."""
    scalars = [figures for figures in mode.values() if figures.shape[1] == 1]
    others = [figures for figures in mode.values() if figures.shape[1] != 1]
    return [*others, np.concatenate(scalars, 1)] if scalars else others


def _moved(one: Figures, other: Figures) -> Bool[np.ndarray, " K"]:
    """Which entries lie elsewhere."""
    found: Bool[np.ndarray, " K"] = np.abs(one[0] - other[0]) > MOVED * np.maximum(one[1], other[1])
    return found


def _is_same(one: Figures, other: Figures) -> bool:
    """Whether one mode's values, in whatever order, are the other's."""
    one, other = (each[:, np.argsort(each[0], kind="stable")] for each in (one, other))
    least = np.finfo(np.float64).tiny
    near = np.abs(one[0] - other[0]) < SAME * np.maximum(one[1], other[1]) + least
    factor = np.abs(np.log((one[1] + least) / (other[1] + least)))
    return bool((near & (factor < np.log(FACTOR))).all())
