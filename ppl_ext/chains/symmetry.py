"""Labels that can be exchanged without changing the density, such as those of alike components.

An exchange of labels maps the posterior to itself. So nothing that depends on labels can be
learned, and two exact things can be done. Draws may have their labels put in order, by which
everything that depends on no label is kept: chains are judged so. And they may have their labels
drawn at random, all orders alike, which is what draws of the posterior have.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from ppl_ext.errors import ArgumentError
from ppl_ext.start.local_normal import lower_factor
from ppl_ext.start.paths import Evaluate
from ppl_ext.start.start import Mode

#: Axes that may take part in one exchange, and exchanges of two labels that are tried at most.
MOST_AXES, MOST_TRIED = 4, 2_000
#: Positions at which an exchange must leave the density as it is.
POINTS = 4
#: Machine epsilons, as a share of the log density, by which rounding may change it, and nats that
#: this may be at most.
ROUNDING, MOST_ROUNDING = 1e3, 0.05
#: Share of the draws of a mode, beyond what chance gives, that must have labels in one order.
APART = 0.2
#: Least standard deviation that is divided by.
TINY = float(np.finfo(np.float64).tiny)
#: Steps by which a map is differentiated, in standard deviations: this power of machine epsilon,
#: with which the rounding of central differences is as large as what they leave out.
STEP_POWER = 1.0 / 3.0
#: Seed of random labels. They know nothing of the chains' random numbers.
SEED = (24, 1907)

Positions = Float[np.ndarray, "S D"]
Values = dict[str, np.ndarray]
Orders = Int[np.ndarray, "S labels"]


@dataclass(frozen=True)
class Exchange:
    """Labels of which any two can be exchanged.

    Attributes
    ----------
    labels : tuple of int
        Places on each of the axes.
    axes : tuple of (str, int)
        Sites and axes of their values that the labels number.
    halves : tuple of str
        Sites of probabilities p for which two labels stand, as p and 1 - p.
    site : str
        The labels are put in order by this site,
    entries : tuple of int
        by these of its entries, one for each label.
    flat : tuple of int
        The coordinates that these are of, where each entry has one of its own; else empty.
    """

    labels: tuple[int, ...]
    axes: tuple[tuple[str, int], ...]
    halves: tuple[str, ...] = ()
    site: str = ""
    entries: tuple[int, ...] = ()
    flat: tuple[int, ...] = ()

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites that have labels."""
        return tuple(dict.fromkeys([*(name for name, _ in self.axes), *self.halves]))

    def applied(self, values: Mapping[str, np.ndarray], orders: Orders) -> Values:
        """Values (S, ...) whose k-th label is the one that ``orders`` (S, labels) have there."""
        found = dict(values)
        places = np.asarray(self.labels)
        for name, axis in self.axes:
            array = found[name]
            # Places that are no labels stay where they are.
            index = np.tile(np.arange(array.shape[axis + 1]), (len(array), 1))
            index[:, places] = places[orders]
            shape = [1] * array.ndim
            shape[0], shape[axis + 1] = index.shape
            found[name] = np.take_along_axis(array, index.reshape(shape), axis + 1)
        turned = orders[:, 0] != 0
        for name in self.halves:
            array = found[name]
            where = turned.reshape(-1, *(1,) * (array.ndim - 1))
            found[name] = np.where(where, 1.0 - array, array)
        return found

    def orders(self, values: Mapping[str, np.ndarray]) -> Orders:
        """Labels in the order of what tells them apart."""
        array = values[self.site]
        flat = array.reshape(len(array), -1)[:, list(self.entries)]
        return np.argsort(flat, axis=1, kind="stable")

    def renamed(self, names: Mapping[str, str]) -> Exchange:
        """The same of sites by other names, where they have one."""
        axes = tuple((names.get(name, name), axis) for name, axis in self.axes)
        halves = tuple(names.get(name, name) for name in self.halves)
        return replace(self, axes=axes, halves=halves, site=names.get(self.site, self.site))


