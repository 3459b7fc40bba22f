"""Modes that are one another with labels exchanged, as in mixtures whose components are alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from ppl_ext.errors import ArgumentError

#: Draws of a mode from which the mean and the standard deviation of its values are taken.
DRAWS = 64
#: Standard deviations by which means of two modes may differ for their values to be the same.
SAME = 0.75
#: Factor by which their standard deviations may differ: those of 64 draws are known to a tenth.
FACTOR = 1.6
#: Standard deviations by which values differ at least that have changed places.
MOVED = 3.0
#: Draws whose labels are exchanged, to see what that does to the density.
EXCHANGED = 500
#: Seed of the orders into which they are brought.
SEED = (16, 44)
#: Nats by which the density may change for labels to count as alike.
ALIKE = 0.1
#: Orders that are counted at most. So many labels have more than any number of draws tells.
MOST_ORDERS = 10**12
#: Log ratio of two densities at most, so that its exponential is finite. Where it is larger, draws
#: have next to none of the posterior, and it does not matter by how much.
LARGEST = 50.0

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


@dataclass(frozen=True)
class Orders:
    """Orders of labels in draws.

    Attributes
    ----------
    seen, possible : int
        Different orders that draws have, and how many there are.
    missing : float
        Share of the posterior in those that draws do not have.
    alike : bool
        Whether an exchange leaves the density as it is.
    """

    seen: int = 1
    possible: int = 1
    missing: float = 0.0
    alike: bool = True


def orders(
    draws: Mapping[str, Float[np.ndarray, "S ..."]],
    places: Mapping[str, Sequence[int]],
    log_density: Callable[[Values], Float[np.ndarray, " S"]] | None = None,
) -> Orders:
    """Orders of the labels that draws have, and what is missing.

    Of draws x that have their labels in one order, the usual one, the mean of p(permuted x) / p(x)
    is the share of the posterior in the order that x has then, over that in the usual one. The
    permutations are random, all n! alike.

    Parameters
    ----------
    draws : mapping of str to array (S, ...)
    places : mapping of str to sequence of int
        Of :func:`exchanged`.
    log_density : callable, optional
        Log densities (S,) of draws, at their unconstrained positions. None where they cannot be
        had: labels are then taken for alike.
    """
    own = np.argsort(_labelled(draws, places), axis=1)
    every, which, counts = np.unique(own, axis=0, return_inverse=True, return_counts=True)
    possible = min(math.factorial(own.shape[1]), MOST_ORDERS)
    taken_for_alike = Orders(len(every), possible, 1.0 - len(every) / possible)
    if log_density is None:
        return taken_for_alike
    usual = np.flatnonzero(which.ravel() == counts.argmax())
    rows = np.unique(usual[np.linspace(0, len(usual) - 1, EXCHANGED).astype(int)])
    some = {name: value[rows] for name, value in draws.items()}
    noise = np.random.default_rng(SEED).random((len(rows), own.shape[1]))
    permuted = _permuted(some, places, np.argsort(noise, axis=1))
    try:
        gain = log_density(permuted) - log_density(some)
    except (ArgumentError, ValueError):
        return taken_for_alike  # As where a support asks for values in order.
    gain = np.where(np.isnan(gain), -np.inf, gain)
    seen = {tuple(row) for row in every}
    new = [tuple(row) not in seen for row in np.argsort(_labelled(permuted, places), axis=1)]
    ratios = np.exp(np.minimum(gain, LARGEST)) * np.asarray(new)
    odds = len(usual) / len(own) * possible * float(ratios.mean())
    alike = bool(np.median(np.abs(gain)) < ALIKE)
    return Orders(len(every), possible, odds / (1.0 + odds), alike)


def _labelled(
    draws: Mapping[str, Float[np.ndarray, "S ..."]], places: Mapping[str, Sequence[int]]
) -> Float[np.ndarray, "S labels"]:
    """What orders the labels of draws."""
    if scalars := [draws[name] for name in places if draws[name].ndim == 1]:
        return np.stack(scalars, axis=1)
    name = min(places, key=lambda each: draws[each].ndim)
    own = draws[name].reshape(*draws[name].shape[:2], -1)
    return own[:, list(places[name]), 0]


def _permuted(
    draws: Mapping[str, Float[np.ndarray, "S ..."]],
    places: Mapping[str, Sequence[int]],
    permutations: Int[np.ndarray, "S labels"],
) -> Values:
    """Draws whose labels change places, each by its own permutation."""
    found = dict(draws)
    if scalars := [name for name in places if draws[name].ndim == 1]:
        mixed = np.take_along_axis(_labelled(draws, places), permutations, axis=1)
        found |= {name: mixed[:, k] for k, name in enumerate(scalars)}
    for name, own in places.items():
        if draws[name].ndim > 1 and len(own) == permutations.shape[1]:
            index = permutations.reshape(*permutations.shape, *(1,) * (draws[name].ndim - 2))
            array = draws[name].copy()
            array[:, list(own)] = np.take_along_axis(array[:, list(own)], index, axis=1)
            found[name] = array
    return found


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
