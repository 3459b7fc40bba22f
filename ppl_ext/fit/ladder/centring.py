"""Where a program has a neck, and what data tell of each entry of a site of latent scale.

An entry x of a site has location m and scale s, which is latent. As written it is narrow where s is
small; non-centred, as (x - m) / s, it is narrow where s is large and data tell much of x. Data that
tell of x by a Normal factor leave it a Normal given m and s, whose mean and deviation are known.
Standardised by these the entry is as wide everywhere: see
:func:`ppl_ext.target.noncentred.standardised`. What data tell of each entry is read off the mode of
the non-centred way. M. I. Gorinova, D. Moore and M. D. Hoffman, "Automatic reparameterisation of
probabilistic programs" (2020), write entries in between centred and non-centred by one number,
which leaves widths that change with s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from ppl_ext.fit.problem.problem import Meter, Problem
from ppl_ext.start.local_normal import step_of, whitened_curvature
from ppl_ext.start.start import Mode

#: How far to either side of a mode widths are compared, in standard deviations of a coordinate.
FAR = 3.0
#: Step of the differences that curvatures are from, in standard deviations.
STEP = 0.05
#: Standard deviations between the quantiles of a Normal at a twentieth and at 19 of them.
WITHIN = 3.29
#: Share of what is known of an entry at the mode, given its scale, that has to be the data's for
#: some entry: below, the non-centred way is as good, and needs no third program.
LEAST_TOLD = 0.3

#: Change of the log of an entry's scale, by a standard deviation of a coordinate, that is more than
#: rounding.
LEAST_CHANGE = 0.01

Positions = np.ndarray


@dataclass(frozen=True)
class EntryData:
    """What data tell of entries.

    Attributes
    ----------
    entries : dict of str to array
        By site as written, arrays (2, ...): the precision h of the data's Normal factor
        exp(k x - h x^2 / 2) of each entry x of a value of the site, and k. Empty where the
        non-centred way is as good.
    least : float
        Of the entry of which data tell least, the data's share of what is known of it at the mode;
        infinite where that is not known.
    """

    entries: dict[str, np.ndarray] = field(default_factory=dict)
    least: float = np.inf


@np.errstate(all="ignore")
def neck_among(problem: Problem, sites: Iterable[str], draws: Positions, meter: Meter) -> float:
    """:func:`neck` where draws (S, D) are: a Normal at a mode may lie far from the mass."""
    low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=0)
    mode = Mode(middle, (high - low) / WITHIN, 0.0, 0.0)
    return neck(problem, sites, mode, meter)


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
    own = _own(problem, sites)
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
    ordered = sorted(places.values(), key=lambda place: place.start)
    # At one point: the mode's own covariance may be one over its draws, on which scales differ.
    evaluate, deviations = meter.of(other.evaluate), mode.deviations
    curvature = whitened_curvature(evaluate, mode.mean, np.diag(deviations), step_of(other.epsilon))
    if curvature is None:
        return EntryData()
    told = np.zeros(other.dim)
    own = _own(other, other.latents.values())
    told[own] = _told(curvature / np.outer(deviations, deviations), ordered)
    shares = told[own] / (1.0 + told[own])
    if not shares.max() >= LEAST_TOLD:
        return EntryData(least=float(shares.min()))
    first = written.positions_of(other, mode.mean[None])[0]
    # What the slope has beside that of the standard Normal priors of entries.
    slopes = evaluate(mode.mean[None])[1][0] + mode.mean
    shapes, entries = other.own.layout.shapes, {}
    for site, place in places.items():
        # A step of 1 of the non-centred entry moves the entry as written by its scale.
        shifted, here = mode.mean[None].copy(), written.coordinates[site]
        shifted[:, place] += 1.0
        scales = np.abs(written.positions_of(other, shifted)[0, here] - first[here])
        precisions = told[place] / scales**2
        pulls = slopes[place] / scales + precisions * first[here]
        entries[site] = np.stack([precisions, pulls]).reshape(2, *shapes[other.latents[site]])
    if not all(np.isfinite(each).all() for each in entries.values()):
        return EntryData()
    return EntryData(entries, float(shares.min()))


@np.errstate(all="ignore")
def scales_of(written: Problem, other: Problem, mode: Mode) -> dict[str, list[int]]:
    """By site, the places of its coordinates on which the scales of non-centred entries depend.

    ``mode`` is one of the non-centred way.
    """
    if written.maps is None or not other.latents:
        return {}
    own, theirs = _own(other, other.latents.values()), _own(written, other.latents)
    where = np.flatnonzero(~own)
    points = mode.mean + np.vstack([np.zeros(other.dim), np.diag(mode.deviations)[where]])
    # A step of 1 of all non-centred entries moves those as written by their scales.
    first, second = (
        written.positions_of(other, each)[:, theirs] for each in (points, points + own)
    )
    logs = np.log(np.abs(second - first))
    is_scale = np.zeros(other.dim, bool)
    is_scale[where] = (np.abs(logs[1:] - logs[0]) > LEAST_CHANGE).any(1)
    places = {site: np.flatnonzero(is_scale[at]) for site, at in other.coordinates.items()}
    return {site: place.tolist() for site, place in places.items() if len(place)}


def _told(precision: Float[np.ndarray, "D D"], sites: Sequence[slice]) -> Float[np.ndarray, " own"]:
    """What data tell of entries, as precisions beside those of their priors, which are 1.

    All that comes before them in the program is given, and all that is not such an entry. Entries
    of later sites are integrated out: these may have the former as their locations, and would tell
    more of them than the data do.
    """
    told, later = list[np.ndarray](), np.zeros(0, int)
    for place in reversed(sites):
        here = np.arange(place.start, place.stop)
        later = np.concatenate([here, later])
        covariance = np.linalg.inv(precision[np.ix_(later, later)])
        told.append(1.0 / np.diag(covariance)[: len(here)] - 1.0)
    return np.maximum(np.concatenate(told[::-1]), 0.0)


def _own(problem: Problem, names: Iterable[str]) -> np.ndarray:
    """Which coordinates are those of these sites."""
    own = np.zeros(problem.dim, bool)
    for name in names:
        own[problem.coordinates[name]] = True
    return own