@dataclass(frozen=True)
class Symmetry:
    """Exchanges of labels on the flat unconstrained space.

    The density there is unchanged as well: the hosts' transforms act entry by entry, or, on the
    simplex, have a log-determinant in which all entries are alike.

    Attributes
    ----------
    exchanges : tuple of Exchange
    constrain, unconstrain : callable
        From positions (S, D) to values by site, and back.
    names : tuple of (str, str)
        Sites that stand for others, which are non-centred, with the names of these.
    """

    exchanges: tuple[Exchange, ...]
    constrain: Callable[[Positions], Values]
    unconstrain: Callable[[Mapping[str, np.ndarray]], Positions]
    names: tuple[tuple[str, str], ...] = ()

    @property
    def alike(self) -> tuple[tuple[tuple[str, ...], str], ...]:
        """Of each exchange the sites as written that have labels, and the one that orders them."""
        return tuple((each.sites, each.site) for each in self.as_written)

    @property
    def as_written(self) -> tuple[Exchange, ...]:
        """The exchanges of the sites as written."""
        return tuple(each.renamed(dict(self.names)) for each in self.exchanges)

    def ordered(self, positions: Float[np.ndarray, "... D"]) -> Float[np.ndarray, "... D"]:
        """Positions with their labels in order."""
        flat = positions.reshape(-1, positions.shape[-1])
        orders = self._orders(flat)
        return self._moved(flat, orders).reshape(positions.shape)

    def unordered(self, positions: Positions, like: Positions) -> Positions:
        """Positions with their labels in the orders that other positions (S, D) have."""
        # The order of an order is its inverse.
        orders = [np.argsort(each, axis=1) for each in self._orders(like)]
        return self._moved(positions, orders)

    def is_ordered(self, positions: Positions) -> Bool[np.ndarray, " S"]:
        """Which positions have their labels in order."""
        return ~_is_moved(self._orders(positions))

    def shuffled(self, draws: Float[np.ndarray, "N M D"]) -> Float[np.ndarray, "N M D"]:
        """Draws with their labels in random orders; the first ones stay where more come."""
        flat = draws.reshape(-1, draws.shape[-1])
        orders = [
            np.argsort(
                np.random.default_rng((*SEED, number)).random((len(flat), len(each.labels))), axis=1
            )
            for number, each in enumerate(self.exchanges)
        ]
        return self._moved(flat, orders).reshape(draws.shape)

    def moved(self, mode: Mode, epsilon: float) -> Mode:
        """A Normal with its labels in order."""
        orders = self._orders(mode.mean[None])
        if not _is_moved(orders).any():
            return mode
        dim = len(mode.mean)
        # Of a mode that is as narrow as positions are rounded shorter steps would have no slopes.
        least = epsilon**STEP_POWER * (1.0 + np.abs(mode.mean))
        step = epsilon**STEP_POWER * np.maximum(mode.deviations, least)
        around = np.concatenate([mode.mean + np.diag(step), mode.mean - np.diag(step)])
        every = [np.repeat(each, 2 * dim + 1, axis=0) for each in orders]
        found = self._moved(np.concatenate([mode.mean[None], around]), every)
        # Entries do not only change places: transforms of simplexes, as by sticks, mix them.
        slopes = (found[1 : dim + 1] - found[dim + 1 :]) / (2.0 * step[:, None])
        factor = lower_factor(slopes.T @ mode.root)
        if mode.factor.ndim == 1:
            factor = np.linalg.norm(factor, axis=1)
        return Mode(found[0], factor, mode.log_mass, mode.spread)

    def _orders(self, positions: Positions) -> list[Orders]:
        # Coordinates order labels as values do, or the other way round.
        values = {} if all(each.flat for each in self.exchanges) else self.constrain(positions)
        return [
            np.argsort(positions[:, list(each.flat)], axis=1, kind="stable")
            if each.flat
            else each.orders(values)
            for each in self.exchanges
        ]

    def _moved(self, positions: Positions, orders: Sequence[Orders]) -> Positions:
        # Most draws of a mode are in order, and transforms there and back round.
        rows = np.flatnonzero(_is_moved(orders))
        if not len(rows):
            return positions
        values = self.constrain(positions[rows])
        for exchange, each in zip(self.exchanges, orders, strict=True):
            values = exchange.applied(values, each[rows])
        found = positions.copy()
        found[rows] = self.unconstrain(values)
        return found


