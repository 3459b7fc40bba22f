"""Where a program has a neck, and what data tell of each entry of a site of latent scale.

An entry x of a site has location m and scale s, which is latent. As written it is narrow where s is
small; non-centred, as (x - m) / s, it is narrow where s is large and data tell much of x. Data that
tell of x by a Normal factor leave it a Normal given m and s, whose mean and deviation are known.
Standardised by these the entry is as wide everywhere: see
:func:`ppl_ext.target.noncentred.standardised`. An entry may be a vector: then data tell of it by a
matrix. What data tell of each entry is read off the mode of
the non-centred way. M. I. Gorinova, D. Moore and M. D. Hoffman, "Automatic reparameterisation of
probabilistic programs" (2020), write entries in between centred and non-centred by one number,
which leaves widths that change with s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from jaxtyping import Float

from ppl_ext.fit.ladder.given_hyperparameters import has_room
from ppl_ext.fit.problem.problem import Meter, Problem
from ppl_ext.start.local_normal import step_of, whitened_curvature
from ppl_ext.start.start import Mode
from ppl_ext.target.noncentred import factors_of

#: How far to either side of a mode widths are compared, in standard deviations of a coordinate.
FAR = 3.0
#: Step of the differences that curvatures are from, in standard deviations.
STEP = 0.05
#: Standard deviations between the quantiles of a Normal at a twentieth and at 19 of them.
WITHIN = 3.29
#: Share of what is known of an entry at the mode, given its scale, that has to be the data's for
#: some entry: below, the non-centred way is as good, and needs no third program.
LEAST_TOLD = 0.3

#: Change of an entry's scale, as a share of it, by a standard deviation of a coordinate, that is
#: more than rounding.
LEAST_CHANGE = 0.01

Positions = np.ndarray


@dataclass(frozen=True)
class EntryData:
    """What data tell of entries.

    Attributes
    ----------
    entries : dict of str to array
        By site as written, arrays (2, ...): the precision h of the data's Normal factor
        exp(k x - h x^2 / 2) of each entry x of a value of the site, and k. For vectors of length d,
        arrays (..., d + 1, d): a root of the precision by rows, and k. Empty where the non-centred
        way is as good.
    least : float
        Of the entry of which data tell least, the data's share of what is known of it at the mode;
        infinite where that is not known. Of a vector along the direction of which they tell least,
        since there it is narrow as written, whichever its coordinates are.
    """

    entries: dict[str, np.ndarray] = field(default_factory=dict)
    least: float = np.inf


@np.errstate(all="ignore")
def neck_among(problem: Problem, sites: Iterable[str], draws: Positions, meter: Meter) -> float:
    """:func:`neck` at the median and spread of draws (S, D): a mode may lie far from the mass."""
    low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=0)
    return neck(problem, sites, Mode(middle, (high - low) / WITHIN, 0.0, 0.0), meter)


@np.errstate(all="ignore")
def neck(problem: Problem, sites: Iterable[str], mode: Mode, meter: Meter) -> float:
    """Factor by which the curvature of these sites changes with any other coordinate.

    Parameters
    ----------
    problem : Problem
    sites : iterable of str
        Sites of the problem.
    mode : Mode
    meter : Meter
        Counts four evaluations for each other coordinate.
    """
    own = problem.coordinates_of(sites)
    where = np.flatnonzero(~own)
    if not own.any() or not len(where):
        return 1.0
    direction = np.where(own, mode.deviations, 0.0) * np.resize([1.0, -1.0], problem.dim)
    ends = mode.mean + FAR * np.stack([np.diag(mode.deviations), -np.diag(mode.deviations)])
    points = ends[:, where, None] + STEP * direction * np.array([[1.0], [-1.0]])
    _, scores = meter.of(problem.evaluate)(points.reshape(-1, problem.dim))
    slopes = (scores @ direction).reshape(points.shape[:-1])
    curvatures = (slopes[..., 1] - slopes[..., 0]) / (2.0 * STEP)
    ratios = curvatures.max(0) / curvatures.min(0)
    # Where a density is not finite, or not concave, nothing is said against the way it is written.
    return float(np.max(ratios, initial=1.0, where=np.isfinite(ratios)))


@np.errstate(all="ignore")
def entry_data(written: Problem, other: Problem, mode: Mode, meter: Meter) -> EntryData:
    """What data tell of each entry of the sites that another way has non-centred.

    Parameters
    ----------
    written, other : Problem
        The program as written, and with sites non-centred.
    mode : Mode
        Of the program with sites non-centred. Where it has no covariances, nothing is told.
    meter : Meter
        Counts two evaluations for each dimension, and one.
    """
    if written.maps is None or not other.latents or mode.factor.ndim == 1:
        return EntryData()
    places = {site: other.coordinates[latent] for site, latent in other.latents.items()}
    ordered = sorted(places, key=lambda site: places[site].start)
    lengths = {site: other.lengths.get(site, 1) for site in ordered}
    # At one point: the mode's own covariance may be one over its draws, on which scales differ.
    evaluate, deviations = meter.of(other.evaluate), mode.deviations
    curvature = whitened_curvature(evaluate, mode.mean, np.diag(deviations), step_of(other.epsilon))
    if curvature is None:
        return EntryData()
    blocks = _told(
        curvature / np.outer(deviations, deviations), [(places[n], lengths[n]) for n in ordered]
    )
    if not all(np.isfinite(each).all() for each in blocks):
        return EntryData()
    told = {site: np.linalg.eigh(each) for site, each in zip(ordered, blocks, strict=True)}
    sizes = np.concatenate([np.maximum(each.eigenvalues, 0.0).ravel() for each in told.values()])
    shares = sizes / (1.0 + sizes)
    # A mode of vectors may lie where all scales are too small, and data seem to tell little there.
    if not (shares.max() >= LEAST_TOLD or other.lengths):
        return EntryData(least=float(shares.min()))
    first = written.positions_of(other, mode.mean[None])[0]
    # What the slope has beside that of the standard Normal priors of entries.
    slopes = evaluate(mode.mean[None])[1][0] + mode.mean
    shapes, entries = other.own.layout.shapes, {}
    for site, place in places.items():
        length, shape = lengths[site], shapes[other.latents[site]]
        # A step of 1 of the non-centred entry moves the entry as written by its scale.
        scales = _scales(written, other, mode.mean[None], site)[0]
        if not np.isfinite(np.linalg.slogdet(scales)[1]).all():
            return EntryData()
        inverses = np.linalg.inv(scales)
        here = first[written.coordinates[site]].reshape(-1, length, 1)
        roots = np.sqrt(np.maximum(told[site].eigenvalues, 0.0))[..., None]
        roots = roots * told[site].eigenvectors.swapaxes(1, 2) @ inverses
        pulls = inverses.swapaxes(1, 2) @ slopes[place].reshape(-1, length, 1)
        pulls = (pulls + roots.swapaxes(1, 2) @ (roots @ here)).swapaxes(1, 2)
        if site in other.lengths:
            entries[site] = np.concatenate([roots, pulls], 1)
            entries[site] = entries[site].reshape(*shape[:-1], length + 1, length)
        else:
            entries[site] = np.stack([np.square(roots), pulls]).reshape(2, *shape)
    if not all(np.isfinite(each).all() for each in entries.values()):
        return EntryData()
    return EntryData(entries, float(shares.min()))


@np.errstate(all="ignore")
def scales_of(written: Problem, other: Problem, mode: Mode) -> dict[str, list[int]]:
    """By site, the places of its coordinates on which the scales of non-centred entries depend.

    And the correlations of vectors, where there is room for draws of as many hyperparameters.

    ``mode`` is one of the non-centred way.
    """
    if written.maps is None or not other.latents:
        return {}
    where = np.flatnonzero(~other.coordinates_of(other.latents.values()))
    points = mode.mean + np.vstack([np.zeros(other.dim), np.diag(mode.deviations)[where]])
    rows = [
        _scales(written, other, points, n).reshape(len(points), -1, other.lengths.get(n, 1))
        for n in other.latents
    ]
    # The standard deviation of each number of a vector, and its correlations where there is room.
    is_scale = np.zeros(other.dim, bool)
    for of in (lambda row: row, lambda row: np.linalg.norm(row, axis=-1, keepdims=True)):
        is_scale[where] = np.any([_changes(of(each)) for each in rows], axis=0)
        if has_room(int(is_scale.sum()), other.dim):
            break
    places = {site: np.flatnonzero(is_scale[at]) for site, at in other.coordinates.items()}
    return {site: place.tolist() for site, place in places.items() if len(place)}


def _changes(rows: Float[np.ndarray, "P n d"]) -> np.ndarray:
    """At which points but the first (P - 1,) some row is another one than there."""
    least = LEAST_CHANGE * np.linalg.norm(rows[0], axis=-1, keepdims=True)
    changed: np.ndarray = (np.abs(rows[1:] - rows[0]) > least).any((1, 2))
    return changed


def _scales(
    written: Problem, other: Problem, points: Positions, site: str
) -> Float[np.ndarray, "P n d d"]:
    """The scales of a site's entries at points (P, D) of the non-centred way, as matrices."""
    there = partial(written.positions_of, other)
    places = other.coordinates[other.latents[site]], written.coordinates[site]
    return factors_of(there, points, there(points), *places, other.lengths.get(site, 1))


def _told(
    precision: Float[np.ndarray, "D D"], sites: Sequence[tuple[slice, int]]
) -> list[Float[np.ndarray, "n d d"]]:
    """The precision (n, d, d) that the likelihood adds to each of n entries of length d, by site.

    It is the entry's precision less the identity, which is that of its standard Normal prior.
    Coordinates of earlier sites, and all that are not such entries, are held. Other entries of the
    site and of later sites are integrated out: later entries may have these as their locations, and
    would count as data if they were held.
    """
    told, later = list[np.ndarray](), np.zeros(0, int)
    for place, length in reversed(sites):
        here = np.arange(place.start, place.stop)
        later = np.concatenate([here, later])
        covariance = np.linalg.inv(precision[np.ix_(later, later)])
        at = np.arange(len(here)).reshape(-1, length)
        told.append(np.linalg.inv(covariance[at[:, :, None], at[:, None]]) - np.eye(length))
    return told[::-1]