def ordered_values(exchanges: Sequence[Exchange], values: Mapping[str, np.ndarray]) -> Values:
    """Values of sites as written (S, ...) with their labels in order."""
    found = dict(values)
    for exchange in exchanges:
        found = exchange.applied(found, exchange.orders(found))
    return found


def _is_moved(orders: Sequence[Orders]) -> Bool[np.ndarray, " S"]:
    moved = [(each != np.arange(each.shape[1])).any(1) for each in orders]
    return np.any(moved, axis=0)


def find_symmetry(
    evaluate: Evaluate,
    constrain: Callable[[Positions], Values],
    unconstrain: Callable[[Mapping[str, np.ndarray]], Positions],
    coordinates: Mapping[str, slice],
    drawn: Positions,
    epsilon: float,
) -> Symmetry | None:
    """The exchanges of labels that leave a density as it is, and that draws of a mode tell apart.

    Every choice of a few axes of one length is tried, and so are sites of probabilities where there
    are two labels. What counts is whether the density stays the same, at several positions.

    Parameters
    ----------
    evaluate : callable
        Log densities (P,) and scores (P, D) at positions (P, D).
    constrain, unconstrain : callable
        See :class:`Symmetry`.
    coordinates : mapping of str to slice
        Range of the flat vector that each site takes.
    drawn : array (S, D)
        Draws of one mode.
    epsilon : float
        Relative precision of densities.

    Returns
    -------
    Symmetry or None
        None where there are no such labels.
    """
    values = constrain(drawn)
    tried = _candidates(values)
    if not tried:
        return None
    is_same = _Same(evaluate, constrain, unconstrain, drawn[:POINTS], epsilon)
    pairs = tried
    # One point rules nearly all out, at a fraction of the evaluations.
    for rows in (slice(0, 1), slice(1, POINTS)):
        if pairs:
            kept = is_same(pairs, rows)
            pairs = [each for each, good in zip(pairs, kept, strict=True) if good]
    found: list[Exchange] = []
    for axes, halves in dict.fromkeys((each.axes, each.halves) for each in pairs):
        units = {*axes, *halves}
        if any({*each.axes, *each.halves} <= units for each in found):
            continue  # what is left of it would be an exchange by itself
        own = [each.labels for each in pairs if (each.axes, each.halves) == (axes, halves)]
        for labels in _runs(own):
            exchange = _told_apart(Exchange(labels, axes, halves), values, coordinates)
            if exchange is not None and all(_are_apart(exchange, each) for each in found):
                found.append(exchange)
    return Symmetry(tuple(found), constrain, unconstrain) if found else None


def _candidates(values: Mapping[str, np.ndarray]) -> list[Exchange]:
    """Exchanges of two neighbouring labels that may leave a density as it is."""
    units: dict[int, list[Any]] = {}
    for name, array in values.items():
        for axis, length in enumerate(array.shape[1:]):
            if length > 1:
                units.setdefault(length, []).append((name, axis))
        # A probability may stand for two labels without an axis of two.
        if ((array > 0.0) & (array < 1.0)).all():
            units.setdefault(2, []).append(name)
    found: list[Exchange] = []
    for number in range(1, MOST_AXES + 1):
        for length, own in sorted(units.items()):
            for chosen in itertools.combinations(own, number):
                axes = tuple(each for each in chosen if not isinstance(each, str))
                halves = tuple(each for each in chosen if isinstance(each, str))
                if {name for name, _ in axes} & set(halves) or not axes:
                    continue
                # Fewer axes first: where there are too many choices, the likely ones have been
                # tried.
                if len(found) + length > MOST_TRIED:
                    return found
                found += [Exchange((k, k + 1), axes, halves) for k in range(length - 1)]
    return found


class _Same:
    """Whether exchanges of two labels leave the density as it is."""

    def __init__(
        self,
        evaluate: Evaluate,
        constrain: Callable[[Positions], Values],
        unconstrain: Callable[[Mapping[str, np.ndarray]], Positions],
        points: Positions,
        epsilon: float,
    ) -> None:
        self._evaluate, self._constrain, self._unconstrain = evaluate, constrain, unconstrain
        self._points, self._epsilon = points, epsilon
        self._densities, _ = evaluate(points)

    @np.errstate(all="ignore")
    def __call__(self, pairs: Sequence[Exchange], rows: slice) -> Bool[np.ndarray, " pairs"]:
        """By exchange, whether it does at these points."""
        values = self._constrain(self._points[rows])
        number = len(self._points[rows])
        swapped = np.tile([1, 0], (number, 1))
        every = [each.applied(values, swapped) for each in pairs]
        wanted = {name: np.concatenate([each[name] for each in every]) for name in values}
        try:
            positions = self._unconstrain(wanted)
        except (ArgumentError, ValueError):
            return np.zeros(len(pairs), bool)
        finite = np.isfinite(positions).all(1)
        positions = np.where(finite[:, None], positions, self._points[0])
        # Where values have an order of their own, or belong together, they do not come back.
        again = self._constrain(positions)
        near = math.sqrt(self._epsilon)
        given = {name: np.concatenate([each] * len(pairs)) for name, each in values.items()}
        # What leaves all values as they are, as rows and columns of a correlation of two, is none.
        is_back = finite & _are_alike(again, wanted, near) & ~_are_alike(given, wanted, near)
        densities = np.full(len(positions), -np.inf)
        if is_back.any():
            densities[is_back], _ = self._evaluate(positions[is_back])
        before = np.tile(self._densities[rows], len(pairs))
        rounding = ROUNDING * self._epsilon * (1.0 + abs(before))
        # A density of a million nats rounds to more than what two labels may differ by.
        same = abs(densities - before) <= np.minimum(rounding, MOST_ROUNDING)
        return same.reshape(len(pairs), number).all(1)


def _are_alike(one: Values, other: Values, near: float) -> Bool[np.ndarray, " S"]:
    """By draw, whether values are the same but for rounding."""
    same = [abs(one[n] - other[n]) <= near * (near + abs(other[n])) for n in other]
    return np.all([each.reshape(len(each), -1).all(1) for each in same], axis=0)


def _are_apart(one: Exchange, other: Exchange) -> bool:
    """Whether either leaves what the other puts labels in order by."""
    same = (one.axes, one.halves) == (other.axes, other.halves)
    return same or (one.site not in other.sites and other.site not in one.sites)


def _runs(pairs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Labels that neighbouring pairs join."""
    runs: list[list[int]] = []
    for one, other in sorted(pairs):
        if runs and runs[-1][-1] == one:
            runs[-1].append(other)
        else:
            runs.append([one, other])
    return [tuple(run) for run in runs]


def _told_apart(
    exchange: Exchange, values: Mapping[str, np.ndarray], coordinates: Mapping[str, slice]
) -> Exchange | None:
    """The exchange with the entries that tell its labels apart best; None where none does.

    Labels that draws of one mode have in any order belong to that one mode.
    """
    labels, best, most = exchange.labels, None, 0.0
    chance = math.exp(-math.lgamma(len(labels) + 1))
    for name in dict.fromkeys(name for name, _ in exchange.axes):
        shape = values[name].shape[1:]
        own = [axis for each, axis in exchange.axes if each == name]
        others = [1 if axis in own else length for axis, length in enumerate(shape)]
        for place in np.ndindex(*others):
            entries = []
            for label in labels:
                index = [label if axis in own else place[axis] for axis in range(len(shape))]
                entries.append(int(np.ravel_multi_index(index, shape)))
            candidate = replace(exchange, site=name, entries=tuple(entries))
            orders = candidate.orders(values)
            # The order that most draws have.
            usual = orders[np.argmax((orders[:, None] == orders[None]).all(2).sum(1))]
            share = float((orders == usual).all(1).mean())
            if (share - chance) / (1.0 - chance) <= APART:
                continue
            # Of few draws many an entry has all in one order: gaps tell how far it is from another.
            gaps = np.diff(values[name].reshape(len(orders), -1)[:, np.array(entries)[usual]])
            far = float((gaps.mean(0) / np.maximum(gaps.std(0), TINY)).min())
            if best is None or far > most:
                best, most = candidate, far
    if best is None:
        return None
    where, size = coordinates[best.site], math.prod(values[best.site].shape[1:])
    if where.stop - where.start != size:
        return best
    return replace(best, flat=tuple(where.start + entry for entry in best.entries))
